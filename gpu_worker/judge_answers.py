"""The judge's answers as the supervisor takes them over: every list, string and number bounded.

The judge reads what references and kernels say, and what it says becomes part of records that are kept. The bounds
are here and not in :mod:`cupilot.domain.evaluation`, so that records that were stored before remain valid.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    StrictBool,
    TypeAdapter,
    field_validator,
)

from cupilot.domain.evaluation import MAX_LOG_CHARACTERS, Baseline, Comparison, Failure, Interval, LawResult

MAX_ITEMS = 200
"""Of any list or object but the problem's facts. A problem has about 20 input distributions and null kernels."""

NAME_CHARACTERS = 200
"""Of an input distribution or a null kernel; the longest has 20."""

MAX_NOTES = 200
NOTE_CHARACTERS = 2000
"""Of a note. Its longest parts, what a compiler or a law raised, are cut at 500."""

MAX_FACTS_BYTES = 2**18
"""Of what a runner says of its kernels, and of a failure's details, as JSON."""

MAX_COUNT = 2**53
"""Of pairs and launches: beyond, JSON's readers lose digits."""

_T = TypeVar("_T")


def _modest(data: _T) -> _T:
    """Refuse long lists, objects and strings at any depth, before anything is made of them."""
    level: list[Any] = [data]
    while level:
        for value in level:
            if isinstance(value, str) and len(value) > MAX_LOG_CHARACTERS:
                raise ValueError(f"a string of {len(value)} characters")
            if isinstance(value, list | dict) and len(value) > MAX_ITEMS:
                raise ValueError(f"a list or an object of {len(value)} items")
        containers = [value for value in level if isinstance(value, list | dict)]
        level = [item for value in containers for item in _items(value)]
    return data


def modest(data: Any) -> bool:
    """Whether the supervisor takes such data over: its lists, objects and strings at any depth are short."""
    try:
        _modest(data)
        _small(data)
    except (ValueError, RecursionError):
        return False
    return True


def _items(container: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return [*container, *container.values()] if isinstance(container, dict) else container


def _small(data: _T) -> _T:
    if len(json.dumps(data)) > MAX_FACTS_BYTES:
        raise ValueError(f"more than {MAX_FACTS_BYTES} bytes")
    return data


def _measured(interval: Interval) -> Interval:
    if not 0.0 <= interval.low <= interval.high < math.inf:
        raise ValueError("a measured interval is finite, and not negative")
    return interval


def _plausible(comparison: Comparison) -> Comparison:
    for interval in (comparison.kernel_us, comparison.baseline_us, comparison.speedup):
        _measured(interval)
    if not (0 <= comparison.pairs <= MAX_COUNT and 0 <= comparison.launches <= MAX_COUNT):
        raise ValueError("impossible numbers of pairs or launches")
    return comparison


_Name = Annotated[str, Field(max_length=NAME_CHARACTERS)]
_Note = Annotated[str, Field(max_length=NOTE_CHARACTERS)]
_Notes = Annotated[tuple[_Note, ...], Field(max_length=MAX_NOTES)]
_Failure = Annotated[Failure, BeforeValidator(_small), BeforeValidator(_modest)]


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class JudgeFindings(_Answer):
    """Findings about a kernel; see :class:`gpu_worker.judge.session.Findings`."""

    laws: Annotated[tuple[LawResult, ...], BeforeValidator(_modest)]
    comparisons: Annotated[
        tuple[Annotated[Comparison, AfterValidator(_plausible)], ...],
        Field(max_length=len(Baseline)),
        BeforeValidator(_modest),
    ]
    failure: _Failure | None
    audited: StrictBool
    lost: StrictBool
    facts: Annotated[dict[str, Any], BeforeValidator(_small), BeforeValidator(_modest)]
    notes: _Notes
    handover_us: Annotated[FiniteFloat, Field(ge=0.0)] | None

    @field_validator("laws")
    @classmethod
    def _named(cls, laws: tuple[LawResult, ...]) -> tuple[LawResult, ...]:
        if any(len(law.law) > NAME_CHARACTERS for law in laws):
            raise ValueError("the name of an input distribution is too long")
        return laws


class JudgePreparation(_Answer):
    """What the judge says of a problem; see :class:`cupilot.domain.evaluation.Preparation`."""

    facts: dict[str, Any]
    """Of :class:`cupilot.domain.problem.ProblemFacts`; the size of the message bounds it."""
    laws: Annotated[tuple[_Name, ...], Field(max_length=MAX_ITEMS)]
    tolerances: Annotated[dict[_Name, FiniteFloat], Field(max_length=MAX_ITEMS)]
    admission: Annotated[dict[_Name, StrictBool], Field(max_length=MAX_ITEMS)]
    notes: _Notes
    baseline_us: Annotated[Interval, AfterValidator(_measured)]


def failure_from(data: Any) -> Failure:
    """Return the failure that an answer holds in place of a result; raises ValidationError."""
    return _FAILURE.validate_python(data)


_FAILURE: TypeAdapter[Failure] = TypeAdapter(_Failure)


def short_notes(notes: Iterable[str]) -> list[str]:
    """Return the notes in the number and length in which they are taken over."""
    return [note[:NOTE_CHARACTERS] for note in islice(notes, MAX_NOTES)]
