"""The REST contract as a file, so that no change of it goes unseen: ``python -m api.contract`` prints how the API that
this code serves differs from ``api/contract.json``, ``--write`` takes it over.

``api/released.json`` is that of the last release, whose clients this code has to serve: what would break them is
printed too (:mod:`api.compatibility`), and ``--release`` takes today's over, for whoever makes a release.

Shapes only: words, examples and titles may change at any time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from api.app import create_app
from api.compatibility import broken
from cupilot.settings import Settings

KEPT = Path(__file__).with_name("contract.json")
RELEASED = Path(__file__).with_name("released.json")
WORDS = frozenset({"description", "summary", "title", "example", "examples"})
_NAMED = frozenset({"properties", "schemas", "paths", "responses", "parameters"})
"""Below these stand names that somebody chose, ``title`` among them."""


def served() -> dict[str, Any]:
    """The contract of this code."""
    document = create_app(Settings()).openapi()
    return {part: shapes(document[part], part) for part in ("paths", "components")}


def shapes(value: Any, place: str = "") -> Any:
    """A part of an OpenAPI document without its words."""
    if isinstance(value, dict):
        kept = (key for key in value if place in _NAMED or key not in WORDS)
        return {key: shapes(value[key], key if place not in _NAMED else "") for key in kept}
    return [shapes(each) for each in value] if isinstance(value, list) else value


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """A line for each place where two contracts differ, the outermost that is in one of them only."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            inner = f"{place} > {key}" if place else key
            if key not in after:
                yield f"- {inner}"
            elif key not in before:
                yield f"+ {inner}"
            else:
                yield from differences(before[key], after[key], inner)
    elif before != after:
        yield f"~ {place}: {json.dumps(before)[:200]} is now {json.dumps(after)[:200]}"


def read(kept: Path) -> dict[str, Any]:
    """A contract that was written; an empty one where none was."""
    if not kept.exists():
        return {}
    contract: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    return contract


def write(kept: Path, contract: dict[str, Any]) -> None:
    """Keep a contract, a value a line, so that a diff shows what changed."""
    kept.write_text(json.dumps(contract, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main(given: list[str] | None = None) -> int:
    """0 where nothing differs, or it was taken over, and no client breaks."""
    parser = argparse.ArgumentParser(prog="python -m api.contract", description="How the REST contract changed.")
    parser.add_argument("--write", action="store_true", help="take it over: what is printed is meant")
    parser.add_argument("--release", action="store_true", help="from now on clients of today's contract are served")
    options = parser.parse_args(given)
    now = served()
    found = list(differences(read(KEPT), now))
    breaks = [f"BREAKS CLIENTS: {sentence}" for sentence in broken(read(RELEASED) or now, now)]
    sys.stdout.write("".join(f"{line}\n" for line in (*found, *breaks)))
    if options.write or options.release:
        write(KEPT, now)
    if options.release:
        write(RELEASED, now)
        return 0
    return 1 if breaks or (found and not options.write) else 0


if __name__ == "__main__":
    sys.exit(main())
