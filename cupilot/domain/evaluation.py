"""An evaluation: all that was measured about a kernel, and the verdict.

Only the judge (``gpu_worker``) makes these; everybody else reads them. Validators forbid records that cannot be.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue, model_validator

from cupilot.domain.caveats import problem_warnings
from cupilot.domain.confidence import DECIDED_PAIRS, bounds
from cupilot.domain.hardware import Conditions, Environment, Peaks
from cupilot.domain.imported import KernelKind
from cupilot.domain.problem import ProblemFacts
from cupilot.domain.roofline import Placement
from cupilot.domain.value import Value, Vocabulary
from cupilot.domain.workload import Workload

MAX_LOG_CHARACTERS = 16_000


class Verdict(Vocabulary):
    """Verdicts on a kernel, from lowest to highest (``docs/concepts.md``)."""

    REJECTED = "rejected"
    """Did not build, crashed, or gave wrong values."""
    COMPILED = "compiled"
    """Built; nothing more is known (the only verdict a machine without the device can give)."""
    CORRECT = "correct"
    """Right on the problem's own inputs."""
    PLAUSIBLE = "plausible"
    """Correct, and not faster than physics allows."""
    AUDITED = "audited"
    """Every input law, mutation, poison and precision check passed. Counts as a result."""
    REPRODUCED = "reproduced"
    """Audited and timed again in fresh processes with the same outcome."""
    QUARANTINED = "quarantined"
    """Too good to be true; never scored until a person releases it."""

    @property
    def rank(self) -> int:
        """Height on the ladder; quarantined, and what only a newer version knows, stand below everything."""
        return _LADDER.index(self) if self in _LADDER else 0

    @property
    def counts(self) -> bool:
        """True if a kernel with this verdict counts as a result."""
        return self in (Verdict.AUDITED, Verdict.REPRODUCED)


_LADDER = (Verdict.QUARANTINED, *(verdict for verdict in Verdict if verdict is not Verdict.QUARANTINED))


class FailureKind(Vocabulary):
    """Reasons why a kernel got no higher verdict, or none at all."""

    INVALID_PLAN = "invalid_plan"
    COMPILE_ERROR = "compile_error"
    LAUNCH_ERROR = "launch_error"
    CRASH = "crash"
    ILLEGAL_ACCESS = "illegal_access"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    WRONG_VALUE = "wrong_value"
    UNWRITTEN_OUTPUT = "unwritten_output"
    NON_DETERMINISTIC = "non_deterministic"
    INPUT_MUTATED = "input_mutated"
    OUT_OF_BOUNDS_WRITE = "out_of_bounds_write"
    INSENSITIVE = "insensitive"
    """A perturbed input did not move the output as it moves the reference's."""
    POLICY_BREACH = "policy_breach"
    BELOW_FLOOR = "below_floor"
    CLOCK_MISMATCH = "clock_mismatch"
    INVALID_PROBLEM = "invalid_problem"
    """The reference itself cannot be used; of a preparation, never of a kernel."""
    INFRASTRUCTURE = "infrastructure"
    """Not the kernel's fault; never counts against it and is tried again elsewhere."""


def _readable(text: str) -> str:
    """Return the text, as printed by any program, without what no text column and no UTF-8 encoder takes."""
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_Log = Annotated[str, Field(max_length=MAX_LOG_CHARACTERS), AfterValidator(_readable)]

LACKS_MEMORY = "lacks_memory"
"""Code in the details of a failure of kind ``infrastructure``: the judge had too little memory for the problem."""


class Failure(Value):
    """Cause of a failure, for a person and for an agent that repairs it."""

    kind: FailureKind
    message: _Log
    details: dict[str, JsonValue] = {}
    """E.g. ``index``, ``expected``, ``got``, ``wrong_fraction``, ``pattern``, ``law``, ``lines``, ``signal``."""


class Interval(Value):
    """A median with its 95 % confidence interval."""

    low: float
    median: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Interval:
        if not self.low <= self.median <= self.high:
            raise ValueError(f"interval is not ordered: {self.low}, {self.median}, {self.high}")
        return self


class BuildReport(Value):
    """Result of a compilation."""

    ok: bool
    compiler: str
    flags: tuple[str, ...] = ()
    seconds: float
    cached: bool = False
    ahead: bool = False
    """True if it was built speculatively, while another kernel was measured; ``cached`` is true then too."""
    log: _Log = ""
    binary_hash: str | None = None
    registers: int | None = None
    """Registers a thread, the largest over the kernels; ``cuda``."""
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    """Static shared memory of a block; ``cuda``."""
    instructions: dict[str, int] = {}
    """Counts of telling instruction families, e.g. ``tensor_core``, ``async_copy``, ``vector_load_128``."""


