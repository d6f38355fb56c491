"""Named services and their keys in a file that only its owner can read: what ``cupilot login`` keeps. No requests."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import BaseModel, ValidationError

from cupilot.domain.errors import InvalidInput, NotFound

PROFILE_VARIABLE = "CUPILOT_PROFILE"
DEFAULT = "default"


class Profile(BaseModel):
    """A service and a key for it."""

    url: str
    api_key: str


class Profiles(BaseModel):
    """All of them, and which one is meant where none is named."""

    current: str | None = None
    profiles: dict[str, Profile] = {}


def profiles_file() -> Path:
    """Return where they are kept: ``$XDG_CONFIG_HOME/cupilot``, or ``~/.config/cupilot``."""
    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "cupilot" / "profiles.json"


def load() -> Profiles:
    """Return what is kept; InvalidInput where the file is damaged, or others can read the keys in it."""
    path = profiles_file()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Profiles()
    if path.stat().st_mode & 0o077:
        raise InvalidInput("others can read the keys in it", hint=f"chmod 600 {path}", where=str(path))
    try:
        return Profiles.model_validate_json(text)
    except ValidationError as error:
        hint = "delete it and log in again"
        raise InvalidInput("the file of profiles is damaged", hint=hint, where=str(path)) from error


def save(profiles: Profiles) -> Path:
    """Write them for their owner alone, whole or not at all; return where."""
    path = profiles_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_suffix(f".{os.getpid()}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(profiles.model_dump(mode="json"), file, indent=2)
    beside.replace(path)
    return path


def chosen() -> Profile | None:
    """Return the profile that ``CUPILOT_PROFILE`` names, else the current one; NotFound for a name that is not kept."""
    named = os.environ.get(PROFILE_VARIABLE)
    kept = load()
    if named and named not in kept.profiles:
        hint = f"cupilot login URL --profile {named}"
        raise NotFound(f"there is no profile {named}", hint=hint, where=PROFILE_VARIABLE)
    name = named or kept.current
    return kept.profiles.get(name) if name else None
