"""Jobs: requests, progress, events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, TypedDict
from uuid import UUID

from pydantic import Field, JsonValue, StringConstraints, model_validator

from cupilot.domain.evaluation import Interval, Verdict
from cupilot.domain.evolution.methods import MethodConfig
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.imported import KernelKind
from cupilot.domain.job import AgentKind, Budgets, Learning, Priority
from cupilot.domain.pool import Sharing
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.problems import Size
from cupilot.domain.roofline import Zone
from cupilot.domain.states import JobState
from cupilot.domain.strategy import Strategy
from cupilot.schemas.base import Request, Response, open_enum
from cupilot.schemas.calls import Spending

JobStateText = Annotated[str, open_enum(JobState)]
Label = Annotated[str, StringConstraints(min_length=1, max_length=64)]
LabelValue = Annotated[str, StringConstraints(max_length=200)]


class JobFilter(TypedDict, total=False):
    """Filter of a list of jobs: they meet every condition that is not None."""

    state: str | Sequence[str] | None
    """A state, or several of which a job may have any."""
    target: Target | str | None
    problem: str | None
    """The problem's name."""
    labels: Mapping[str, str] | None
    """Labels that a job must have, with these values."""
    user: str | None
    """Name of the user who submitted it."""
    text: str | None
    """Part of the problem's name, in any case, or the beginning of the job's id."""
    device: str | None
    """Part of the device's name, in any case; jobs that are not prepared yet have none."""
    since: datetime | None
    """Time of submission, inclusive."""
    until: datetime | None
    """Time of submission, exclusive."""


class ProblemInput(Request):
    """The problem of a job: its source, or the id of one that the service knows."""

    source: str | None = Field(default=None, min_length=1)
    """The file in KernelBench's format: ``class Model(nn.Module)``, ``get_inputs()``, ``get_init_inputs()``."""
    id: str | None = Field(default=None, min_length=1, max_length=200)
    """Instead of ``source``: a built-in problem's name, or an id from ``GET /v1/problems``."""
    name: str | None = Field(default=None, min_length=1, max_length=200)
    """Its name; a built-in's own name by default."""
    size: Size | None = None
    """Of a built-in: ``small`` fits two cores, ``full`` a data-centre GPU; by default what suits the target."""
    policy: NumericsPolicy = NumericsPolicy.FP32
    """Arithmetic that a kernel may use; PyTorch is timed under the same."""

    @model_validator(mode="after")
    def _one_of_both(self) -> ProblemInput:
        if (self.source is None) == (self.id is None):
            raise ValueError("give exactly one of source and id")
        if self.size is not None and self.id is None:
            raise ValueError("size is for built-in problems, which are given by id")
        return self


class JobRequest(Request):
    """A job to start."""

    problem: ProblemInput
    target: Target
    method: MethodConfig = SceConfig()
    """The evolution algorithm and its parameters, told apart by ``name``; ``sce`` where there is none."""
    agents: AgentKind = AgentKind.PLAYBOOK
    budgets: Budgets = Budgets()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of all random choices."""
    priority: Priority = Priority.NORMAL
    labels: Annotated[dict[Label, LabelValue], Field(max_length=16)] = {}
    """For your own use; jobs can be listed by them."""
    learning: Learning = Learning()
    """Entries that the job leaves behind for later ones."""


class ImportRequest(Request):
    """A file to judge, with host code of its own: one in KernelBench's ``ModelNew`` format, or a torch extension."""

    problem: ProblemInput
    target: Target
    source: str = Field(min_length=1)
    """The file: plain torch, ``load_inline`` or Triton, with ``class ModelNew(nn.Module)``, which is constructed and
    called like the reference's ``Model``; or C++ or CUDA with ``PYBIND11_MODULE`` or ``TORCH_LIBRARY``."""
    function: str | None = Field(default=None, max_length=200)
    """Of a torch extension: which of its functions is the kernel; by default the only one, or ``forward``."""
    priority: Priority = Priority.NORMAL
    labels: Annotated[dict[Label, LabelValue], Field(max_length=16)] = {}
    sharing: Sharing | None = None
    """Teams that may learn from its entry in the strategy pool; by default the service's setting. An entry on a
    problem that is not built-in is private in any case."""


class ProblemRef(Response):
    """The problem that a job works on."""

    id: UUID
    name: str
    policy: NumericsPolicy
    hash: str


