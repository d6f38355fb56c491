"""Candidates, their lineage, and the winner's report."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from cupilot.domain.attribution import Credit
from cupilot.domain.evaluation import Evaluation, Preparation, Verdict
from cupilot.domain.imported import KernelKind
from cupilot.domain.kernel import LaunchPlan
from cupilot.domain.problem import Target
from cupilot.domain.states import CandidateState
from cupilot.domain.strategy import Strategy
from cupilot.schemas.base import Response, open_enum
from cupilot.schemas.jobs import JobView
from cupilot.schemas.service import ProblemView

CandidateStateText = Annotated[str, open_enum(CandidateState)]


class CandidateSummary(Response):
    """A candidate in a list."""

    id: UUID
    ordinal: int
    generation: int
    operator: str
    state: CandidateStateText
    reason: str | None = None
    verdict: Verdict | None = None
    failure: str | None = None
    """Kind of failure that kept it from climbing higher, e.g. ``wrong_value``."""
    speedup: float | None = None
    """Median over PyTorch eager, of a kernel that counts."""
    fitness: float | None = None
    utilisation: float | None = None
    """0 to 1, in the zone's own resource."""
    techniques: list[str]
    parents: list[UUID]
    """The fitter first."""
    repair_rounds: int
    survives: bool
    """True if selection kept it for the next generation."""
    created_at: datetime
    finished_at: datetime | None = None


class CandidatePage(Response):
    """Candidates by ordinal."""

    items: list[CandidateSummary]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""
    next_after: int | None = None
    """The same for ``after``, which ``cursor`` replaces."""


class KernelView(Response):
    """Source and launch plan."""

    hash: str
    target: Target
    source: str
    """Empty once it was pruned."""
    pruned_at: datetime | None = None
    """Time at which the operator's retention pruned the source of a kernel that did not prove itself."""
    kind: KernelKind = KernelKind.PLANNED
    """``imported``: a file with host code of its own, judged as such."""
    plan: LaunchPlan | None = None
    """Null for an imported file."""


class LineageEntry(Response):
    """An ancestor, or the candidate itself."""

    candidate: UUID
    ordinal: int
    generation: int
    operator: str
    parents: list[UUID]
    verdict: Verdict | None = None
    speedup: float | None = None
    techniques: list[str]


class CandidateView(CandidateSummary):
    """Everything about a candidate."""

    job: UUID
    strategy: Strategy | None = None
    """As it was asked for."""
    aligned_strategy: Strategy | None = None
    """As the code really follows it."""
    fidelity: float | None = None
    """Share of the claimed techniques that were found in the code, 0 to 1."""
    name: str | None = None
    """Name that the kernel's writer gave it, if the method asks for one."""
    insight: str | None = None
    """Why its writer thought it fast, where the method asks for that."""
    inspirations: list[UUID] = []
    """Candidates whose insights or kernels its writer was shown beside the parents."""
    repairs: list[str] = []
    """Changes that the Revisor reported, one entry a round: repairs, then performance revisions, kept or not."""
    kernel: KernelView | None = None
    evaluation: Evaluation | None = None
    credits: list[Credit] = []
    """Measured contribution of each technique, of a winner whose job attributed its gain."""
    lineage: list[LineageEntry]
    """From the candidate itself up to its roots, newest first."""
    after_quarantine: bool = False
    """True if an ancestor beat the floor and is in quarantine: the kernel is the Revisor's answer about it, or comes of
    one, and ought to be read before it is used."""
    warnings: list[str] = []
    """Why a speedup on this problem says less than it seems; with any, no leaderboard lists it."""


class ExportOffer(Response):
    """A format of exports, and whether the kernel can be exported in it."""

    format: str
    """``torch``, ``kernelbench``, ``cupy`` or ``bundle``; more may be added."""
    refused: str | None = None
    """Why this kernel cannot be had in this format; null where it can."""


class ExportList(Response):
    """The forms in which a kernel can be exported."""

    candidate: UUID
    ordinal: int
    items: list[ExportOffer]


class GenerationPoint(Response):
    """Outcome of one generation of a job."""

    generation: int
    """From 1."""
    candidates: int
    counting: int
    """Those of them with a proven kernel."""
    speedup: float | None = None
    """Highest median of the generation over PyTorch eager; null where none counts."""
    best_so_far: float | None = None
    """Highest median of it and those before; the job's best goes by verdict and lower bound, and may be another."""


class Report(Response):
    """The winner of a job, with the evidence."""

    job: JobView
    problem: ProblemView
    candidate: CandidateView
    preparation: Preparation
    """Facts of the reference, tolerances, admitted input laws, peaks of the device."""
    headline: str
    """One honest sentence."""
    next_steps: list[str]
    trajectory: list[GenerationPoint] = []
    """Outcome of each generation, the first one first."""
