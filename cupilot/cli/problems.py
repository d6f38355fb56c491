"""Resolve the problem that the user names: a file, the standard input, a built-in, or one of the team's by its id."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

from pydantic import ValidationError

from cupilot.cli.flags import invalid
from cupilot.domain import problems as builtin
from cupilot.domain.errors import InvalidInput, InvalidProblem
from cupilot.domain.problem import MAX_SOURCE_BYTES, NumericsPolicy, check_source
from cupilot.domain.problems import Size
from cupilot.schemas import ProblemInput

MAX_NAME = 200
"""Characters of a problem's name."""


def resolve(reference: str, *, name: str | None, policy: NumericsPolicy, size: Size | None) -> ProblemInput:
    """Return the problem as the service takes it; its text is checked here, so that mistakes show without a server."""
    path = Path(reference)
    if reference == "-":
        return _from_text(sys.stdin.buffer.read(MAX_SOURCE_BYTES + 1), name or "stdin", "standard input", policy, size)
    if path.is_dir() and not builtin.is_name(reference):
        raise InvalidInput(f"{reference} is a folder", hint="name a problem file in it", where="PROBLEM")
    if path.exists() and not path.is_dir():
        size_on_disk = path.stat().st_size
        if size_on_disk > MAX_SOURCE_BYTES:
            raise _too_large(f"{size_on_disk:,}", reference)
        with path.open("rb") as file:
            return _from_text(file.read(MAX_SOURCE_BYTES + 1), name or path.stem[:MAX_NAME], reference, policy, size)
    if builtin.is_name(reference) or _is_id(reference):
        return _input(id=reference, name=name, policy=policy, size=size)
    raise InvalidInput(
        f"{reference} is neither a file, a built-in problem, nor the id of one of your team's",
        hint=_suggestion(reference),
        where="PROBLEM",
    )


def _too_large(size: str, where: str) -> InvalidProblem:
    return InvalidProblem(
        f"the problem file has {size} bytes; at most {MAX_SOURCE_BYTES:,} are accepted",
        hint="make large tensors in get_inputs() rather than writing them out",
        where=where,
    )


def _is_id(reference: str) -> bool:
    try:
        return str(uuid.UUID(reference)) == reference
    except ValueError:
        return False


def _from_text(data: bytes, name: str, where: str, policy: NumericsPolicy, size: Size | None) -> ProblemInput:
    if size is not None:
        raise InvalidInput("only built-in problems have sizes", where="--size")
    if len(data) > MAX_SOURCE_BYTES:  # no more was read
        raise _too_large(f"more than {MAX_SOURCE_BYTES:,}", where)
    try:
        source = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidProblem("the problem file is not UTF-8 text", where=where) from error
    try:
        check_source(source)
    except InvalidProblem as error:
        line = (error.where or "").partition(":")[2]
        raise InvalidProblem(error.message, hint=error.hint, where=f"{where}:{line}" if line else where) from error
    return _input(source=source, name=name, policy=policy)


def _input(**fields: object) -> ProblemInput:
    try:
        return ProblemInput.model_validate(fields)
    except ValidationError as error:
        raise invalid(error, "problem") from error


def _suggestion(reference: str) -> str:
    if reference.endswith(".py") or "/" in reference:
        return "there is no such file"
    return builtin.suggestion(reference)
