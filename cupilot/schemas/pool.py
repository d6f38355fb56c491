"""The strategy pool: entries, search, sharing, transfer, statistics."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field, model_validator

from cupilot.domain.pool import PoolAnswer, PoolEntry, PoolQuestion, Sharing
from cupilot.schemas.base import Request, Response


class PoolEntryView(Response):
    """An entry as your team may see it."""

    id: UUID
    own: bool
    """True if your team has it; others' are shown only while they are shared, and only of built-in problems."""
    sharing: Sharing
    measured_here: bool
    """False for an imported claim."""
    created_at: datetime
    """Time at which it entered the pool."""
    entry: PoolEntry


class PoolPage(Response):
    """Entries, newest first."""

    items: list[PoolEntryView]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""


class PoolSearchRequest(Request):
    """A search by the problem of a prepared job of your team, or by a description."""

    job: UUID | None = None
    """A job whose problem is prepared; its techniques' preconditions are checked against the measured facts."""
    question: PoolQuestion | None = None
    """A description; of preconditions, only the catalogue's are checked."""
    limit: Annotated[int, Field(ge=1, le=50)] = 8

    @model_validator(mode="after")
    def _one_of_both(self) -> PoolSearchRequest:
        if (self.job is None) == (self.question is None):
            raise ValueError("give exactly one of job and question")
        return self


class PoolSearchResult(PoolAnswer):
    """The pool's answer to a search."""

    question: PoolQuestion
    """As it was asked."""


class PoolShareRequest(Request):
    """Your team's entries to share, or to withdraw."""

    sharing: Sharing
    """``private`` withdraws."""
    entries: Annotated[list[UUID], Field(max_length=1_000)] = []
    job: UUID | None = None
    """All entries that this job made."""

    @model_validator(mode="after")
    def _something(self) -> PoolShareRequest:
        if bool(self.entries) == (self.job is not None):
            raise ValueError("give either entries or a job")
        return self


class PoolShareResult(Response):
    """The result of sharing or withdrawing entries."""

    changed: int
    """Entries that have this sharing now and had another before."""
    withheld: int = 0
    """Entries that stay private: on a problem that is not built-in, or imported claims."""


class BadLine(Response):
    """A line that was not imported."""

    line: int
    """From 1."""
    reason: str


class PoolImportResult(Response):
    """The result of an import. Good lines are kept whatever the others are."""

    lines: int
    """Lines that were not empty."""
    added: int
    known: int
    """Entries that the pool had already."""
    bad: list[BadLine]


class TechniqueStatistics(Response):
    """Results of one technique on one class of operators, as far as your team may see."""

    technique: str
    op_class: str
    target: str
    tries: int
    """Evaluations by this cluster."""
    wins: int
    failures: dict[str, int]
    median_speedup: float | None
    """Of those that count, over eager; of whole strategies that use it."""
    credits: int
    """Winners for which it was measured what the technique itself is worth."""
    median_credit: float | None
    """Speed with it over speed without."""
    imported: int


class PoolStatistics(Response):
    """Contents of the pool, as far as your team may see."""

    entries: int
    measured: int
    imported: int
    shared_by_us: int
    shared_with_us: int
    problems: int
    references: int
    """Different descriptions: what similarity is measured on."""
    techniques: list[TechniqueStatistics]
