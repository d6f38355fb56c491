"""Tell whether the service can be started from this installation.

Its rooms lie beside the package in a checkout; the wheel holds the package alone.
"""

from __future__ import annotations

from pathlib import Path

from cupilot.domain.errors import Unavailable

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("api", "workers", "migrations")
"""Those that an embedded stack starts as programs."""


class NoCheckout(Unavailable):
    """The command needs the service's code, and only the package ``cupilot`` is installed."""

    code = "no_checkout"


def has_service() -> bool:
    """Return whether the programs of the service lie beside the package."""
    return all((ROOT / room / "__main__.py").is_file() for room in ROOMS)


def require_service() -> None:
    """Raise :class:`NoCheckout` unless the service can be started from here."""
    if not has_service():
        raise NoCheckout(
            "this command needs the service's code, which is not part of the installed package",
            hint="clone the repository of cuPilot, run 'make install' there and use its .venv/bin/cupilot; "
            "or name a running service with --server or CUPILOT_URL",
        )
