"""Admission, audit and paired timing, with Python functions in the place of runners."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch

from cupilot.domain.evaluation import Baseline, Comparison, FailureKind
from cupilot.domain.hardware import Span
from cupilot.domain.problem import NumericsPolicy
from gpu_worker.judge import laws, reference_link, room, roundings
from gpu_worker.judge.admission import Admission, admit, run_on_half
from gpu_worker.judge.audit import Auditor
from gpu_worker.judge.bands import Measured
from gpu_worker.judge.baseline_link import BaselineLink
from gpu_worker.judge.blocks import Blocks, Filling
from gpu_worker.judge.cases import Cases
from gpu_worker.judge.clocks import Clocks, clock_lies
from gpu_worker.judge.comparison import Bounds, Comparer
from gpu_worker.judge.deviation import largest
from gpu_worker.judge.fillings import Fillings
from gpu_worker.judge.refusal import UnusableReference
from gpu_worker.judge.runner_link import KernelFailed, Ran, Release
from gpu_worker.judge.slots import Slots
from gpu_worker.judge.statistics import half_width, median_interval
from gpu_worker.judge.timing import MIN_PAIRS, Effort, PairedTimer
from gpu_worker.judge.tolerance import PRECISIONS, precision_of
from gpu_worker.judge.windows import WINDOW_ELEMENTS, WINDOWS, windows_of
from gpu_worker.targets.base import DeviceState, GraphUnavailable
from gpu_worker.targets.cpu_judge import (
    CLOCK_SLACK_SECONDS,
    FEWEST_WAITS,
    LEAST_COLD_START_SECONDS,
    WAITS,
    CpuJudgeDevice,
)
from tests.unit.gpu_worker.served import Served

Body = Callable[[list[torch.Tensor], list[torch.Tensor]], None]

TEMPLATE = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def forward(self, {arguments}):
        return {expression}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""


class Subject:
    """A problem in this process."""

    def __init__(
        self,
        expression: str,
        inputs: str = "torch.rand(64, 32)",
        policy: NumericsPolicy = NumericsPolicy.FP32,
        arguments: str = "x",
    ):
        self.device = CpuJudgeDevice(threads=1, cache_bytes=2**18, memory_bytes=2**28)
        source = TEMPLATE.format(expression=expression, inputs=inputs, arguments=arguments)
        self.served = Served(source, policy, self.device)
        self.reference = self.served.link
        self.specs = self.served.facts.tensors
        self.cases = Cases(self.reference, self.specs, 2**26, rounding=0.0, factor=0.0)
        self.policy = policy
        self.limits = Measured(self.reference, self.cases, precision_of(policy, self.specs)).limits

    def admit(self) -> Admission:
        return admit(self.reference, self.cases, self.specs, self.policy)

    def slots(self, count: int = 4) -> Slots:
        return Slots(self.device, self.specs, {}, count)


class Bench:
    """Judges one kernel, which is a Python function."""

    def __init__(
        self,
        subject: Subject,
        body: Body,
        tolerances: Mapping[str, float] | None = None,
        *,
        clock: float = 1.0,
        block: float | None = None,
        hold: Callable[[bool], float | None] = lambda _: None,
    ) -> None:
        """Without ``tolerances`` under the problem's own law alone; ``clock`` and ``block`` are the link's."""
        tolerances = tolerances or {laws.OWN: 1e-4}
        self.slots = subject.slots()
        self.link = PythonLink(self.slots, body, clock, block)
        pytorch = BaselineLink(subject.reference, subject.specs)
        bounds = Bounds(tolerances, lambda _: 0.0, PRECISIONS[subject.policy], subject.limits)
        fillings = Fillings(subject.reference, subject.specs, [1, 2, 3], lambda: subject.cases.step)
        self.blocks = Blocks(
            self.link,  # type: ignore[arg-type]
            subject.device,
            self.slots,
            fillings,
            hold=hold,
            launch_timeout=5.0,
            slowest=5.0,
        )
        self.comparer = Comparer(
            self.slots, subject.specs, reference=subject.reference, pytorch=pytorch, cases=subject.cases, bounds=bounds
        )
        self.auditor = Auditor(self.blocks, self.comparer, subject.cases, bounds, list(tolerances))
        self.timer = PairedTimer(
            self.blocks,
            subject.device,
            pytorch=pytorch,
            comparer=self.comparer,
            auditor=self.auditor,
            admitted=list(tolerances),
        )

    def compare(self, baseline: Baseline, seconds: float, effort: Effort) -> Comparison:
        return self.timer.compare(baseline, seconds, effort)


class PythonLink:
    """Runs a Python function on the slots as a runner would run a kernel."""

    def __init__(self, slots: Slots, body: Body, clock: float = 1.0, block: float | None = None) -> None:
        """``clock``: what the runner reports of each second; ``block``: seconds of each block, instead of real ones."""
        self._slots = slots
        self._body = body
        self._clock = clock
        self._block = block
        self.uncapturable = ""
        self.captures: list[list[int]] = []
        self.runs = self.replays = self.resets = 0
        self.timeout = 0.0
        """Of the last block."""

    def reset(self) -> None:
        self.resets += 1

    def capture(self, order: Sequence[int]) -> None:
        if self.uncapturable:
            raise GraphUnavailable(self.uncapturable)
        self.captures.append(list(order))

    def replay(self, timeout: float, release: Release | None = None) -> Ran:
        self.replays += 1
        return self.run(self.captures[-1], timeout, release)

    def run(self, order: Sequence[int], timeout: float, release: Release | None = None) -> Ran:
        self.runs += 1
        self.timeout = timeout
        if release is not None:
            release()
        started = time.perf_counter()
        for slot in order:
            self._body(self._slots.given(slot), self._slots.outputs(slot))
        seconds = time.perf_counter() - started if self._block is None else self._block
        return Ran(seconds, self._clock * seconds, [])


@pytest.fixture(autouse=True)
def _own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count this process's own work and what it sleeps as time: what else the machine does must not decide a test."""
    slept = 0.0

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "perf_counter", lambda: time.process_time() + slept)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def softmax(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
    outputs[0].copy_(torch.softmax(given[0], dim=1))


def test_one_launch_of_a_block_may_take_long() -> None:
    bench = Bench(Subject("torch.softmax(x, dim=1)"), softmax)
    bench.blocks._slowest = 0.01
    bench.blocks.run([0, 1, 2])
    assert bench.link.timeout == pytest.approx(5.02)


def test_cases_are_made_again_where_memory_is_short() -> None:
    subject = Subject("torch.softmax(x, dim=1)")
    size = 2 * 64 * 32 * 4 + 64 * 32 * 4  # float32 inputs, float64 results
    tight = Cases(subject.reference, subject.specs, 2 * size, rounding=0.0, factor=0.0)
    kept = {law: [*tight.get(law).given, *(item.values for item in tight.get(law).expected)] for law in laws.TRIED}
    assert tight.held() <= 2 * size
    for law, tensors in kept.items():
        again = tight.get(law)
        assert all(map(torch.equal, tensors, [*again.given, *(item.values for item in again.expected)]))


def test_an_ordinary_problem_has_all_laws_and_rejects_all_null_kernels() -> None:
    admission = Subject("torch.softmax(x, dim=1)").admit()
    assert [item.law for item in admission.laws] == [laws.OWN, *laws.TRIED, laws.PERTURBED]
    assert set(admission.nulls) == {
        *("zeros", "constant", "previous_output", "half_of_rows", "input_copy", "lower_precision"),
    }
    assert all(admission.nulls.values())


@pytest.mark.parametrize("policy", list(NumericsPolicy))
def test_the_next_lower_precision_fails(policy: NumericsPolicy) -> None:
    subject = Subject("x @ x.T", "torch.randn(64, 256)", policy)
    own = subject.admit().laws[0]
    case = subject.cases.get(laws.OWN)
    rounded = [roundings.round_mantissa(tensor, PRECISIONS[policy].lower_bits) for tensor in case.given]
    assert largest(case.expected, subject.reference.run_exact(rounded)) > own.tolerance
    assert own.reference_error < own.tolerance / 2


def test_laws_that_leave_the_domain_are_left_out() -> None:
    admission = Subject("torch.log(x)").admit()
    assert "signed" not in [item.law for item in admission.laws]
    assert any("signed" in note and "not finite" in note for note in admission.notes)


def test_laws_on_which_the_reference_raises_now_and_then_are_left_out() -> None:
    """Planted extremes leave some matrices positive definite: one draw says nothing of the next."""
    inputs = "(lambda half: half @ half.T + 16 * torch.eye(16))(torch.rand(16, 16))"
    subject = Subject("torch.linalg.cholesky(x)", inputs)
    for item in subject.admit().laws:
        assert sum(_answers(subject, item.law) for _ in range(30)) >= 25, item.law


def _answers(subject: Subject, law: str) -> bool:
    try:
        subject.reference.run(subject.cases.another(law))
    except UnusableReference:
        return False
    return True


def test_laws_whose_results_overflow_when_they_are_multiplied_are_left_out() -> None:
    """A scan of products multiplies parts: where a row comes to 1e30, a part of it may come to 1e40."""
    admission = Subject("torch.cumprod(1 + x, dim=1)", "1e-3 * torch.rand(64, 2048)").admit()
    assert any(note.startswith("law offset left out") and "multiplied" in note for note in admission.notes)


def test_large_constants_in_the_results_are_no_reason_to_leave_a_law_out() -> None:
    admission = Subject("x.masked_fill(x < 0.5, -3e38)", "torch.rand(64, 32)").admit()
    assert not any("multiplied" in note for note in admission.notes)


def test_positive_inputs_hide_a_relu_but_the_laws_do_not() -> None:
    admission = Subject("torch.relu(x)").admit()
    own, signed = admission.laws[0], admission.laws[1]
    assert "input_copy" in own.passes
    assert "input_copy" in signed.rejects
    assert admission.nulls["input_copy"]


CROSS_ENTROPY = {
    "expression": "nn.functional.cross_entropy(x, y)",
    "inputs": "torch.randn(65, 100) * torch.linspace(0, 4, 65)[:, None], torch.randint(0, 100, (65,))",
    "arguments": "x, y",
}
RISING = "* torch.linspace(0, 1, 512)[:, None]"
"""Makes the later rows larger, so that no draw's halves happen to have sums within the tolerance of each other."""


@pytest.mark.parametrize(
    "problem",
    [
        {"expression": "((x - 0.25) ** 2).mean()", "inputs": f"torch.rand(512, 256) {RISING}"},
        {"expression": "(x * x).sum()", "inputs": f"torch.randn(512, 256) {RISING}"},
        {"expression": "x.mean(dim=0)", "inputs": "torch.randn(512, 256)"},
        CROSS_ENTROPY,
    ],
    ids=["mean loss", "sum", "mean over the batch", "indices, and an odd batch"],
)
def test_half_of_the_batch_is_not_enough_for_a_loss(problem: dict[str, str]) -> None:
    admission = Subject(**problem).admit()  # type: ignore[arg-type]
    assert admission.nulls["half_of_batch"]
    assert "half_of_batch" in admission.laws[0].rejects, "under the problem's own inputs already"


def test_a_kernel_that_averages_half_of_the_batch_is_told_from_one_that_averages_all() -> None:
    subject = Subject("((x - 0.25) ** 2).mean()", "torch.rand(512, 256)")

    def half(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        outputs[0].copy_(((given[0][:256] - 0.25) ** 2).mean())

    case = subject.cases.get(laws.OWN)
    told = run_on_half(subject.reference, subject.specs, case.given, subject.reference.run(case.given))
    assert told is not None
    mine = torch.empty(())
    half([*case.given], [mine])
    assert torch.allclose(told[0], mine), "the null is what such a kernel gives"
    failure = audit(subject, half)
    assert failure is not None
    assert failure.kind is FailureKind.WRONG_VALUE


@pytest.mark.parametrize(
    ("expression", "inputs"),
    [
        ("torch.softmax(x[0], dim=0)", "torch.randn(64, 256)"),
        ("torch.softmax(x, dim=1)", "torch.randn(64, 256)"),
        ("torch.softmax(x, dim=1)", "torch.randn(1, 256)"),
        ("torch.linalg.inv(x).sum()", "torch.randn(32, 32)"),
    ],
    ids=["first row alone", "rows of the batch", "one row", "no answer for equal rows"],
)
def test_half_of_the_batch_is_no_null_where_it_tells_nothing(expression: str, inputs: str) -> None:
    subject = Subject(expression, inputs)
    given = subject.reference.draw(7)
    assert run_on_half(subject.reference, subject.specs, given, subject.reference.run(given)) is None


def test_index_outputs_have_no_precision() -> None:
    admission = Subject("x.argmax(dim=1)").admit()
    assert "lower_precision" not in admission.nulls
    assert all(item.tolerance == 0.0 for item in admission.laws)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("torch.softmax(x, dim=1).sum(dim=1)", "same everywhere"),
        ("x * 0.0", "same everywhere"),
        ("torch.full((4, 4), 3.0)", "same everywhere"),
        ("torch.linspace(0, 1, 64)", "previous_output"),
        (
            "nn.functional.dropout(x, 0.3)",
            r"different outputs.*: dropout in line 6 .*`self.eval\(\)` in `__init__`, or",
        ),
        ("x + torch.rand_like(x)", r"different outputs.*: forward must draw no random numbers; call `self.eval\(\)`"),
    ],
)
def test_problems_that_cannot_be_judged_are_refused(expression: str, words: str) -> None:
    with pytest.raises(UnusableReference, match=words):
        Subject(expression).admit()