class LawResult(Value):
    """Result of a kernel on one input law."""

    law: str
    """Name of the law, e.g. ``own``, ``signed``, ``wide_range``, ``planted_extremes``, ``constant_rows``,
    ``zeros``, ``perturbed``, ``integers``."""
    passed: bool
    error: float
    """Largest deviation from the float64 reference over all outputs, relative to the output's own spread; under the law
    ``integers`` as it is."""
    tolerance: float
    reference_error: float
    """The same of PyTorch's own answer under the policy."""
    launches: int = 0
    """Launches that were compared on inputs of this law, audited and timed ones."""


class Baseline(Vocabulary):
    """Baseline that a kernel is compared with."""

    EAGER = "eager"
    COMPILE = "torch.compile"
    MAX_AUTOTUNE = "torch.compile max-autotune"


class Comparison(Value):
    """A kernel timed side by side with one baseline, in ABBA blocks."""

    baseline: Baseline
    kernel_us: Interval
    baseline_us: Interval
    speedup: Interval
    """Baseline time over kernel time."""
    pairs: int
    """Pairs of blocks that the interval rests on."""
    launches: int
    """Timed launches of the kernel, in all."""
    graphs: bool = False
    """True if both sides were launched through CUDA graphs, so that the times exclude launch overhead on the host."""
    flags: dict[str, str] = {}
    """Settings that PyTorch ran with: ``mode`` of compiling, ``tf32`` and ``autocast`` as the policy has them."""
    conditions: Conditions | None = None
    """None where the device does not say, as a CPU."""

    @property
    def decided(self) -> bool:
        """True if the interval may be called one of 95 %."""
        return self.pairs >= DECIDED_PAIRS

    @property
    def speedup_bounds(self) -> tuple[float, float]:
        """Return the bounds of the speedup that selection uses, wider than the interval where that is undecided."""
        return bounds(self.speedup.low, self.speedup.median, self.speedup.high, self.pairs)

    @property
    def kernel_us_bounds(self) -> tuple[float, float]:
        """The same of the kernel's time."""
        return bounds(self.kernel_us.low, self.kernel_us.median, self.kernel_us.high, self.pairs)


class ProfileSource(Vocabulary):
    """Source of a profile's metrics."""

    MEASURED = "measured"
    """Hardware counters."""
    INFERRED = "inferred"
    """Analytic intensity, time, registers, occupancy and instruction counts."""


class Profile(Value):
    """Metrics of one kernel in the zone's own terms; percentages are of the measured peaks.

    ``memory_throughput_pct``, ``compute_throughput_pct``, ``floor_pct`` and ``direct_pct`` are calculated from counted
    work, whatever the source: operations are the reference's, counted directly, which a faster algorithm does not do.
    """

    source: ProfileSource
    metrics: dict[str, float] = {}
    """At least ``memory_throughput_pct``, ``compute_throughput_pct``, ``floor_pct`` and ``direct_pct``."""
    missing: tuple[str, ...] = ()
    """Metrics of the zone that the profiler does not know on this device; of a measured profile."""
    promoted: bool = True
    """True if counters were asked for: the kernel may be its job's best, or was confirmed. A promoted kernel's profile
    is inferred where the machine has no counters, or its driver forbids them."""

    def utilisation(self, zone_metric: str) -> float:
        """Return a percentage metric as a share of one, 0 where it is unknown."""
        return min(max(self.metrics.get(zone_metric, 0.0) / 100.0, 0.0), 1.0)


class Phase(Value):
    """Phase of an evaluation, with its time."""

    name: str
    """``build``, ``open`` (the problem in a fresh judge), ``load``, ``verify``, ``time``, ``compile_baseline``,
    ``sweep_build``, ``sweep`` and ``sweep_judge`` (other values of the tunables: built, screened, and the fastest
    judged whole), ``profile``, or ``judge`` for anything else of the judge's."""
    start: float
    """Seconds since the evaluation began."""
    seconds: float


class SweepPoint(Value):
    """Time of a kernel with certain values of its tunables, or the reason why it has none."""

    tunables: dict[str, int]
    kernel_us: Interval | None = None
    speedup: Interval | None = None
    """Over PyTorch eager."""
    judged: bool = False
    """True if the times are those of a whole judgement, with every law and the audit passed; else of a few blocks."""
    failure: Failure | None = None
    code: str | None = None
    """Digest of its machine code and launches; None where there is none."""

    @model_validator(mode="after")
    def _time_or_failure(self) -> SweepPoint:
        if (self.speedup is None) == (self.failure is None):
            raise ValueError("exactly one of a time and a failure")
        return self