class PreparationSummary(Response):
    """Facts and baseline times of a problem, from before any kernel was written."""

    op_class: str
    zone: Zone
    """Which resource limits the problem on this device."""
    intensity: float
    """Operations per compulsory byte."""
    floor_us: float
    """No correct kernel takes less time at the device's measured peaks: memory, and the best algorithms known."""
    direct_us: float | None = None
    """Time of the reference's operations as they are written, at the same peaks: no bound where a faster algorithm is
    known. None of older jobs."""
    baseline_us: Interval
    """PyTorch eager under the policy, when the problem was prepared; ``best`` has the time beside its kernel."""
    device: str
    notes: list[str] = []
    warnings: list[str] = []
    """Why a speedup on this problem says less than it seems; with any, no leaderboard lists it."""


class BestSummary(Response):
    """The best proven kernel so far."""

    candidate: UUID
    ordinal: int
    generation: int
    verdict: Verdict
    speedup: Interval
    """Over PyTorch eager, with its 95 % interval."""
    speedup_over_compile: Interval | None = None
    """Over ``torch.compile``; measured when the job confirms its best kernel."""
    kernel_us: Interval
    baseline_us: Interval
    """PyTorch eager, measured in turns with the kernel: the times that ``speedup`` compares."""
    strategy: Strategy
    """As aligned with what the code does."""
    kernel_kind: KernelKind = KernelKind.PLANNED
    """``imported``: a file that somebody had; the strategy is what its text shows."""


class StateEntry(Response):
    """A state that a job has entered."""

    state: JobStateText
    at: datetime
    reason: str | None = None


class OtherMethod(Response):
    """A method of a newer service, which this version does not know."""

    name: str


class JobView(Response):
    """A job with its state and progress."""

    id: UUID
    state: JobStateText
    final: bool
    """True if no further events follow."""
    reason: str | None = None
    """Machine-readable: why it ended as it did, or what it waits for."""
    message: str | None = None
    problem: ProblemRef
    target: Target
    agents: AgentKind
    method: Annotated[MethodConfig | OtherMethod, Field(union_mode="left_to_right")]
    """Told apart by ``name``; methods may be added."""
    budgets: Budgets
    seed: int
    priority: Priority
    labels: dict[str, str]
    learning: Learning = Learning()
    generation: int
    """The present generation, from 0."""
    generations: int
    """Largest number that there will be."""
    candidates: int
    """Candidates made so far."""
    verdicts: dict[str, int]
    """Finished candidates by verdict."""
    candidate_states: dict[str, int]
    """All candidates by state."""
    best: BestSummary | None = None
    queue_position: int | None = None
    """Open jobs before this one; only while it is queued."""
    wall_seconds: float
    """Since the start of preparation, without pauses and times in which the service was away; 0 while queued."""
    gpu_seconds: float
    cost_usd: float
    """Charged for model calls."""
    spending: list[Spending] = []
    """The same by role and model."""
    preparation: PreparationSummary | None = None
    author: str | None = None
    """The user who asked for it; null for jobs of before this was kept."""
    history: list[StateEntry] = []
    """Every state that it has entered, and when, oldest first."""
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    pruned_at: datetime | None = None
    """Time at which logs, prompts, answers and unproven kernels' sources were pruned by the operator's retention."""
    cancel_requested_at: datetime | None = None
    paused_at: datetime | None = None
    retry_of: UUID | None = None
    """The ended job that this one goes on with."""
    forked_from: UUID | None = None
    """The candidate, perhaps of another job, that this one began from."""
    retry_after_seconds: float | None = None
    """Seconds until a client should ask again; null once final."""


class JobSummary(Response):
    """A job in a list."""

    id: UUID
    state: JobStateText
    final: bool
    reason: str | None = None
    problem: ProblemRef
    target: Target
    agents: AgentKind
    priority: Priority
    labels: dict[str, str]
    generation: int
    generations: int
    candidates: int
    best_verdict: Verdict | None = None
    best_speedup: float | None = None
    """Median over PyTorch eager."""
    cost_usd: float
    author: str | None = None
    """The user who asked for it."""
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None


class JobPage(Response):
    """Jobs, newest first."""

    items: list[JobSummary]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""


class EventView(Response):
    """An event in the life of a job."""

    id: int
    kind: str
    """E.g. ``job.evolving``, ``candidate.evaluated``."""
    job: UUID | None = None
    candidate: UUID | None = None
    step: UUID | None = None
    data: dict[str, JsonValue]
    created_at: datetime


class EventPage(Response):
    """Events in the order in which they happened."""

    items: list[EventView]
    next_after: int
    """Give it as ``after`` to get what follows."""
