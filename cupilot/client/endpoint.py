"""Find the service and a key for it: arguments, the environment, a data folder's files, then a profile.

Reads files and variables only; whether anybody answers there is the client's business.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cupilot.client.profiles import PROFILE_VARIABLE, chosen
from cupilot.domain.errors import InvalidInput, Unavailable

URL_VARIABLE = "CUPILOT_URL"
KEY_VARIABLE = "CUPILOT_API_KEY"
DATA_VARIABLE = "CUPILOT_DATA"
LOCAL_DATA = Path(".cupilot")


class NoServer(Unavailable):
    """No address of a server is configured."""

    code = "no_server"


@dataclass(frozen=True)
class Endpoint:
    """A service's address, and a key for it where one is known."""

    url: str
    api_key: str | None


def data_folder(folder: Path | None = None) -> Path:
    """Return the data folder of the embedded stack.

    Given, ``CUPILOT_DATA``, ``./.cupilot`` if it is there, ``~/.cupilot`` if that is there, else ``./.cupilot``.
    """
    if folder is not None:
        return folder
    if os.environ.get(DATA_VARIABLE):
        return Path(os.environ[DATA_VARIABLE])
    home = Path.home() / ".cupilot"
    return home if home.is_dir() and not LOCAL_DATA.is_dir() else LOCAL_DATA


def find_endpoint(url: str | None = None, api_key: str | None = None, data: Path | None = None) -> Endpoint:
    """Complete what is given; raises :class:`NoServer` where no address is to be found.

    A data folder's key, or a profile's, is used only with its own address: it must not be shown to another server.
    """
    folder = data_folder(data)
    written = _read(folder / "url")
    # A folder that was asked for by name is meant, whatever the environment says.
    named = written if data is not None else None
    profile = None if url and api_key else chosen()
    by_name = profile.url if profile and os.environ.get(PROFILE_VARIABLE) else None
    places = (url, named, os.environ.get(URL_VARIABLE), by_name, written, profile.url if profile else None)
    found = next((place for place in places if place), None)
    if not found:
        raise NoServer(
            "no server is configured",
            hint="start one with cupilot up, name one with --server, or keep one with cupilot login URL",
        )
    address = _checked(found)
    own_key = _read(folder / "api_key") if written and _checked(written) == address else None
    kept_key = profile.api_key if profile and _checked(profile.url) == address else None
    key = api_key or (own_key if named else None) or os.environ.get(KEY_VARIABLE) or own_key or kept_key
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        hint = f"set {KEY_VARIABLE}, or keep your key with cupilot login URL"
        raise InvalidInput("the API key contains characters that no key has", hint=hint, where="api key")
    return Endpoint(address, key)


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0):
            return url.rstrip("/")
    except ValueError:
        pass
    raise InvalidInput(f"{url!r} is not the URL of a server", hint="it looks like http://host:port", where="server")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
