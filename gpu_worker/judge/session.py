"""One open problem in the judge: its reference, cases and slots are prepared once and used for every kernel."""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from cupilot.domain.evaluation import Baseline, Comparison, FailureKind, Interval, LawResult
from cupilot.domain.problem import Problem, ProblemFacts, Role
from gpu_worker.judge import counting, laws
from gpu_worker.judge.admission import admit
from gpu_worker.judge.audit import Auditor, drawn_order, in_order
from gpu_worker.judge.bands import Measured
from gpu_worker.judge.baseline_link import COMPILE_MODES, BaselineLink, flags
from gpu_worker.judge.blocks import DECOY_SHARE, Blocks, Hold
from gpu_worker.judge.cases import Cases
from gpu_worker.judge.comparison import Bounds, Comparer
from gpu_worker.judge.fillings import Fillings
from gpu_worker.judge.host_time import LOOKS, is_host_bound
from gpu_worker.judge.lent import LentMemory, lend
from gpu_worker.judge.notes import notes_on
from gpu_worker.judge.overheads import Overheads, measure_overheads
from gpu_worker.judge.reference_link import ReferenceLink
from gpu_worker.judge.relevance import relevance
from gpu_worker.judge.runner_link import KernelFailed, RunnerLink, RunnerLost, ending
from gpu_worker.judge.slots import Slots, slot_size
from gpu_worker.judge.statistics import half_width, median_interval
from gpu_worker.judge.structure import zero_shares
from gpu_worker.judge.timing import Effort, PairedTimer
from gpu_worker.judge.tolerance import precision_of
from gpu_worker.messages import judge as messages
from gpu_worker.messages.judge import KernelOrder, TimingResult, VerificationResult
from gpu_worker.signature import NotPortable
from gpu_worker.targets.base import JudgeDevice

POOL_DRAWS = 3
FEWEST_DRAWS = 2
POOL_MEMORY_SHARE = 0.125
"""Share of the judge's memory for the pool: larger draws are mixed from fewer than :data:`POOL_DRAWS`."""

ROTATED_CACHES = 4
"""Slots together hold at least this many last-level caches."""

MAX_SLOTS = 512
SLOTS_MEMORY_SHARE = 0.36
"""Of slots, and of those that PyTorch is timed on, which hold the same inputs."""

CASES_MEMORY_SHARE = 0.25
"""Of cases while a problem is admitted, of cases and pool while kernels are judged: the rest is for the reference's
process, which computes in float64, and for what is handed over."""

ROUNDINGS = 2.0
"""Of two values of which either may be selected, each was rounded once."""

BASELINE_SECONDS = 0.5
MIN_LAUNCH_SECONDS = 10.0
"""A GPU takes 2 s to report a fault of many threads, and once took more than 5."""

COMPILE_SECONDS = 150
"""For torch.compile, which takes 6 to 40 s on two cores; without it there is no such baseline."""

ALONE_SECONDS = 3600.0
"""Stands for how long a launch takes until it is known: the first block has one."""

IMPORT_SECONDS = 300.0
"""For importing a file: an extension of several CUDA sources takes minutes to compile."""

FIRST_LAUNCH_SECONDS = 120.0
"""For an imported file's first launch, in which Triton compiles and tunes."""

SLOWEST = 100.0
"""A kernel this many times slower than PyTorch is stopped: nobody wants to know how slow exactly."""

HOPELESS = 0.7
"""Share of PyTorch's speed below which a kernel is hopeless if no incumbent has to be beaten."""

CONFIRMED_PRECISION = 2 / 3
"""A confirmation measures until the interval is this much tighter than an evaluation's."""

SCREEN_EFFORT = Effort(seconds=0.5, half_width=0.0, hopeless=0.0, max_pairs=4, one_filling=True)
"""The interval of four pairs is all that was seen: what it tells apart, the whole timing does too, nearly always."""

Stage = Callable[[str, float], None]
"""Tells the supervisor which stage begins now, and how many seconds it may take."""


@dataclass(frozen=True)
class _Loaded:
    """A kernel in its runner, ready to be launched."""

    device: JudgeDevice
    blocks: Blocks
    comparer: Comparer
    auditor: Auditor
    facts: dict[str, Any]
    """Facts that the runner reported."""
    launch_timeout: float
    first_timeout: float
    """Of the first launch, in seconds."""


