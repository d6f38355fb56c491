"""Experiments: the requested matrix, the progress of its jobs, and the report."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field, JsonValue, StringConstraints

from cupilot.domain.evaluation import Interval
from cupilot.domain.experiments.matrix import Arm, Total
from cupilot.domain.job import AgentKind, Budgets, Priority
from cupilot.domain.problem import Target
from cupilot.domain.states import ExperimentState
from cupilot.reports.outcomes import JobOutcome
from cupilot.schemas.base import Request, Response, open_enum
from cupilot.schemas.jobs import JobSummary, Label, LabelValue, ProblemInput

ExperimentStateText = Annotated[str, open_enum(ExperimentState)]
MAX_SEEDS = 100
"""Of an experiment."""
ArmName = Annotated[str, StringConstraints(min_length=1, max_length=100)]
SwitchValues = Annotated[list[JsonValue], Field(min_length=1, max_length=8)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


class ArmInput(Request):
    """An arm to compare."""

    name: ArmName
    method: dict[str, JsonValue] = {}
    """Fields of this arm's method that differ from the experiment's `method`; or another method, by its `name`."""
    agents: AgentKind | None = None
    """The experiment's, where it is left out."""


class ExperimentRequest(Request):
    """A matrix: arms x problems x seeds, one job each."""

    name: ArmName
    target: Target
    problems: Annotated[list[ProblemInput], Field(min_length=1, max_length=100)]
    seeds: Annotated[list[Seed], Field(min_length=1, max_length=MAX_SEEDS)]
    method: dict[str, JsonValue] = {"name": "sce"}
    """The method that the arms start from, as in `POST /v1/jobs`."""
    agents: AgentKind = AgentKind.PLAYBOOK
    arms: Annotated[list[ArmInput], Field(max_length=24)] = []
    """Arms of the experiment. Without any, the method itself is the only arm, and `switches` make it several."""
    switches: Annotated[dict[Label, SwitchValues], Field(max_length=4)] = {}
    """Fields of the method with the values to try: every arm is crossed with every combination of them."""
    reference: ArmName | None = None
    """The arm that the others are compared with; by default the first."""
    budgets: Budgets = Budgets()
    """Of each job; all arms get the same."""
    total: Total | None = None
    """Of the experiment; shared equally by its jobs."""
    device_class: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    """E.g. `sm_90`: the kind of GPU that every job runs on; by default the only one that has live workers."""
    live_pool: bool = False
    """By default no job sees pool entries made after the experiment began: its jobs would teach each other."""
    priority: Priority = Priority.NORMAL
    labels: Annotated[dict[Label, LabelValue], Field(max_length=15)] = {}
    """For its jobs."""


class ExperimentPlan(Response):
    """The experiment that a matrix would become; nothing was made."""

    jobs: int
    arms: list[Arm]
    reference: str
    problems: list[str]
    seeds: list[int]
    budgets: Budgets
    """Of each job, after sharing the total."""
    at_most: Total
    """Upper bound of what all jobs together can use; money only where an arm has agents that may call models."""
    device_class: str | None = None
    notes: list[str] = []
    """Questions that the matrix will not be able to answer, and why."""


class ArmProgress(Response):
    """Progress of an arm."""

    name: str
    jobs: int
    states: dict[str, int]
    """Jobs by state."""


class ExperimentSummary(Response):
    """An experiment in a list."""

    id: UUID
    name: str
    state: ExperimentStateText
    final: bool
    """True if all jobs are final."""
    target: Target
    jobs: int
    finished: int
    """Jobs that are final."""
    cost_usd: float
    gpu_seconds: float
    created_at: datetime
    finished_at: datetime | None = None


class ExperimentView(ExperimentSummary):
    """An experiment with its state and progress."""

    arms: list[Arm]
    reference: str
    problems: list[str]
    seeds: list[int]
    budgets: Budgets
    at_most: Total
    device_class: str | None = None
    live_pool: bool
    progress: list[ArmProgress]
    cancel_requested_at: datetime | None = None
    retry_after_seconds: float | None = None
    """Seconds until a client should ask again; null once final."""


class ExperimentPage(Response):
    """Experiments, newest first."""

    items: list[ExperimentSummary]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""


class ExperimentJob(Response):
    """A job of an experiment."""

    position: int
    """Place in the order of work, from 0."""
    arm: str
    seed: int
    job: JobSummary


