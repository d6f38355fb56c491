"""Compare the REST contract with that of the last release: ``python -m api.contract``.

``api/released.json`` is the contract of the last release, whose clients this code has to serve, and
``api/changes.txt`` lists what is different since, so that a test sees every further change; ``--write`` brings the list
up to date. What would break clients of the release is printed too (:mod:`api.compatibility`). ``--release`` makes
today's contract the released one.

Shapes only: words, examples and titles may change at any time, and so may the module that a schema is defined in.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from api.app import create_app
from api.compatibility import broken
from cupilot.settings import Settings

RELEASED = Path(__file__).with_name("released.json")
KEPT = Path(__file__).with_name("changes.txt")
WORDS = frozenset({"description", "summary", "title", "example", "examples", "operationId", "tags"})
_NAMED = frozenset({"properties", "schemas", "paths", "responses", "parameters"})
"""Below these stand names that somebody chose, ``title`` among them."""
_MODULE = re.compile(r"\b(?:\w+?__)+(\w+?__\w)")
"""Rooms that a module stands in, which schemas of one name are told apart by."""


def served() -> dict[str, Any]:
    """Return the contract of this code."""
    document = create_app(Settings()).openapi()
    whole = {part: shapes(document[part], part) for part in ("paths", "components")}
    contract: dict[str, Any] = json.loads(_MODULE.sub(r"\1", json.dumps(whole)))
    return contract


def shapes(value: Any, place: str = "") -> Any:
    """Return a part of an OpenAPI document without its words."""
    if isinstance(value, dict):
        kept = (key for key in value if place in _NAMED or key not in WORDS)
        return {key: shapes(value[key], key if place not in _NAMED else "") for key in kept}
    return [shapes(item) for item in value] if isinstance(value, list) else value


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Yield a line for each place where two contracts differ, the outermost that is in one of them only."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            inner = f"{place} > {key}" if place else key
            if key not in after:
                yield f"- {inner}"
            elif key not in before:
                yield f"+ {inner}"
            else:
                yield from differences(before[key], after[key], inner)
    elif place.endswith("> parameters"):
        yield from differences(_by_name(before), _by_name(after), place)
    elif before != after:
        yield f"~ {place}: {json.dumps(before)} is now {json.dumps(after)}"


def _by_name(parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {f"{parameter['in']} {parameter['name']}": parameter for parameter in parameters}


def read(path: Path) -> dict[str, Any]:
    """Return a contract that was written; an empty one where none was."""
    if not path.exists():
        return {}
    contract: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return contract


def write(path: Path, contract: dict[str, Any]) -> None:
    """Write a contract with a path or a schema a line, so that a diff shows which ones changed."""
    parts = {"paths": contract.get("paths", {}), **contract.get("components", {})}
    blocks = {part: ",\n".join(f"{json.dumps(key)}: {_compact(parts[part][key])}" for key in sorted(parts[part]))
              for part in parts}  # fmt: skip
    components = ",\n".join(f'"{part}": {{\n{blocks[part]}\n}}' for part in blocks if part != "paths")
    text = f'{{"paths": {{\n{blocks["paths"]}\n}},\n"components": {{{components}}}}}\n'
    path.write_text(text, encoding="utf-8")


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def changes(now: dict[str, Any]) -> list[str]:
    """Return what to list: the differences from the last release, and a digest, which sees into what is new since."""
    digest = hashlib.sha256(_compact(now).encode()).hexdigest()
    return [*differences(read(RELEASED), now), f"contract {digest[:16]}"]


def unlisted(listed: list[str], current: list[str]) -> list[str]:
    """Return what a list of changes lacks, or has too many."""
    news = [line for line in current[:-1] if line not in listed]
    news += [f"no longer: {line}" for line in listed[:-1] if line not in current]
    return news or (["~ what is new since the release"] if listed != current else [])


def main(arguments: list[str] | None = None) -> int:
    """Return 0 where every difference is listed, or has just been, and no client breaks."""
    parser = argparse.ArgumentParser(prog="python -m api.contract", description="How the REST contract changed.")
    parser.add_argument("--write", action="store_true", help="list what changed: what is printed is meant")
    parser.add_argument("--release", action="store_true", help="from now on clients of today's contract are served")
    options = parser.parse_args(arguments)
    now = served()
    news = unlisted(KEPT.read_text(encoding="utf-8").splitlines() if KEPT.exists() else [], changes(now))
    breaks = [f"BREAKS CLIENTS: {sentence}" for sentence in broken(read(RELEASED) or now, now)]
    sys.stdout.write("".join(f"{line}\n" for line in (*news, *breaks)))
    if options.release:
        write(RELEASED, now)
    if options.write or options.release:
        KEPT.write_text("".join(f"{line}\n" for line in changes(now)), encoding="utf-8")
    if options.release:
        return 0
    return 1 if breaks or (news and not options.write) else 0


if __name__ == "__main__":
    sys.exit(main())
