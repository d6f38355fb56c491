"""Name the flag that an error is about, as it was typed, in the place of the request's field that it became."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pydantic import BaseModel, ValidationError

from cupilot.domain.errors import InvalidInput
from cupilot.schemas.paths import field_path, unknown_field

_FLAGS = {
    "agents": "--agents",
    "arch": "--arch",
    "arms": "--arm",
    "budgets.candidates": "--candidates",
    "budgets.cost_usd": "--cost",
    "budgets.wall_seconds": "--minutes",
    "device_class": "--device-class",
    "function": "--function",
    "kernel.function": "--function",
    "labels": "--label",
    "learning.attribution": "--attribute",
    "method": "--set",
    "method.name": "--method",
    "priority": "--priority",
    "problem": "PROBLEM",
    "problem.name": "--name",
    "problem.policy": "--policy",
    "problem.size": "--size",
    "problems": "--problem",
    "reference": "--reference",
    "seed": "--seed",
    "seeds": "--seeds",
    "sharing": "--sharing",
    "source": "FILE",
    "switches": "--switch",
    "target": "--target",
    "total.candidates": "--total-candidates",
    "total.cost_usd": "--total-cost",
}
"""Flag or argument of the submitting commands by the field that it sets."""
_PARTS = {"roofline_guidance": "roofline"}
"""Names for ``--without`` of a method's parameters; others are called alike."""
MATRIX_SUFFIXES = (".toml", ".yaml", ".yml", ".json")
"""Of the file of an experiment, whose fields have their own names."""
MAX_QUOTED = 60
_WORDING = re.compile(r"^(Input|String|List|Tuple|Dictionary) should ")


def invalid(error: ValidationError, within: str = "", request: type[BaseModel] | None = None) -> InvalidInput:
    """Return the error for the first field that is wrong, as the service would say it of the whole request.

    ``within`` is the field that was validated alone, ``request`` the type that names what a misspelt one may mean.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(part for part in ("body", within, field_path(first) if first["loc"] else "") if part)
    if first["type"] == "extra_forbidden" and request is not None:
        return InvalidInput(f"{where}: {unknown_field(request, first['loc'])}", where=where)
    return InvalidInput(f"{where}: {first['msg']}", where=where)


def in_flags(message: str, where: str | None, typed: Sequence[str]) -> tuple[str, str | None]:
    """Return an error's message and place in words of the command line, whose arguments are ``typed``.

    A field keeps its name where no flag became it, as where a matrix file gave it.
    """
    if where is None:
        return message, None
    place = _as_typed(where, typed)
    subject, colon, rest = message.partition(": ")
    if colon and subject == where:
        return f"{place}: {plain(rest)}", place
    return message, place


def plain(message: str) -> str:
    """Return a message of the validation's without its words for types."""
    return _WORDING.sub("must ", message.removeprefix("Value error, ")).partition(", unable to ")[0]


def flag_as_typed(flag: str, typed: Sequence[str], beginning: str = "") -> str | None:
    """Return a flag with the last value typed for it that has this beginning, e.g. ``--set elites=9``; None if none."""
    values = [value for value in _values(flag, typed) if value.startswith(beginning)]
    return f"{flag} {shorten(values[-1])}" if values else None


def shorten(value: str) -> str:
    """Return a value that is short enough to be quoted."""
    return value if len(value) <= MAX_QUOTED else f"{value[:MAX_QUOTED]}..."


def _as_typed(where: str, typed: Sequence[str]) -> str:
    place, _, name = where.partition(".")
    if place == "path":
        return name.upper()
    flags = list(_flags_of(where.removeprefix("body.").split(".")))
    for flag, beginning in flags:
        text = flag_as_typed(flag, typed, beginning)
        if text is not None:
            return text
    if not flags or any(argument.endswith(MATRIX_SUFFIXES) for argument in typed):
        return where.removeprefix("body.")
    return flags[-1][0]


def _flags_of(field: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield flags that may have set a field, each with the beginning of its value; the last is named by default."""
    whole = ".".join(field)
    if field[0] == "method":
        parameter = field[1] if len(field) > 1 else ""
        yield "--set", f"{parameter}=" if parameter else ""
        if parameter and whole not in _FLAGS:
            yield f"--{parameter}", ""
            yield "--without", _PARTS.get(parameter, parameter)
        if not parameter:
            yield "--population", ""
    if field[0] == "labels" and len(field) > 1:
        yield "--label", f"{field[1]}="
    names = (".".join(field[:length]) for length in range(len(field), 0, -1))
    flag = next((_FLAGS[name] for name in names if name in _FLAGS), None)
    if flag is not None:
        yield flag, ""


def _values(flag: str, typed: Sequence[str]) -> Iterator[str]:
    """Yield the values that were typed for a flag."""
    for place, argument in enumerate(typed):
        if argument == flag and place + 1 < len(typed):
            yield typed[place + 1]
        elif argument.startswith(f"{flag}="):
            yield argument.removeprefix(f"{flag}=")
