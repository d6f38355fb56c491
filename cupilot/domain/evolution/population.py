"""Input (members) and output (proposals, reasons to stop) of a method. Pure data."""

from __future__ import annotations

from enum import StrEnum

from cupilot.domain.evaluation import Verdict
from cupilot.domain.strategy import Strategy
from cupilot.domain.value import Value


class Operator(StrEnum):
    """Operators that make strategies. Each is a short pipeline (:mod:`cupilot.domain.evolution.pipeline`)."""

    INITIAL = "initial"
    """The SCE Manager's own idea, or a pool entry; the kernel is written from scratch."""
    CROSSOVER = "crossover"
    """Two parents' strategies combined; the kernel is translated anew from the first parent's."""
    CODE_CROSSOVER = "code_crossover"
    """Two parents' kernels combined; what strategy came of it is read from the code afterwards."""
    REWRITE = "rewrite"
    """A kernel written whole, from the task and the best one so far, if there is any."""
    MUTATION = "mutation"
    """One parent's kernel, changed; in ``sce``, of a quarantined parent: the Revisor's answer about a kernel that beat
    the floor."""
    TRANSLATION = "translation"
    """The reference, made functional and then rendered as the first kernel."""
    OPTIMISATION = "optimisation"
    """The best kernel improved, with the best ones so far before the writer's eyes."""
    COMPOSITION = "composition"
    """The best kernel improved with what kernels of similar problems do."""
    EXPLORE = "explore"
    """A kernel as different as possible from its parents (EoH's E1)."""
    RECOMBINE = "recombine"
    """The idea that the parents share, carried further (EoH's E2)."""
    RETUNE = "retune"
    """One parent's kernel with other parameters (EoH's M2)."""
    NEXT_VERSION = "next_version"
    """The next of a row of kernels, each better than the one before (FunSearch)."""
    AGENTIC = "agentic"
    """A kernel that a model works on with tools, over several measurements; from the best one so far, if there is
    any."""
    INJECTED = "injected"
    """A person's: a strategy, perhaps with its kernel. No method proposes it."""


class Member(Value):
    """A candidate with everything that selection looks at."""

    candidate: str
    """Candidate id."""
    ordinal: int
    """Number within the job, from 0; breaks ties, so that selection never depends on ids or arrival."""
    generation: int
    strategy: Strategy
    kernel_hash: str | None
    verdict: Verdict
    speedup: float | None
    """Median speedup over eager; None unless the verdict counts."""
    utilisation: float
    """0 to 1, in the zone's own resource."""
    fitness: float | None
    """None for a member that does not count."""
    bare: float | None = None
    """The same without utilisation; None where that is not known apart."""
    counted: bool = True
    """True if its utilisation comes from counters. Where some members have none, all are ranked by ``bare``."""
    floor_share: float | None = None
    """Floor time over kernel time; None where it is unknown."""


class Proposal(Value):
    """Proposal of a new candidate."""

    operator: Operator
    parents: tuple[str, ...] = ()
    """Candidate ids whose code or strategies the candidate is made from, the fitter first: two for the crossovers, one
    for what changes a kernel, none for what begins anew; ``initial`` has one where an epoch starts from a kernel."""
    best: str | None = None
    """The best candidate so far, where its writer is to be shown it beside the parents."""
    inspirations: tuple[str, ...] = ()
    """Candidates that are shown too: their insights or, in that order, their kernels."""
    place: int = 0
    """Which of the generation's proposals this is, from 0..."""
    places: int = 1
    """...of how many."""


class StopReason(StrEnum):
    """Reasons why a method proposes no further generation."""

    NEAR_FLOOR = "near_floor"
    """The best kernel is so close to the physical floor that nothing is left to pay for."""
    GENERATIONS = "generations"
    """All generations that were asked for are done."""
    SAMPLES = "samples"
    """All kernels that were asked for have been proposed."""
    NO_START = "no_start"
    """The method has no kernel to begin from: the first one could not be made to work."""
