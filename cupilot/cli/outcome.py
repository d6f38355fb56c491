"""Define exit codes, and print errors: one line of what happened and one of what to do next, or JSON.

The group of all commands runs each in :func:`outcome`, so that no command handles errors itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import typer

from cupilot.cli.flags import flag_as_typed, in_flags, plain
from cupilot.cli.text import clean
from cupilot.client import ApiError
from cupilot.domain.errors import CupilotError, InvalidInput, NotFound, Pruned, Unavailable

if TYPE_CHECKING:
    from cupilot.schemas import JobView

_AS_JSON = "cupilot.cli.as_json"
"""Key in the context's ``meta``, which all contexts of a call share."""
_TYPED = "cupilot.cli.typed"
"""The same for the arguments of the call."""
UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""Base of the errors that parsing raises, which Typer does not export: it comes with Typer or with Click."""


class Exit(IntEnum):
    """Exit codes of the process."""

    OK = 0
    FAILED = 1
    """The job failed, was cancelled or has no proven kernel; or its state, your role or a quota does not
    allow the request."""
    USAGE = 2
    """Wrong options, or an input that is not acceptable."""
    UNREACHABLE = 3
    """No server, one that refuses the key, or one that failed."""
    NOT_FOUND = 4
    INTERRUPTED = 130


NEXT = {
    Exit.FAILED: "cupilot list shows your team's jobs, cupilot whoami what your key may do",
    Exit.USAGE: "the command with --help lists what it takes, with examples",
    Exit.UNREACHABLE: "cupilot doctor checks this machine; cupilot up --detach starts a service here",
    Exit.NOT_FOUND: "cupilot list shows your team's jobs",
}
"""Next steps after errors that name none themselves."""
_NEXT_OF_CODE = {
    "unauthorized": "keep a valid key with cupilot login URL, or set CUPILOT_API_KEY; an admin makes one with "
    "cupilot key create",
    "no_result": "cupilot status JOB says why",
}
"""Next steps after errors of the service whose own advice, if any, is for programs."""


def exit_of(job: JobView) -> Exit:
    """Return the exit code of a job's final state; 0 for a job that is not final."""
    lost = job.state in ("failed", "cancelled") or job.best is None
    return Exit.FAILED if job.final and lost else Exit.OK


def errors_as_json(context: typer.Context, value: bool) -> bool:
    """Set that the command's errors are printed as JSON if it was called with ``--json``."""
    context.meta[_AS_JSON] = value
    return value


def errors_always_as_json(context: typer.Context, value: bool) -> bool:
    """Set that the command's errors are printed as JSON, with or without ``--json``."""
    context.meta[_AS_JSON] = True
    return value


def note_typed(context: typer.Context, arguments: Sequence[str]) -> None:
    """Keep the arguments of the call for errors about them."""
    context.meta[_TYPED] = tuple(arguments)


@contextmanager
def outcome(context: typer.Context) -> Iterator[None]:
    """Turn errors into a message and an exit code; a Ctrl-C into 130."""
    try:
        yield
    except ApiError as error:
        code = _code_of_answer(error)
        _show(error, code, context)
        raise typer.Exit(code) from error
    except CupilotError as error:
        code = _code_of_error(error)
        _show(error, code, context)
        raise typer.Exit(code) from error
    except OSError as error:
        if error.filename is None:  # a pipe that was closed, for instance
            raise
        hint = "check the path, its permissions, and the room on its disk"
        _show(InvalidInput(f"{error.filename}: {error.strerror}", hint=hint), Exit.USAGE, context)
        raise typer.Exit(Exit.USAGE) from error
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        _show(_usage(error, context.meta[_TYPED]), Exit.USAGE, context)
        raise typer.Exit(Exit.USAGE) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(Exit.INTERRUPTED) from error


def _code_of_answer(error: ApiError) -> Exit:
    if error.code == "no_result" or error.status in (403, 409):
        return Exit.FAILED
    if error.status in (404, 410):
        return Exit.NOT_FOUND
    if error.status in (400, 413, 415, 422):
        return Exit.USAGE
    return Exit.UNREACHABLE


def _code_of_error(error: CupilotError) -> Exit:
    if isinstance(error, NotFound | Pruned):
        return Exit.NOT_FOUND
    if isinstance(error, Unavailable):
        return Exit.UNREACHABLE
    return Exit.USAGE if error.status == 422 else Exit.FAILED


def _usage(error: Any, typed: Sequence[str]) -> InvalidInput:
    """Return what is wrong with the arguments of a command in the form of all other errors."""
    command = error.ctx.command_path if error.ctx is not None else "cupilot"
    hint = f"{command} --help lists what it takes, with examples"
    flag = next((name for name in getattr(getattr(error, "param", None), "opts", ()) if name.startswith("--")), None)
    if flag is None or type(error).__name__ == "MissingParameter":
        return InvalidInput(error.format_message(), hint=hint)
    place = flag_as_typed(flag, typed) or flag
    return InvalidInput(f"{place}: {plain(error.message)}", hint=hint, where=place)


def _show(error: ApiError | CupilotError, exit_code: Exit, context: typer.Context) -> None:
    typed = context.meta.get(_TYPED, ())
    message, where = in_flags(error.message, error.where, typed)
    hint = _NEXT_OF_CODE.get(error.code, error.hint)
    request_id = getattr(error, "request_id", None)
    if context.meta.get(_AS_JSON, "--json" in typed):
        fields = {"code": error.code, "message": message, "hint": hint, "where": where}
        typer.echo(json.dumps({"error": fields | {"request_id": request_id}}))
        return
    typer.echo(f"error: {clean(message)}", err=True)
    if where:
        typer.echo(f"  where: {clean(where)}", err=True)
    typer.echo(f"  next: {clean(hint or NEXT[exit_code])}", err=True)
    typer.echo(f"  code: {clean(error.code)}" + (f", request {clean(request_id)}" if request_id else ""), err=True)