class WorkloadResult(Value):
    """One workload's part of an evaluation."""

    workload: Workload
    verdict: Verdict | None = None
    """None where an earlier workload failed: the verdict is the lowest, and this one could not have raised it."""
    failure: Failure | None = None
    build: BuildReport | None = None
    laws: tuple[LawResult, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    placement: Placement | None = None
    measurement: str = ""


class Evaluation(Value):
    """All that was measured about one kernel on one problem."""

    kernel_hash: str
    problem_hash: str
    verdict: Verdict
    failure: Failure | None = None
    """Why it did not climb to ``audited``."""
    build: BuildReport | None = None
    laws: tuple[LawResult, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    profile: Profile | None = None
    placement: Placement | None = None
    environment: Environment | None = None
    tunables: dict[str, int] = {}
    """Tunable values that the times belong to: the plan's own, or the best of a sweep."""
    sweep: tuple[SweepPoint, ...] = ()
    """Tunables that were tried, the plan's own values first; empty where nothing was."""
    seconds: float = 0.0
    """Seconds of the evaluation, builds included and queueing not."""
    phases: tuple[Phase, ...] = ()
    """Phases of those seconds, one after the other."""
    measurement: str = ""
    """Names the run of the judge that this rests on; evaluations of one measurement have one name."""
    reused: bool = False
    """True if the run was an earlier one of the same machine code, problem, device and judge."""
    kernel_kind: KernelKind = KernelKind.PLANNED
    """``imported``: host code of others ran beside the kernel, and ``unchecked`` applies."""
    unchecked: tuple[str, ...] = ()
    """Checks that this kind of kernel does not allow, in words."""
    workloads: tuple[WorkloadResult, ...] = ()
    """Of a problem with workloads: each one's result. ``verdict`` is then the lowest, with the failure, build, laws and
    profile of the workload that decided it; times, speedups and bounds are weighted geometric means."""
    handover_us: float | None = None
    """Of an imported kernel whose result is not read where it lies: what copying it to the judge's memory takes. It is
    part of ``kernel_us``, so that the speedup is a lower bound; without the copy the kernel takes at least
    ``kernel_us - handover_us``."""

    @model_validator(mode="after")
    def _possible(self) -> Evaluation:
        if self.verdict.rank >= Verdict.CORRECT.rank and (self.build is None or not self.build.ok):
            raise ValueError(f"{self.verdict.value} without a successful build")
        if self.verdict.counts and self.failure is not None:
            raise ValueError(f"{self.verdict.value} with a failure")
        if self.verdict.counts and (not self.comparisons or not all(law.passed for law in self.laws)):
            raise ValueError(f"{self.verdict.value} needs passed laws and a timing")
        if self.verdict in (Verdict.REJECTED, Verdict.QUARANTINED) and self.failure is None:
            raise ValueError(f"{self.verdict.value} needs a failure that says why")
        return self

    def comparison(self, baseline: Baseline = Baseline.EAGER) -> Comparison | None:
        """Return the comparison with this baseline, or None."""
        return next((item for item in self.comparisons if item.baseline is baseline), None)

    @property
    def speedup(self) -> float | None:
        """Median speedup over eager, only of a kernel that counts."""
        comparison = self.comparison()
        return comparison.speedup.median if comparison and self.verdict.counts else None


class WorkloadPreparation(Value):
    """One workload's part of a preparation."""

    workload: Workload
    facts: ProblemFacts
    placement: Placement
    baseline_us: Interval
    laws: tuple[str, ...]
    tolerances: dict[str, float]
    admission: dict[str, bool]
    notes: tuple[str, ...] = ()
    host_bound: bool = False


class Preparation(Value):
    """Facts of a problem before any kernel is written: reference checked, baseline timed, placed on the roofline."""

    facts: ProblemFacts
    placement: Placement
    peaks: Peaks
    environment: Environment
    baseline_us: Interval
    """PyTorch eager under the policy."""
    laws: tuple[str, ...]
    """Input laws that are meaningful for this reference."""
    tolerances: dict[str, float]
    """Accepted error, by law, in the units of :class:`LawResult`."""
    admission: dict[str, bool]
    """Null kernels that were tried, and whether the judge rejected each (all must be true)."""
    notes: tuple[str, ...] = ()
    host_bound: bool = False
    """True if most of PyTorch's time goes by on the host, outside of its operators."""
    workloads: tuple[WorkloadPreparation, ...] = ()
    """Of a problem with workloads: each one's part. Everything else here is the heaviest one's then."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why a speedup on this problem says less than it seems; with any, no leaderboard lists it."""
        workloads = {part.workload.name: part.laws for part in self.workloads}
        return problem_warnings(self.laws, host_bound=self.host_bound, workloads=workloads)


class Tracing(Value):
    """Facts of a traced problem file, or the reason why there are none."""

    facts: ProblemFacts | None = None
    failure: Failure | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Tracing:
        if (self.facts is None) == (self.failure is None):
            raise ValueError("exactly one of facts and failure")
        return self


class PreparationResult(Value):
    """Preparation, or the reason why the reference cannot be used."""

    preparation: Preparation | None = None
    failure: Failure | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> PreparationResult:
        if (self.preparation is None) == (self.failure is None):
            raise ValueError("exactly one of preparation and failure")
        return self
