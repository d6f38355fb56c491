"""Turns what an imported file's code raises into errors that its author can use: stable codes, the file's own lines."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gpu_worker.targets.base import RunnerError

MAX_FRAMES = 4
MAX_ERROR_LINES = 12
_COMPILING = ("Error building extension", "Error compiling objects")
_COMPILER_ERROR = re.compile(r"^.*\b(?:fatal )?error\b ?:.*$|^.*undefined reference to.*$", re.MULTILINE)
_ILLEGAL = ("illegal memory access", "misaligned address", "illegal instruction")


@contextmanager
def reported(path: Path | None, code: str, what: str) -> Iterator[None]:
    """Turn whatever the block raises into :class:`RunnerError`; ``path`` is the file whose lines are told."""
    try:
        yield
    except (RunnerError, MemoryError):
        raise
    except BaseException as error:  # SystemExit too: the file does not decide when this process ends
        raise explained(error, path, code, what) from None


def explained(error: BaseException, path: Path | None, code: str, what: str) -> RunnerError:
    """Return one error of the file's as the judge reports it."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return RunnerError("out_of_memory", f"{what}: {text[:500]}", code="out_of_memory")
    if text.startswith(_COMPILING):
        return RunnerError(
            "compile_error",
            f"{what}: the extension does not compile:\n{compiler_errors(text)}",
            code="compile_error",
            log=text[:4000],
        )
    if "Ninja is required" in text:
        message = f"{what}: this machine has no ninja, which torch.utils.cpp_extension needs: pip install ninja"
        return RunnerError("infrastructure", message, code="no_ninja")
    if isinstance(error, SyntaxError):
        return RunnerError("compile_error", f"{what}: line {error.lineno}: {error.msg}", code=code)
    kind = "illegal_access" if any(word in text for word in _ILLEGAL) else "crash"
    message = f"{what}: {type(error).__name__}: {text[:1500]}\n{_frames(error, path)}".rstrip()
    return RunnerError(kind, message, code=code)


def compiler_errors(log: str) -> str:
    """Return the lines of a build log that say what is wrong."""
    lines = [line.strip() for line in _COMPILER_ERROR.findall(log)]
    return "\n".join(dict.fromkeys(lines[:MAX_ERROR_LINES])) or log[-2000:]


def check_arguments(called: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a class whose constructor does not take the reference's arguments, without calling it."""
    try:
        inspect.signature(called).bind(*args, **kwargs)
    except TypeError as error:
        arguments = ", ".join([*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())])
        message = f"ModelNew({arguments[:300]}), the arguments of get_init_inputs(), does not work: {error}"
        raise RunnerError("launch_error", message, code="constructor_arguments") from None
    except ValueError:  # no signature to look at: calling it will tell
        return


def _frames(error: BaseException, path: Path | None) -> str:
    """Return the last frames of the traceback that lie in the file."""
    name = path.name if path is not None else "modelnew.py"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == name]
    return "\n".join(f"  line {frame.lineno}, in {frame.name}: {frame.line}" for frame in frames[-MAX_FRAMES:])
