"""The exception for a reference that cannot be used, in the judge and in the reference process."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from cupilot.domain.evaluation import FailureKind

REFERENCE_FILE = "reference.py"

SHAPES_BY_VALUES = "the shapes of its outputs depend on the values of its inputs"
"""Reason for which a reference is refused."""

FIXED_SHAPES = (
    "; give them shapes of their own: keep all elements beside a mask of those that count (torch.where(keep, x, 0) in"
    " place of x[keep], and keep.sum() for their number), or pad to the most that there can be"
)
"""Way out of that."""


class UnusableReference(Exception):
    """The user's file does not work; becomes the failure of the preparation."""

    def __init__(self, message: str, kind: FailureKind = FailureKind.INVALID_PROBLEM) -> None:
        super().__init__(message)
        self.kind = kind


@contextmanager
def blaming_reference(doing: str) -> Iterator[None]:
    """Turn whatever the user's code raises in here, ``SystemExit`` included, into :class:`UnusableReference`."""
    try:
        yield
    except UnusableReference:
        raise
    except BaseException as error:
        raise UnusableReference(f"{doing} failed: {_describe(error)}", _kind(error)) from error


def out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed: on the CPU, torch raises a plain RuntimeError, and ``mmap`` an OSError."""
    text = str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    if isinstance(error, UnusableReference):
        return error.kind is FailureKind.OUT_OF_MEMORY
    return isinstance(error, MemoryError) or "can't allocate memory" in text or "out of memory" in text


def _kind(error: BaseException) -> FailureKind:
    return FailureKind.OUT_OF_MEMORY if out_of_memory(error) else FailureKind.INVALID_PROBLEM


def _describe(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(REFERENCE_FILE)]
    where = f" (line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    hint = _WITHOUT_GRADIENTS if "does not require grad" in str(error) else ""
    return f"{type(error).__name__}: {str(error)[:2000]}{where}{hint}"


_WITHOUT_GRADIENTS = (
    "; forward runs without gradients: take them with torch.func.grad, or under torch.enable_grad() of copies "
    "(x.detach().requires_grad_()), of parameters too"
)
