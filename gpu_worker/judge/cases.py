"""Cases: the inputs and expected outputs under each input law, from hidden seeds, within a memory budget.

A case that does not fit the budget any more is made again from its seed when it is needed: the same data each time.
"""

from __future__ import annotations

import math
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cupilot.domain.problem import Role, TensorSpec
from gpu_worker.judge import deviation, laws
from gpu_worker.judge.deviation import ABSOLUTE, Expected, largest, unit_of
from gpu_worker.judge.reference_link import ReferenceLink

PERTURBATION_STEPS = (1.0, 30.0, 1e3, 3e4, 1e6)
"""In units of the input's magnitude, tried in turn until the output visibly moves."""

MOST_ERROR = 0.05
"""Error of PyTorch's own answer from which on it is no measure of a kernel's."""

_BASE = "base"
"""Name of the seed of the draw that derived laws share."""

BASE_SHARE = 0.25
"""Of the memory for cases, what the draw that derived laws share may take beside them."""

VISIBLE = 50.0
"""A perturbation is visible when it moves the output by this many tolerances."""


@dataclass(frozen=True)
class Case:
    """One law's data."""

    law: str
    given: tuple[torch.Tensor, ...]
    """Inputs, parameters, buffers: what the kernel is given, in the order of the specs."""
    expected: tuple[Expected, ...]
    short: bool = False
    """True if float32 stands in for the exact answer, for which there was too little memory."""

    @property
    def shapes(self) -> list[torch.Size]:
        """Those of the outputs."""
        return [item.values.shape for item in self.expected]

    @property
    def nbytes(self) -> int:
        """Memory that the case holds on to."""
        tensors = [*self.given, *(item.values for item in self.expected)]
        tensors += [item.selection.values for item in self.expected if item.selection is not None]
        return _size(tensors)


class Cases:
    """The cases of one problem, by law."""

    def __init__(
        self,
        reference: ReferenceLink,
        specs: Sequence[TensorSpec],
        budget_bytes: int,
        *,
        rounding: float,
        factor: float,
    ) -> None:
        """Keep cases of up to so many bytes; ``rounding`` and ``factor`` are those of selected values."""
        self._reference = reference
        self._rounding, self._factor = rounding, factor
        self._specs = [spec for spec in specs if spec.role is not Role.OUTPUT]
        self._budget = budget_bytes
        self._seeds: dict[str, int] = {}
        self._kept: OrderedDict[str, Case] = OrderedDict()
        self._step: float | None = None
        self._drawn: list[torch.Tensor] | None = None

    def get(self, law: str) -> Case:
        """Return the case of this law, the same data each time within this process."""
        case = self._kept.pop(law, None)
        if case is None:
            case = self._make(law)
        self._kept[law] = case
        return case

    def another(self, law: str) -> list[torch.Tensor]:
        """Return inputs of another draw under this law, which are not kept."""
        own = self._reference.draw(secrets.randbits(48))
        return laws.apply(law, own, self._specs, secrets.randbits(48), self.step)

    def limit(self, budget_bytes: int) -> None:
        """Keep cases of up to so many bytes from now on."""
        self._budget = budget_bytes
        self._drop_beyond(budget_bytes)

    def drop(self) -> None:
        """Keep none of them, until they are asked for again."""
        self._kept.clear()

    def held(self) -> int:
        """Return bytes of the cases that are kept."""
        return sum(case.nbytes for case in self._kept.values())

    def make_room(self) -> None:
        """Drop cases, so that one more like those that are kept fits the budget."""
        needed = max((case.nbytes for case in self._kept.values()), default=0)
        self._drop_beyond(self._budget - needed)

    def _drop_beyond(self, budget_bytes: int) -> None:
        """Drop cases until the others fit: the most recently used one first, the problem's own last.

        Laws are audited in turn, each once a kernel; the problem's own comes first and last, and others start from it.
        """
        while self._kept and self.held() > budget_bytes:
            others = [law for law in self._kept if law != laws.OWN]
            del self._kept[others[-1] if others else laws.OWN]

    def expect(self, law: str, inputs: Sequence[torch.Tensor]) -> Case:
        """Return a case from given tensors: runs the reference in float64. Cases that leave it no room are dropped."""
        self.make_room()
        expected = [
            Expected(
                values,
                ABSOLUTE if law == laws.INTEGERS else unit_of(values),
                selection,
                rounding=self._rounding,
                factor=self._factor,
            )
            for values, selection in self._reference.run_selecting(inputs)
        ]
        return Case(law, tuple(inputs), tuple(expected), self._reference.short)

    @property
    def step(self) -> float:
        """Size of a perturbation that visibly moves the output; after :meth:`perturb`."""
        return PERTURBATION_STEPS[0] if self._step is None else self._step

    def perturb(self, tolerance: float) -> bool:
        """Find a perturbation that visibly moves the output; False where no input element matters that much."""
        if self._step is not None:
            return True
        base = self.get(laws.OWN)
        for step in PERTURBATION_STEPS:
            case = self.expect(laws.PERTURBED, self._perturbed(step))
            if not finite(case) or case.shapes != base.shapes:
                break
            if largest(base.expected, [item.values for item in case.expected]) > VISIBLE * tolerance:
                self._step = step
                self._kept[laws.PERTURBED] = case
                return True
            del case  # before the next one takes as much memory
        return False

    def _seed(self, law: str) -> int:
        return self._seeds.setdefault(law, secrets.randbits(48))

    def _make(self, law: str) -> Case:
        if law == laws.PERTURBED:
            return self.expect(law, self._perturbed(self.step))
        self.make_room()
        return self.expect(law, self._given(law))

    def _given(self, law: str) -> list[torch.Tensor]:
        own = self._reference.draw(self._seed(laws.OWN)) if law == laws.OWN else self._base()
        return laws.apply(law, own, self._specs, self._seed(law))

    def _base(self) -> list[torch.Tensor]:
        """Return the draw that all derived laws start from, which is kept, since drawing is slow.

        Where memory is short, it is that of the problem's own law, if that is kept.
        """
        if self._drawn is not None:
            return self._drawn
        own = self._kept.get(laws.OWN)
        if own is not None and _size(own.given) >= BASE_SHARE * self._budget:
            return list(own.given)
        drawn = self._reference.draw(self._seed(_BASE))
        if _size(drawn) < BASE_SHARE * self._budget:
            self._drawn = drawn
        return drawn

    def _perturbed(self, step: float) -> list[torch.Tensor]:
        return laws.apply(laws.PERTURBED, self.get(laws.OWN).given, self._specs, self._seed(laws.PERTURBED), step)


def _size(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def finite(case: Case) -> bool:
    """Return whether every expected value is finite."""
    return all(deviation.finite(item.values) for item in case.expected)


def usable_error(error: float) -> bool:
    """Return whether PyTorch's own answer is near enough to the exact one for a comparison to mean anything."""
    return math.isfinite(error) and error < MOST_ERROR