class ExperimentJobPage(Response):
    """An experiment's jobs in the order of work."""

    items: list[ExperimentJob]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""
    next_after: int | None = None
    """The same for ``after``, which ``cursor`` replaces."""


class SpeedSummary(Response):
    """Speed of the jobs' best kernels over PyTorch eager, as the field counts it."""

    fast: dict[str, float]
    """KernelBench's fast_p by p: the share of all finished jobs whose best kernel is proven and more than p times as
    fast; `0` is the share that has a kernel at all."""
    over_2x: int
    """Jobs whose best kernel is more than twice as fast."""
    geometric_mean: float | None = None
    """Of the solved jobs, as are the quantiles; null where there are none."""
    quantiles: dict[str, float] = {}
    """`10`, `25`, `50`, `75` and `90` per cent, interpolated."""


class ArmReport(Response):
    """One arm, over all its jobs."""

    arm: str
    jobs: int
    finished: int
    """Solved and unsolved: what the numbers rest on."""
    solved: int
    """Jobs with a proven kernel."""
    lost: int
    """Cancelled, or failed through no fault of the arm; left out."""
    too_few: bool
    """Fewer finished jobs than any 95 % interval needs."""
    speeds: SpeedSummary | None = None
    """Null before a job is finished."""
    validity: float | None = None
    """Share of judged candidates that count."""
    validity_interval: Interval | None = None
    """Bootstrap over jobs."""
    judged: int
    failures: dict[str, int]
    cost_usd: float
    prompt_tokens: int
    completion_tokens: int
    gpu_seconds: float
    wall_seconds: float
    """Of all finished jobs added up, like the four before."""
    wall_seconds_median: float | None = None
    """Of the finished jobs; null where there are none."""
    left_out_usd: float = 0.0
    """Charged for its other jobs: open, cancelled or lost. Not in ``cost_usd``."""
    reserved_usd: float = 0.0
    """Worst cost of calls of all its jobs whose true cost is not known. Not in ``cost_usd``."""


class CellReport(Response):
    """One arm on one problem."""

    arm: str
    problem: str
    jobs: int
    """Finished."""
    solved: int
    speedup: float | None = None
    """Median of the best speedups of the solved jobs."""
    low: float | None = None
    high: float | None = None
    """The smallest and the largest."""
    interval: Interval | None = None
    """Order-statistic interval of the median; null where there are too few jobs."""
    too_few: bool


class ComparisonReport(Response):
    """Matched jobs of two sides, which differ in one thing only."""

    kind: str
    """`arm`: an arm against the reference; `switch`: a switch's second value against its first, over all other arms."""
    subject: str
    """The arm, or e.g. `pool=off`."""
    reference: str
    blocks: int
    """Pairs of problem and seed in which both sides are finished on the same kind of device."""
    wins: int
    """Blocks in which the subject's best kernel is the faster, or only the subject has one."""
    losses: int
    ties: int
    ratio: float | None = None
    """Typical speedup of the subject over that of the reference (Hodges-Lehmann), where both have a kernel."""
    interval: Interval | None = None
    """Of the ratio, from signed ranks; null where there are too few pairs."""
    sign_p: float
    signed_rank_p: float
    adjusted_p: float
    """Holm's, of the signed-rank test, over all comparisons of this kind."""
    too_few: bool
    claim: str
    """`faster`, `slower`, `no difference shown`, or `too few pairs to say`. Where the pairs won and lost do not say the
    same, `faster in ratio; wins no more pairs than it loses` or `slower in ratio; loses no more pairs than it wins`."""


class ConvergencePoint(Response):
    """An arm on a problem after a generation."""

    arm: str
    problem: str
    generation: int
    """From 1."""
    jobs: int
    """Jobs that have a proven kernel by then."""
    speedup: float
    """Median of their highest medians so far, whatever the verdict of those that count."""
    low: float
    high: float


class ExperimentReport(Response):
    """Results of the arms so far, with the comparisons that the data allow."""

    experiment: ExperimentView
    arms: list[ArmReport]
    cells: list[CellReport]
    comparisons: list[ComparisonReport]
    convergence: list[ConvergencePoint]
    notes: list[str]
    """Warnings that a reader has to know before using a number."""
    outcomes: list[JobOutcome]
