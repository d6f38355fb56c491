"""Admits a problem before any kernel is written for it: laws, tolerances, and proof that null kernels fail."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import NumericsPolicy, Role, TensorSpec
from gpu_worker.judge import exactness, laws, near_ties, ties
from gpu_worker.judge.cases import MOST_ERROR, Case, Cases, finite, usable_error
from gpu_worker.judge.deviation import (
    disagreement,
    flat,
    largest,
    stretches,
    unreadable,
)
from gpu_worker.judge.dtypes import TORCH_DTYPES
from gpu_worker.judge.null_kernels import null_outputs, run_on_half
from gpu_worker.judge.reference_link import ReferenceLink
from gpu_worker.judge.refusal import FIXED_SHAPES, SHAPES_BY_VALUES, UnusableReference, out_of_memory
from gpu_worker.judge.tolerance import Precision, calibrate, precision_of

CLEAR_OF_OVERFLOW = 2.0**-4
"""Share of the largest number of a type up to which outputs may come."""

DRAWS_TO_ANSWER = 12
"""Draws under a law that a reference has to answer, where there are others that it does not."""

NO_ROOM = "there is too little memory for its answer in float64"

LOWER_PRECISION = "lower_precision"
_OF_DROPOUT = ("dropout", "bernoulli")
"""Parts of the names of calls by which dropout draws random numbers."""


@dataclass(frozen=True)
class Admitted:
    """A law with its tolerance, and the error of PyTorch's own answer."""

    law: str
    tolerance: float
    reference_error: float
    rejects: frozenset[str]
    """Null kernels that fail under this law."""
    passes: frozenset[str]
    """Null kernels that pass under this law."""
    turns_on_ties: bool = False
    """True if another order of equal elements makes another answer."""


@dataclass(frozen=True)
class Admission:
    """Result of admitting a problem."""

    laws: tuple[Admitted, ...]
    nulls: dict[str, bool]
    """Null kernel: whether some law rejects it."""
    notes: tuple[str, ...]


def admit(reference: ReferenceLink, cases: Cases, specs: Sequence[TensorSpec], policy: NumericsPolicy) -> Admission:
    """Try every law and null kernel; raises :class:`UnusableReference` where a null kernel cannot be told apart."""
    _check_deterministic(reference, cases.get(laws.OWN))
    precision = precision_of(policy, specs)
    drawn = reference.draw(_other_seed())
    notes = _unchanging(specs, cases.get(laws.OWN).given, drawn)
    multiplies = _multiplies_safely(cases.get(laws.OWN), specs)
    previous = reference.run(drawn)
    del drawn  # as large as all that a case is given
    subject = _Subject(reference, cases, specs, precision, previous, multiplies)
    own, why = _try_law(laws.OWN, subject)
    if own is None:
        way_out = FIXED_SHAPES if why == SHAPES_BY_VALUES else ""
        raise UnusableReference(f"no kernel could be judged on this problem's own inputs: {why}{way_out}")
    if cases.get(laws.OWN).short:
        notes.append(f"law own: {NO_ROOM}; PyTorch's float32 answer is the standard")
    kept = [own]
    trials: dict[str, Callable[[], tuple[Admitted | None, str]]] = {
        **{law: partial(_try_sizes, law, subject) for law in (*laws.TRIED, *laws.of_parameters(specs))},
        laws.PERTURBED: lambda: (
            _try_law(laws.PERTURBED, subject)
            if cases.perturb(own.tolerance)
            else (None, "no single input element visibly moves the output")
        ),
        laws.INTEGERS: lambda: _try_integers(subject, policy),
    }
    tried = {law: _tried(trial, subject) for law, trial in trials.items()} if laws.drawn_role(specs) else {}
    raises = any(trial.raised for trial in tried.values())
    for law, trial in tried.items():
        admitted, why = trial.admitted, trial.why
        if raises and admitted is not None and not _always_answers(admitted.law, subject):
            admitted, why = None, "the reference raises on some of its draws"
        if admitted is None:
            notes.append(f"law {law} left out: {why}")
        else:
            kept.append(admitted)
        if admitted is not None and admitted.law != law:
            notes.append(f"law {law} at a smaller size, {admitted.law}: {why}")
    notes += [
        f"law {item.law}: {disagreement(item.reference_error)}; kernels are held to {item.tolerance:.2g}"
        for item in kept
        if item.law != laws.INTEGERS and not usable_error(item.reference_error)
    ]
    notes += [
        f"law {item.law}: {ties.REASON}; kernels may take the first of them first, or the last"
        for item in kept
        if item.turns_on_ties
    ]
    nulls = _verdicts(kept, notes)
    passing = sorted(name for name, rejected in nulls.items() if not rejected)
    if passing:
        raise UnusableReference(
            f"a kernel that computes nothing would pass on this problem ({', '.join(passing)}): "
            "its output hardly depends on its inputs"
        )
    return Admission(tuple(kept), nulls, tuple(notes))


