"""Two candidates side by side, and the leaderboards."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from pydantic import JsonValue

from cupilot.domain.evaluation import Interval, Verdict
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.strategy import Strategy
from cupilot.schemas.base import Response


class ComparedCandidate(Response):
    """One side of a comparison."""

    job: UUID
    candidate: UUID
    ordinal: int
    verdict: Verdict | None = None
    device: str | None = None
    driver: str | None = None
    kernel_us: Interval | None = None
    """Time at which it was timed against PyTorch eager."""
    speedup: Interval | None = None
    """Over PyTorch eager; only of a kernel that counts."""
    speedup_over_compile: Interval | None = None
    strategy: Strategy | None = None
    """As aligned with the code, else as asked for."""


class ChangedTechnique(Response):
    """A technique that both strategies use, with other parameters."""

    id: str
    parameters: dict[str, list[JsonValue]]
    """First's and second's value of each parameter that differs; null where one does not give it."""


class StrategyDifference(Response):
    """The changes from the first strategy to the second."""

    added: list[str]
    removed: list[str]
    changed: list[ChangedTechnique]
    reordered: bool
    """True if both have the same techniques in a different order."""


class PlanChange(Response):
    """One value of the launch plan that differs."""

    where: str
    """E.g. ``launches.0.grid`` or ``tunables.BLOCK``."""
    first: JsonValue
    second: JsonValue


class MetricPair(Response):
    """A metric of both candidates; null where one was not measured."""

    name: str
    first: float | None = None
    second: float | None = None


class CandidateComparison(Response):
    """Two candidates for the same problem, from the first to the second."""

    first: ComparedCandidate
    second: ComparedCandidate
    relative_speedup: Interval | None = None
    """Speed of the second as a multiple of the first's, with its 95 % interval; null where that cannot be said."""
    relative_note: str
    """Source of the relative speedup, or the reason that it cannot be said."""
    strategy: StrategyDifference | None = None
    """Null where one has no strategy."""
    source_diff: str
    """Unified diff of the sources; empty where they are equal."""
    plan: list[PlanChange]
    metrics: list[MetricPair]


class LeaderboardSummary(Response):
    """The leaderboard of one problem on one kind of device."""

    problem: str
    """The problem's hash, by which the leaderboard is asked for; it covers source and policy."""
    name: str
    policy: NumericsPolicy
    builtin: bool = False
    """True if the problem ships with the service; of any other, only your own team's kernels stand here."""
    target: Target
    device: str
    """Model name, e.g. ``NVIDIA H200``."""
    kernels: int
    """Distinct kernels that count."""
    best_speedup: float
    """Median over PyTorch eager."""


class LeaderboardList(Response):
    """Leaderboards, by problem and device."""

    items: list[LeaderboardSummary]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""
    next_after: int | None = None
    """The same for ``after``, which ``cursor`` replaces."""


class LeaderboardEntry(Response):
    """A proven kernel and its place."""

    rank: int
    own: bool
    """True if it is your team's. Another team's stands here because that team has opened it to all, for a built-in
    problem."""
    team: str | None = None
    """Null for another team's, which is not named; a cluster admin sees it."""
    job: UUID | None = None
    """With candidate and ordinal null for another team's."""
    candidate: UUID | None = None
    ordinal: int | None = None
    kernel: str
    """Content hash; the same kernel stands here once, with its latest measurement."""
    verdict: Verdict
    speedup: Interval
    """Over PyTorch eager, at that measurement."""
    speedup_over_compile: Interval | None = None
    kernel_us: Interval
    techniques: list[str]
    driver: str | None = None
    torch: str | None = None
    measured_at: datetime


class Leaderboard(Response):
    """Proven kernels for one problem on one kind of device, the fastest first."""

    problem: str
    name: str
    policy: NumericsPolicy
    builtin: bool = False
    """True if the problem ships with the service; of any other, only your own team's kernels stand here."""
    device: str
    items: list[LeaderboardEntry]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""
    next_after: int | None = None
    """The same for ``after``, which ``cursor`` replaces."""


class Measurement(Response):
    """One measurement of a kernel."""

    job: UUID
    candidate: UUID
    purpose: str
    """``evaluate`` or ``confirm``."""
    verdict: Verdict
    speedup: Interval | None = None
    """Over PyTorch eager of that day; only where the kernel counted."""
    speedup_over_compile: Interval | None = None
    kernel_us: Interval | None = None
    device: str | None = None
    device_uid: str | None = None
    driver: str | None = None
    torch: str | None = None
    measured_at: datetime


class MeasurementList(Response):
    """Every measurement of one kernel on one problem, the newest first."""

    kernel: str | None = None
    """Content hash; null where the candidate has none."""
    items: list[Measurement]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""