def audit(subject: Subject, body: Body) -> KernelFailed | None:
    admission = subject.admit()
    auditor = Bench(subject, body, {item.law: item.tolerance for item in admission.laws}).auditor
    try:
        for item in admission.laws:
            result, _ = auditor.check(item.law, 1.0)
            assert result.passed
        auditor.check_again(laws.OWN, 1.0)
        for _ in admission.laws:
            auditor.spot_check(1e-3)
    except KernelFailed as failure:
        return failure
    return None


def test_an_honest_kernel_passes_the_audit() -> None:
    assert audit(Subject("torch.softmax(x, dim=1)"), softmax) is None


def test_single_elements_matter() -> None:
    """Guesses one row in 300 of a long mean: right within float32's noise, until single elements are changed.

    One draw misses it about once in 15 times, where two changed elements of the skipped rows cancel; each new judge
    (an evaluation, its confirmation) draws anew.
    """
    kinds = [_guesser_is_caught_as() for _ in range(4)]
    assert FailureKind.INSENSITIVE in kinds
    assert set(kinds) <= {FailureKind.INSENSITIVE, None}


def _guesser_is_caught_as() -> FailureKind | None:
    subject = Subject("x.mean()", "torch.rand(600, 512)")

    def body(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        outputs[0].fill_(float(given[0][:-2].double().mean()))

    tolerances = {item.law: item.tolerance for item in subject.admit().laws}
    if laws.PERTURBED not in tolerances:
        return None  # in one draw of a hundred the changed mean is another draw's, so that a constant would pass
    try:
        Bench(subject, body, tolerances).auditor.check(laws.PERTURBED, 1.0)
    except KernelFailed as caught:
        return caught.kind
    return None


def test_where_nan_is_expected_it_must_have_been_written() -> None:
    """Poison is NaN too: what is left out would look right."""

    def body(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        outputs[0].copy_(torch.where(given[0] < 0, outputs[0], torch.log(given[0])))

    def honest(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        outputs[0].copy_(torch.log(given[0]))

    subject = Subject("torch.log(x)", "torch.randn(64, 32)")
    failure = audit(subject, body)
    assert failure is not None
    assert failure.kind is FailureKind.UNWRITTEN_OUTPUT
    assert audit(subject, honest) is None


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda _, outputs: outputs[0][3].fill_(torch.nan), FailureKind.WRONG_VALUE),
        (lambda given, _: given[0].zero_(), FailureKind.INPUT_MUTATED),
        (lambda _, outputs: outputs[0].as_strided((1,), (1,), outputs[0].storage_offset() + 64 * 32).zero_(),
         FailureKind.OUT_OF_BOUNDS_WRITE),
    ],
)  # fmt: skip
def test_spoilt_runs_are_named(spoil: Body, kind: FailureKind) -> None:
    def body(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        softmax(given, outputs)
        spoil(given, outputs)

    failure = audit(Subject("torch.softmax(x, dim=1)"), body)
    assert failure is not None
    assert failure.kind is kind


QUICK = Effort(seconds=0.2, half_width=0.5, hopeless=0.0)

UNPAIRED = 4
"""Blocks of the kernel beside those of pairs: one shows how long a launch takes, one starts cold, two are audits."""


def test_paired_timing_tells_slow_from_equal() -> None:
    subject = Subject("torch.softmax(x, dim=1)", "torch.rand(512, 512)")

    def slow(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        softmax(given, outputs)
        time.sleep(0.02)

    held: list[bool] = []
    equal = Bench(subject, softmax, hold=held.append).compare(Baseline.EAGER, 1e-3, QUICK)
    slower = Bench(subject, slow).compare(Baseline.EAGER, 2e-2, QUICK)
    assert slower.speedup.median < equal.speedup.median
    assert slower.kernel_us.median > 20_000
    assert equal.pairs >= MIN_PAIRS
    assert True in held
    assert held[-1] is False


@pytest.mark.parametrize("eager", [True, False])
def test_a_launch_that_works_for_those_to_come_is_caught(eager: bool) -> None:
    """Half of a block's launches cost nothing: their share of the work is done by the first that meets new inputs."""
    subject = Subject("torch.softmax(x, dim=1)", "torch.rand(64, 64)")
    done: set[int] = set()

    def ahead(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        softmax(given, outputs)
        if outputs[0].data_ptr() not in done:
            time.sleep(0.02)
            done.update(slots.outputs(slot)[0].data_ptr() for slot in range(slots.count))

    timed = Bench(subject, ahead)
    slots = timed.slots
    fill = timed.blocks.fill

    def fill_and_forget(*arguments: Any) -> Filling:
        done.clear()
        return fill(*arguments)

    timed.blocks.fill = fill_and_forget  # type: ignore[method-assign]
    baseline = Baseline.EAGER if eager else Baseline.COMPILE
    subject.served.server.callers[Baseline.COMPILE.value] = subject.served.server.callers[Baseline.EAGER.value]
    if not eager:
        assert timed.compare(baseline, 1e-4, QUICK).pairs, "asked once of a kernel"
        return
    with pytest.raises(KernelFailed, match="work of launches to come") as caught:
        timed.compare(baseline, 1e-4, QUICK)
    assert caught.value.kind is FailureKind.CLOCK_MISMATCH
    assert caught.value.details == {"launches": 1}


def test_screening_fills_once_and_checks_the_first_launches() -> None:
    subject = Subject("torch.softmax(x, dim=1)", "torch.rand(64, 64)")
    screening = Effort(seconds=5.0, half_width=0.0, hopeless=0.0, max_pairs=4, one_filling=True)
    seen: set[bytes] = set()

    def looks(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        seen.add(given[0].numpy().tobytes())
        softmax(given, outputs)

    timed = Bench(subject, looks)
    found = timed.compare(Baseline.EAGER, 1e-3, screening)
    assert found.pairs == 4
    assert len(seen) <= timed.slots.count
    assert found.launches > len(seen), "later blocks run on what the first was given"
    with pytest.raises(KernelFailed) as caught:
        Bench(subject, lambda _, outputs: outputs[0].fill_(1 / 64)).compare(Baseline.EAGER, 1e-3, screening)
    assert caught.value.kind is FailureKind.WRONG_VALUE


class Graphs:
    """A device whose graphs run what was captured when they are replayed."""

    def __init__(self, device: CpuJudgeDevice, *, works: bool = True) -> None:
        self.replays: list[bool] = []
        self._time = device.baseline_seconds
        self._works = works
        device.graph_below_seconds = 10.0
        device.captured = self.captured  # type: ignore[method-assign]
        device.baseline_seconds = self.timed  # type: ignore[method-assign]

    def captured(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        if not self._works:
            raise GraphUnavailable("it asks for a result")
        calls[0]()

        def replay() -> None:
            for call in calls:
                call()

        self._replay = replay
        return replay

    def timed(self, calls: Sequence[Callable[[], object]]) -> float:
        self.replays.append(list(calls) == [getattr(self, "_replay", None)])
        return self._time(calls)


@pytest.mark.parametrize("fault", ["", "kernel", "baseline"])
def test_both_sides_go_through_graphs_or_neither(fault: str) -> None:
    subject = Subject("torch.softmax(x, dim=1)", "torch.rand(64, 64)")
    graphs = Graphs(subject.device, works=fault != "baseline")
    timed = Bench(subject, softmax)
    link = timed.link
    link.uncapturable = "cooperative" if fault == "kernel" else ""
    found = timed.compare(Baseline.EAGER, 1e-3, QUICK)
    assert found.graphs is not bool(fault)
    plain = link.runs - link.replays
    assert plain >= 1, "the first pair tells how long a launch takes"
    assert (link.replays if found.graphs else plain - 1) >= found.pairs
    assert graphs.replays[0] is False
    assert graphs.replays[-found.pairs :] == [found.graphs] * found.pairs
    assert len(timed.timer.notes) == bool(fault)


def test_wrong_results_of_a_graph_are_caught() -> None:
    subject = Subject("torch.softmax(x, dim=1)", "torch.rand(64, 64)")
    Graphs(subject.device)
    timed = Bench(subject, softmax)
    link = timed.link
    link.replay = lambda timeout, release=None: Ran(1e-4, 1e-4, [])  # type: ignore[method-assign] # noqa: ARG005
    with pytest.raises(KernelFailed) as caught:
        timed.compare(Baseline.EAGER, 1e-3, QUICK)
    assert caught.value.kind is FailureKind.UNWRITTEN_OUTPUT


def test_results_from_earlier_blocks_are_caught() -> None:
    subject = Subject("torch.softmax(x, dim=1)", "torch.rand(64, 64)")
    kept: dict[int, torch.Tensor] = {}

    def memo(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        key = given[0].data_ptr()
        if key not in kept:
            kept[key] = torch.softmax(given[0], dim=1)
        outputs[0].copy_(kept[key])

    with pytest.raises(KernelFailed) as caught:
        Bench(subject, memo).compare(Baseline.EAGER, 1e-3, QUICK)
    assert caught.value.kind is FailureKind.WRONG_VALUE
    assert caught.value.details["law"] == "timed"


def test_no_part_of_a_large_timed_output_goes_unseen() -> None:
    """Else a kernel could leave out a part that seldom lies in one stretch, best of all the end."""
    count, chance = 8 * WINDOW_ELEMENTS + 12345, random.Random(1)
    windows = windows_of(count, chance)
    assert sum(window.stop - window.start for window in windows) == WINDOW_ELEMENTS
    assert (windows[0].start, windows[-1].stop) == (0, count)
    gaps = [after.start - before.stop for before, after in itertools.pairwise(windows)]
    assert max(gaps) < 2 * count / (WINDOWS - 2)
    assert windows_of(100, random.Random(1)) == [slice(0, 100)]
    seen = sorted((window.start, window.stop) for _ in range(100) for window in windows_of(count, chance))
    never = [after - before for (_, before), (after, _) in itertools.pairwise(seen)]
    assert max(never) < count / WINDOWS / 10, "nor does any part go unseen in every launch"


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda given, _: given[0][::16].fill_(1e-40), FailureKind.INPUT_MUTATED),
        (lambda _, outputs: outputs[0].zero_(), FailureKind.WRONG_VALUE),
    ],
)
def test_what_is_done_to_one_timed_launch_of_three_is_seen(spoil: Body, kind: FailureKind) -> None:
    """Spoilt inputs could make PyTorch slow there, and work could be saved there."""
    subject, calls = Subject("torch.softmax(x, dim=1)", "torch.rand(64, 64)"), [0]

    def body(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        softmax(given, outputs)
        calls[0] += 1
        if calls[0] % 3 == 0:
            spoil(given, outputs)

    with pytest.raises(KernelFailed) as caught:
        Bench(subject, body).compare(Baseline.EAGER, 1e-3, QUICK)
    assert caught.value.kind is kind
    assert caught.value.details["law"] == "timed"


def test_work_for_a_launch_that_never_comes_is_seen() -> None:
    """One launch could do what is timed as many, and the others find theirs done."""
    subject = Subject("torch.softmax(x, dim=1)", "torch.rand(64, 64)")
    known: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}

    def ahead(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        known[outputs[0].data_ptr()] = given, outputs
        for others in known.values():
            softmax(*others)

    with pytest.raises(KernelFailed) as caught:
        Bench(subject, ahead).compare(Baseline.EAGER, 1e-3, QUICK)
    assert caught.value.kind is FailureKind.OUT_OF_BOUNDS_WRITE
    assert "works ahead" in str(caught.value)


def test_what_compiled_code_gets_wrong_is_not_the_kernels() -> None:
    subject = Subject("torch.softmax(x, dim=1)", "torch.rand(64, 64)")

    def wrong(given: Sequence[torch.Tensor]) -> Callable[[], torch.Tensor]:
        return lambda: torch.zeros_like(given[0])

    subject.served.server.callers[Baseline.COMPILE.value] = wrong
    found = Bench(subject, softmax).compare(Baseline.COMPILE, 1e-3, QUICK)
    assert found.pairs >= MIN_PAIRS


@pytest.mark.parametrize(
    ("disagreements", "lies"),
    [
        ([(0.008, 0.0)] * 6, True),
        ([(0.010, 0.001), (0.012, 0.0012)] * 3, True),
        ([(0.008, 0.02)] * 6, True),
        ([(0.030, 0.008), (0.250, 0.009), (0.012, 0.008)] * 2, False),
        ([(0.030, 0.028), (0.090, 0.081)] * 3, False),
        ([(0.012, 0.0003), (0.020, 0.0003)] * 3, False),
    ],
)
def test_waiting_is_told_from_a_false_clock(disagreements: list[tuple[float, float]], lies: bool) -> None:
    assert clock_lies(disagreements) is lies


def test_pytorchs_answer_is_compared_before_anything_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next question takes the memory that the answer lies in: PyTorch's own error under a law, for example."""
    monkeypatch.setattr(reference_link, "KEPT_SHARE", 0.0)
    monkeypatch.setattr(room, "LARGE_SHARE", 0.0)
    subject = Subject("torch.softmax(x, dim=1)")
    bench = Bench(subject, softmax)

    def error_of_another_answer(law: str) -> float:
        subject.reference.run([torch.zeros_like(subject.cases.get(law).given[0])])
        return 0.0

    bounds = Bounds({laws.OWN: 1e-4}, error_of_another_answer, PRECISIONS[subject.policy], subject.limits)
    monkeypatch.setattr(bench.comparer, "_bounds", bounds)
    monkeypatch.setattr(bench.comparer, "_look_again", lambda _, law: pytest.fail(f"other values under {law}"))
    assert bench.compare(Baseline.EAGER, 1e-3, QUICK).pairs >= MIN_PAIRS


def test_the_slack_of_clocks_follows_the_waits_for_pytorch() -> None:
    """A kernel can hide in no more than what waiting takes on this machine now, and never in more than 2 ms."""
    device = CpuJudgeDevice(threads=1, cache_bytes=2**18, memory_bytes=2**28)
    host, hidden = 8e-3, 6.5e-3
    assert device.kernel_seconds(host, hidden, 1) == host, "nothing is known of the machine yet"
    for _ in range(FEWEST_WAITS):
        assert device.baseline_time(8e-3, 8e-3 - 5e-5) == 8e-3
    assert device.kernel_seconds(host, hidden, 1) is None
    assert device.kernel_seconds(host, host - 9e-4, 1) == host
    assert device.cold_start_seconds == LEAST_COLD_START_SECONDS
    for _ in range(WAITS):
        device.baseline_time(10e-3, 9e-3)  # a busy machine
    assert device.kernel_seconds(host, hidden, 1) == host
    assert device.kernel_seconds(host, host - 3e-3, 1) is None, "at most"
    assert device.cold_start_seconds == CLOCK_SLACK_SECONDS


@pytest.mark.parametrize(("shared", "kind"), [(False, "clock_mismatch"), (True, "infrastructure")])
def test_turns_with_another_process_are_no_false_clock(shared: bool, kind: str) -> None:
    clocks = Clocks(lambda: shared)
    for _ in range(6):
        clocks.disagree(0.008, 0.002)
    with pytest.raises(KernelFailed) as caught:
        clocks.check(good=0)
    assert caught.value.kind == kind
    assert ("another process" in str(caught.value)) is shared


def test_a_clock_that_lies_all_the_time_is_caught() -> None:
    subject = Subject("torch.softmax(x, dim=1)", "torch.rand(64, 64)")
    with pytest.raises(KernelFailed) as caught:
        Bench(subject, softmax, clock=0.1, block=0.008).compare(Baseline.EAGER, 1e-3, QUICK)
    assert caught.value.kind is FailureKind.CLOCK_MISMATCH


def test_a_clock_that_stands_still_is_caught_where_the_machine_was_busy_at_first() -> None:
    """A first block that waited makes blocks of one launch, whose 1.5 ms are within the clocks' slack."""
    subject = Subject("torch.softmax(x, dim=1)", "torch.rand(64, 64)")
    timed = Bench(subject, softmax)
    launched = timed.link.run

    def run(order: Sequence[int], timeout: float, release: Release | None = None) -> Ran:
        launched(order, timeout, release)
        return Ran((0.03 if timed.link.runs == 1 else 0.0015) * len(order), 0.0, [])

    timed.link.run = run  # type: ignore[method-assign]
    with pytest.raises(KernelFailed) as caught:
        timed.compare(Baseline.EAGER, 1e-2, QUICK)
    assert caught.value.kind is FailureKind.CLOCK_MISMATCH


def test_blocks_whose_runner_was_stopped_late_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of a kernel could have gone on after its answer."""
    subject = Subject("torch.softmax(x, dim=1)", "torch.rand(64, 64)")
    monkeypatch.setattr(subject.device, "kernel_seconds", lambda host, *_: host)  # the clocks agree, however busy
    timed, late = Bench(subject, softmax), {2, 3, 4}
    link = timed.link
    timed.blocks._hold = lambda _: time.perf_counter() + (1.0 if link.runs in late else -1.0)
    found = timed.compare(Baseline.EAGER, 1e-3, QUICK)
    assert found.pairs == link.runs - UNPAIRED - len(late)
    timed.blocks._hold = lambda _: time.perf_counter() + 1.0
    with pytest.raises(KernelFailed) as caught:
        timed.compare(Baseline.EAGER, 1e-3, QUICK)
    assert caught.value.kind is FailureKind.INFRASTRUCTURE


def test_what_is_still_written_until_the_runner_stands_still_was_not_done() -> None:
    """An answer ahead of the work saves what is done until the signal arrives, much of a short block."""
    subject = Subject("torch.softmax(x, dim=1)", "torch.rand(64, 64)")
    timed = Bench(subject, softmax)
    launched, link, slots = timed.link.run, timed.link, timed.slots
    answered: list[int] = []

    def run(order: Sequence[int], timeout: float, release: Release | None = None) -> Ran:
        ran = launched(order, timeout, release)
        answered[:] = order
        for slot in order:
            slots.outputs(slot)[0].mul_(2)
        return ran

    def hold(stopped: bool) -> float:
        for slot in answered if stopped else ():
            slots.outputs(slot)[0].div_(2)
        answered.clear()
        return time.perf_counter()

    link.run = run  # type: ignore[method-assign]
    timed.blocks._hold = hold
    with pytest.raises(KernelFailed, match="went on writing") as caught:
        timed.compare(Baseline.EAGER, 1e-3, QUICK)
    assert caught.value.kind is FailureKind.UNWRITTEN_OUTPUT


def test_pairs_of_a_throttled_device_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject("torch.softmax(x, dim=1)", "torch.rand(64, 64)")
    blocks = [False, False, True, True, True, False, False, False, False, True]
    said = iter(DeviceState(clocks_mhz={"sm": 1980.0}, throttled=block) for block in blocks)
    usual = DeviceState(clocks_mhz={"sm": 1950.0}, throttled=False)
    monkeypatch.setattr(subject.device, "state", lambda: next(said, usual))
    timed = Bench(subject, softmax)
    found = timed.compare(Baseline.EAGER, 1e-3, QUICK)
    pairs = timed.link.runs - UNPAIRED
    assert found.pairs == pairs - 3
    assert timed.timer.notes == ["eager: 3 pairs were dropped, the device was throttled"]
    assert found.conditions is not None
    assert found.conditions.blocks == 2 * found.pairs
    assert found.conditions.throttled_blocks == 4
    assert found.conditions.clocks_mhz["sm"] == Span(low=1950.0, high=1980.0)


def test_a_device_that_stays_throttled_is_not_the_kernels_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject("torch.softmax(x, dim=1)", "torch.rand(64, 64)")
    monkeypatch.setattr(subject.device, "state", lambda: DeviceState(throttled=True))
    with pytest.raises(KernelFailed) as caught:
        Bench(subject, softmax).compare(Baseline.EAGER, 1e-3, QUICK)
    assert caught.value.kind is FailureKind.INFRASTRUCTURE


def test_intervals() -> None:
    steady = median_interval([1.0, 1.01, 0.99, 1.0, 1.0, 1.01, 0.99])
    assert steady.median == pytest.approx(1.0)
    assert half_width(steady) < 0.02
    assert half_width(median_interval([1.0, 2.0, 4.0, 8.0])) > 0.5
    assert median_interval([3.0, 5.0, 4.0]) == median_interval([3.0, 5.0, 4.0])