def _unchanging(
    specs: Sequence[TensorSpec], drawn: Sequence[torch.Tensor], redrawn: Sequence[torch.Tensor]
) -> list[str]:
    """Note the inputs that are the same in each draw and under each law, which no kernel has to read."""
    names = [
        spec.name
        for spec, first, second in zip(
            [spec for spec in specs if spec.role is not Role.OUTPUT], drawn, redrawn, strict=True
        )
        if spec.role is Role.INPUT and not first.is_floating_point() and torch.equal(first, second)
    ]
    return [f"the same in each draw, so that no kernel has to read them: {', '.join(names)}"] if names else []


@dataclass(frozen=True)
class _Subject:
    """A problem that laws are tried on."""

    reference: ReferenceLink
    cases: Cases
    specs: Sequence[TensorSpec]
    precision: Precision
    previous: Sequence[torch.Tensor]
    """Outputs for another draw: what null kernels know."""
    multiplies: bool
    """True if results on the problem's own inputs, multiplied by each other, stay in range."""


@dataclass(frozen=True)
class _Trial:
    """The result of trying a law."""

    admitted: Admitted | None
    why: str
    raised: bool = False
    """True if the reference raises on its inputs."""


def _tried(trial: Callable[[], tuple[Admitted | None, str]], subject: _Subject) -> _Trial:
    """Return a trial's result; no law and the reason where the reference raises on its inputs, or memory is too short.

    Where it is, the trial is made again without what is kept for others.
    """
    try:
        return _Trial(*trial())
    except (UnusableReference, RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            return _unanswered(error)
    subject.cases.drop()
    subject.reference.release_memory()
    subject.reference.device.release_unused()
    try:
        return _Trial(*trial())
    except (UnusableReference, RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            return _unanswered(error)
        return _Trial(None, NO_ROOM if str(error) == NO_ROOM else "there is too little memory for it")


def _unanswered(error: Exception) -> _Trial:
    """Return why the reference has no answer (a matrix without an inverse); raises what says nothing of it."""
    if isinstance(error, UnusableReference):
        return _Trial(None, str(error), raised=True)
    raise error


def _always_answers(law: str, subject: _Subject) -> bool:
    """Return whether the reference answers more draws of a law; other answers mean nothing here."""
    try:
        for _ in range(DRAWS_TO_ANSWER):
            subject.reference.run(subject.cases.another(law))
    except UnusableReference as error:
        if error.kind is FailureKind.OUT_OF_MEMORY:
            raise
        return False
    return True


def _try_sizes(law: str, subject: _Subject) -> tuple[Admitted | None, str]:
    """Return a law at the largest of its sizes that tells something; also why larger ones, or all, tell nothing."""
    reason = ""
    for size in laws.sizes(law):
        admitted, why = _try_law(size, subject)
        reason = reason or why
        if admitted is not None:
            return admitted, reason
    return None, reason


def _try_integers(subject: _Subject, policy: NumericsPolicy) -> tuple[Admitted | None, str]:
    """Return the law of whole numbers, where the operator has exact answers to them."""
    specs = [spec for spec in subject.specs if spec.role is not Role.OUTPUT]
    try:
        unit = exactness.quantum(subject.reference, subject.cases.get(laws.INTEGERS).given, specs, policy)
    except exactness.NotExact as error:
        return None, str(error)
    tolerance = exactness.ALLOWED_QUANTA * unit
    admitted, why = _try_law(laws.INTEGERS, subject, exact_tolerance=tolerance)
    if admitted is not None and admitted.reference_error > tolerance / 2:
        return None, f"PyTorch itself errs by {admitted.reference_error / unit:.2g} of the outputs' unit"
    return admitted, why


def _try_law(law: str, subject: _Subject, *, exact_tolerance: float | None = None) -> tuple[Admitted | None, str]:
    """Return a law with a calibrated tolerance, or with the exact one; None and the reason where it tells nothing."""
    reference, previous = subject.reference, subject.previous
    case = _case(law, subject)
    if isinstance(case, str):
        return None, case
    own = reference.run(case.given)
    near = near_ties.neighbours(reference, case)
    error = largest(case.expected, near_ties.settled(own, near))
    calibrated = (
        calibrate(reference, case, error, subject.precision, near)
        if exact_tolerance is None
        else (exact_tolerance, None)
    )
    moved = ties.moved_by_ties(reference, case) if law != laws.INTEGERS else 0.0
    if calibrated is None:
        return None, disagreement(error) if moved < MOST_ERROR else ties.REASON
    tolerance, lower = calibrated
    if moved > tolerance and law != laws.OWN:
        return None, ties.REASON
    nulls = null_outputs(case, own, previous)
    on_half = run_on_half(reference, subject.specs, case.given, own)
    if on_half is not None:
        nulls["half_of_batch"] = lambda: on_half
    passes = {name for name, outputs in nulls.items() if largest(case.expected, outputs(), tolerance) <= tolerance}
    tried = set(nulls)
    if lower is not None:
        tried.add(LOWER_PRECISION)
        if lower <= tolerance:
            passes.add(LOWER_PRECISION)
    if law != laws.OWN and passes & {"zeros", "constant"}:
        return None, "a constant would pass there"
    return Admitted(law, tolerance, error, frozenset(tried - passes), frozenset(passes), moved > tolerance), ""


def _case(law: str, subject: _Subject) -> Case | str:
    """Return the law's case, or the reason why nothing can be learnt from the reference's answer to it."""
    if laws.kind(law) == laws.PLANTED_EXTREMES:
        most = laws.at_size_of(law, laws.MOST_EXTREMES)
        if not _in_range(subject.cases.get(most), subject.specs):
            return "with more extremes, its outputs leave the range of their type or come near its end"
    case = subject.cases.get(law)
    if case.short and law != laws.OWN:
        raise UnusableReference(NO_ROOM, FailureKind.OUT_OF_MEMORY)
    if case.shapes != [tensor.shape for tensor in subject.previous]:
        return SHAPES_BY_VALUES
    if law != laws.OWN and not finite(case):
        return "the reference is not finite there"
    if subject.multiplies and not _multiplies_safely(case, subject.specs):
        return "two of its results, multiplied, leave the range of what they are computed in"
    if all(unreadable(item.values) for item in case.expected):
        return "every value of the reference's output is NaN or infinite: look at get_inputs() and the formula"
    if all(flat(item.values) for item in case.expected):
        return "the reference's output is the same everywhere"
    return case


def _in_range(case: Case, specs: Sequence[TensorSpec]) -> bool:
    """Return whether outputs stay clear of overflow, so that no right order of operations overflows before another."""
    return all(
        laws.largest_magnitude(values) <= CLEAR_OF_OVERFLOW * torch.finfo(dtype).max
        for values, dtype in _floating(case, specs)
    )


def _multiplies_safely(case: Case, specs: Sequence[TensorSpec]) -> bool:
    """Return whether the product of two results stays in range: a scan of products multiplies parts in any order."""
    return all(
        laws.largest_magnitude(values) <= math.sqrt(torch.finfo(torch.promote_types(dtype, torch.float32)).max)
        for values, dtype in _floating(case, specs)
    )


def _floating(case: Case, specs: Sequence[TensorSpec]) -> list[tuple[torch.Tensor, torch.dtype]]:
    """Return the expected values of outputs that are no whole numbers, and the outputs' types."""
    outputs = [spec for spec in specs if spec.role is Role.OUTPUT]
    return [
        (item.values, TORCH_DTYPES[spec.dtype])
        for item, spec in zip(case.expected, outputs, strict=True)
        if item.values.is_floating_point()
    ]


def _verdicts(kept: Sequence[Admitted], notes: list[str]) -> dict[str, bool]:
    names = sorted({name for item in kept for name in item.rejects | item.passes})
    verdicts = {name: any(name in item.rejects for item in kept) for name in names}
    if LOWER_PRECISION not in verdicts:
        notes.append("lower precision was not tried: outputs are integers, or the policy's own error is no smaller")
    if not verdicts.get(LOWER_PRECISION, True):
        del verdicts[LOWER_PRECISION]
        notes.append("lower precision cannot be told from the policy's on this problem")
    return verdicts


def _check_deterministic(reference: ReferenceLink, case: Case) -> None:
    first = reference.run(case.given, seed=_other_seed())
    second = reference.run(case.given, seed=_other_seed())
    for tensor, again in zip(first, second, strict=True):
        for mine, its in zip(*map(stretches, (tensor, again)), strict=True):
            if not torch.allclose(mine.double(), its.double(), rtol=1e-3, atol=1e-6, equal_nan=True):
                raise UnusableReference(
                    f"the reference gives different outputs for the same inputs: {_how_to_be_deterministic(reference)}"
                )


def _how_to_be_deterministic(reference: ReferenceLink) -> str:
    """Return what to change in a file whose forward draws random numbers."""
    drawing = [node for node in reference.graph.nodes if any(name in node.op for name in _OF_DROPOUT)]
    lines = ", ".join(str(line) for line in sorted({node.line for node in drawing if node.line is not None}))
    if not drawing:
        return "forward must draw no random numbers; call `self.eval()` in `__init__` where they are those of dropout"
    place = f" in line {lines}" if lines else ""
    return f"dropout{place} draws random numbers; call `self.eval()` in `__init__`, or give it p=0"


def _other_seed() -> int:
    return secrets.randbits(31)