class Session:
    """A problem, its reference, cases and slots."""

    def __init__(self, problem: Problem, reference: ReferenceLink, stage: Stage) -> None:
        self._problem = problem
        self._device = reference.device
        self._stage = stage
        self._reference = reference
        stage("loading the problem file", 90.0)
        reference.load(problem, secrets.randbits(40))
        stage("the first forward pass", 120.0)
        self.facts: ProblemFacts = reference.facts(problem.content_hash())
        self._specs = self.facts.tensors
        self._precision = precision_of(problem.policy, self._specs)
        budget = int(CASES_MEMORY_SHARE * self._device.memory_bytes)
        rounding, factor = ROUNDINGS * self._precision.unit, self._precision.factor
        self._cases = Cases(reference, self._specs, budget, rounding=rounding, factor=factor)
        self._pytorch = BaselineLink(reference, self._specs)
        stage("timing PyTorch", 120.0)
        try:
            self._baseline_seconds = self._estimate_baseline()
        except BaseException:
            self._pytorch.close()
            raise
        self._slots: dict[tuple[tuple[tuple[str, int], ...], int], Slots] = {}
        self._measured = Measured(reference, self._cases, self._precision)
        self._random = random.Random()
        self._lent: LentMemory | None = None

    def close(self) -> None:
        """Release all memory, and close the line to the reference."""
        self._take_back()
        while self._slots:
            self._slots.popitem()[1].close()
        self._pytorch.close()
        self._reference.close()

    @cached_property
    def _fillings(self) -> Fillings:
        """Made when something is timed: while a problem is admitted, its memory is needed for the oracle."""
        seeds = [secrets.randbits(40) for _ in range(self._draws)]
        fillings = Fillings(self._reference, self._specs, seeds, lambda: self._cases.step)
        self._reference.release_memory()  # as large as a draw
        return fillings

    @property
    def _draws(self) -> int:
        fits = POOL_DRAWS * self._given_bytes <= POOL_MEMORY_SHARE * self._device.memory_bytes
        return POOL_DRAWS if fits else FEWEST_DRAWS

    @property
    def _given_bytes(self) -> int:
        return sum(spec.nbytes for spec in self._specs if spec.role is not Role.OUTPUT)

    def _leave_room_to_judge(self) -> None:
        """Drop cases for which slots and pool leave no room."""
        share = int(CASES_MEMORY_SHARE * self._device.memory_bytes)
        self._cases.limit(share - self._draws * self._given_bytes)

    def admit(self) -> messages.Prepared:
        """Admit the problem: find its input distributions and tolerances, and time PyTorch."""
        self._stage("admitting the problem", 240.0)
        self._reference.check_scalars()
        admission = admit(self._reference, self._cases, self._specs, self._problem.policy)
        self._stage("looking for what does not matter", 120.0)
        irrelevant = self._count_bytes()
        self._stage("timing PyTorch", 120.0)
        baseline_us, host_bound = self._time_reference()
        return messages.Prepared(
            facts=self.facts,
            laws=tuple(item.law for item in admission.laws),
            tolerances={item.law: item.tolerance for item in admission.laws},
            admission=admission.nulls,
            notes=messages.short_notes([*admission.notes, *irrelevant, *notes_on(self._reference, self.facts)]),
            baseline_us=baseline_us,
            host_bound=host_bound,
        )

    def _count_bytes(self) -> Sequence[str]:
        """Count the bytes that a kernel must move; return notes on those that do not matter."""
        inputs, graph = self._cases.get(laws.OWN).given, self.facts.graph
        found = relevance(self._reference, graph, self._specs, inputs)
        zeros = zero_shares(self._specs, inputs)
        least = counting.compulsory_bytes(
            graph, self._specs, zeros, whole=found.whole, observed=found.observed, needless=found.needless
        )
        self.facts = self.facts.model_copy(update={"compulsory_bytes": least})
        return found.notes

    def judge(self, order: KernelOrder, link: RunnerLink, hold: Hold) -> messages.Judged:
        """Load, verify and time one kernel; a failure ends it with the results until then."""
        try:
            loaded = self._load(order, link, hold)
        except (KernelFailed, RunnerLost) as error:
            return messages.Judged(verification=VerificationResult(**ending(error)))
        verification, seconds = self._verify(order, loaded)
        if verification.failure is not None or verification.lost:
            return messages.Judged(verification=verification)
        timing = self._time(order, loaded, seconds)
        if timing.failure is None and not timing.lost:
            self._reference.settle()
        compared = loaded.comparer.compared
        counted = tuple(law.model_copy(update={"launches": compared[law.law]}) for law in verification.laws)
        return messages.Judged(verification=verification.model_copy(update={"laws": counted}), timing=timing)

    def _load(self, order: KernelOrder, link: RunnerLink, hold: Hold) -> _Loaded:
        """Load the kernel in its runner, and give it slots."""
        self._take_back()
        device = self._device.distrusting() if order.imported else self._device
        self._leave_room_to_judge()
        slots = self._slots_for(order.workspace, self._slot_count(device.block_seconds))
        if order.imported:
            self._stage("loading the file", IMPORT_SECONDS + 30.0)
            overheads = measure_overheads(link, device, hold, IMPORT_SECONDS)
            link.load(order.binary, [self._described()], IMPORT_SECONDS)
            facts = {}
        else:
            self._stage("loading the kernel", 90.0)
            overheads = Overheads()
            facts = link.load(order.binary, [launch.model_dump(mode="json") for launch in order.launches])
        link.use(slots)
        self._lent = lend(device, slots, self._specs, link) if order.imported else None
        slowest = SLOWEST * self._baseline_seconds
        timeout = max(MIN_LAUNCH_SECONDS, slowest)
        first = FIRST_LAUNCH_SECONDS if order.imported else timeout
        if laws.PERTURBED in order.laws:
            self._cases.perturb(order.tolerances[laws.OWN])
        bounds = Bounds(order.tolerances, self._measured.error, self._precision, self._measured.limits)
        blocks = Blocks(
            link, device, slots, self._fillings, hold=hold, launch_timeout=timeout, slowest=slowest,
            lent=self._lent, overheads=overheads,
        )  # fmt: skip
        comparer = Comparer(
            slots, self._specs, reference=self._reference, pytorch=self._pytorch, cases=self._cases, bounds=bounds
        )
        auditor = Auditor(blocks, comparer, self._cases, bounds, order.laws)
        return _Loaded(device, blocks, comparer, auditor, facts, timeout, first)

    def _take_back(self) -> None:
        """Release the memory that the last imported file was lent."""
        if self._lent is not None:
            self._lent.close()
        self._lent = None

    def _verify(self, order: KernelOrder, loaded: _Loaded) -> tuple[VerificationResult, float]:
        """Check the kernel under each law, and the problem's own inputs twice; also return the seconds of a launch."""
        first, timeout = loaded.first_timeout, loaded.launch_timeout
        self._stage("auditing", first + 60.0 + (len(order.laws) + 2) * (timeout + 30.0))
        seconds = self._baseline_seconds
        results: list[LawResult] = []
        audited, ended = False, dict[str, Any]()
        try:
            if not order.screening:
                result, seconds = loaded.auditor.check(laws.OWN, ALONE_SECONDS, first)
                results.append(result)
                for law in [] if order.only_timing else drawn_order(order.laws, self._random)[1:]:
                    result, took = loaded.auditor.check(law, seconds)
                    results.append(result)
                    seconds = min(seconds, took)
                audited = True
                loaded.auditor.check_again(laws.OWN, seconds)
        except (KernelFailed, RunnerLost) as error:
            ended = ending(error)
        kept = in_order(results, order.laws)
        return VerificationResult(laws=kept, audited=audited, facts=loaded.facts, **ended), seconds

    def _time(self, order: KernelOrder, loaded: _Loaded, seconds: float) -> TimingResult:
        """Time the kernel, a launch of which takes about so many seconds, against each baseline."""
        self._stage("timing", 60.0 + 40 * loaded.launch_timeout)
        comparisons: list[Comparison] = []
        notes: list[str] = []
        ended = dict[str, Any]()
        try:
            timer = PairedTimer(
                loaded.blocks,
                loaded.device,
                pytorch=self._pytorch,
                comparer=loaded.comparer,
                auditor=loaded.auditor,
                admitted=order.laws,
            )
            effort = self._effort(order)
            for baseline in order.baselines:
                reason = self._compile(baseline)
                if reason is not None:
                    notes.append(f"no {baseline.value} baseline: {reason}")
                    continue
                comparison = timer.compare(baseline, seconds, effort)
                comparisons.append(comparison.model_copy(update={"flags": flags(baseline, self._problem.policy)}))
            notes += timer.notes
            if order.imported and loaded.blocks.copied:
                ended = {"handover_us": timer.handover_seconds() * 1e6}
        except (KernelFailed, RunnerLost) as error:
            ended = ending(error)
        return TimingResult(comparisons=tuple(comparisons), notes=messages.short_notes(notes), **ended)

    def _effort(self, order: KernelOrder) -> Effort:
        if order.screening:
            return SCREEN_EFFORT
        if order.thorough:
            half_width = CONFIRMED_PRECISION * self._device.precision
            return Effort(seconds=3.0, half_width=half_width, hopeless=0.0, refuses_scatter=True)
        hopeless = HOPELESS if order.incumbent is None else order.incumbent
        return Effort(seconds=0.75, half_width=self._device.precision, hopeless=hopeless)

    def _described(self) -> dict[str, Any]:
        """Return how the imported file is called, as JSON."""
        try:
            return self._reference.signature()
        except NotPortable as error:
            message = f"this problem takes no imported files: {error}"
            raise KernelFailed(FailureKind.INVALID_PLAN, message, code="not_portable") from error

    def _compile(self, baseline: Baseline) -> str | None:
        """Compile a baseline where that is needed; return the reason where that cannot be."""
        if baseline is Baseline.EAGER:
            return None
        self._stage(f"compiling the {baseline.value} baseline", 240.0)
        inputs = self._cases.get(laws.OWN).given
        return self._pytorch.compile(baseline.value, COMPILE_MODES[baseline], inputs, COMPILE_SECONDS)

    def _slots_for(self, workspace: Mapping[str, int], count: int) -> Slots:
        key = (tuple(sorted(workspace.items())), count)
        if key not in self._slots:
            needed, tensors = (slot_size(self._specs, spaces) for spaces in (workspace, {}))
            limit = self._most_slots(needed)
            if needed > self._device.memory_bytes:
                message = f"the kernel's workspace makes a slot of {needed} bytes; the device has no room for it"
                raise KernelFailed(FailureKind.OUT_OF_MEMORY, message)
            if limit < min(count, DECOY_SHARE) and tensors < self._device.cache_bytes:
                message = f"the kernel's workspace makes a slot of {needed} bytes; no four have room"
                raise KernelFailed(FailureKind.OUT_OF_MEMORY, message)
            while self._slots:  # before there are others, for which there would be no room
                self._slots.popitem()[1].close()
            allocate = partial(Slots, self._device, self._specs, workspace, min(count, limit))
            self._slots = {key: self._reference.with_room(allocate)}
        self._slots[key].renew()
        return self._slots[key]

    def _slot_count(self, block_seconds: float) -> int:
        """Return enough slots to exceed the cache, and for blocks of a kernel that is twice as fast as PyTorch."""
        size = slot_size(self._specs, {})
        for_cache = math.ceil(ROTATED_CACHES * self._device.cache_bytes / size)
        for_blocks = math.ceil(2 * block_seconds / self._baseline_seconds)
        return max(2, min(max(for_cache, for_blocks), MAX_SLOTS, self._most_slots(size)))

    def _most_slots(self, slot_bytes: int) -> int:
        """Return the number of slots of this size that there is room for, with one of PyTorch's for each."""
        both = slot_bytes + slot_size([spec for spec in self._specs if spec.role is not Role.OUTPUT], {})
        return max(1, int(SLOTS_MEMORY_SHARE * self._device.memory_bytes) // both)

    def _estimate_baseline(self) -> float:
        self._pytorch.use(1)
        self._pytorch.fill(0, self._reference.draw(secrets.randbits(40)))
        times = [self._baseline_block([0]) for _ in range(3)]
        self._reference.settle(notice=True)
        self._pytorch.release()  # admission needs the memory
        return max(min(times), 1e-7)

    def _baseline_block(self, order: Sequence[int]) -> float:
        """Return seconds of a block of PyTorch eager, tried again where the clocks disagree."""
        while (seconds := self._pytorch.block(Baseline.EAGER.value, order)) is None:
            continue
        return seconds

    def _time_reference(self) -> tuple[Interval, bool]:
        """Return PyTorch's time, and whether the host took most of it each time that it was measured."""
        for _ in range(LOOKS):
            operators = self._reference.operator_seconds(self._cases.get(laws.OWN).given)
            self._leave_room_to_judge()
            self._reference.release_memory()
            times = self._time_baseline()
            if not is_host_bound(min(times) * 1e-6, operators, len(self.facts.graph.nodes)):
                return median_interval(times), False
        return median_interval(times), True

    def _time_baseline(self) -> list[float]:
        """Return microseconds of PyTorch eager alone: the cache flushed before each block, over rotated inputs."""
        slots = self._slots_for({}, self._slot_count(self._device.block_seconds))
        count = max(1, min(slots.count, math.ceil(self._device.block_seconds / self._baseline_seconds)))
        self._pytorch.use(count)
        times: list[float] = []
        end = time.monotonic() + BASELINE_SECONDS
        for slot in range(count):
            self._fillings.fill(slots, {slot: laws.OWN})
            self._pytorch.fill(slot, slots.storages(slot))
        while len(times) < 5 or (time.monotonic() < end and half_width(median_interval(times)) > 0.01):
            self._device.flush_cache()
            times.append(self._baseline_block(range(count)) / count * 1e6)
        self._reference.settle()
        return times
