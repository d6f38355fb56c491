"""Fresh inputs for every block of launches: each slot holds a mixture of hidden draws under an input law of its own.

A block's slots are of all laws at random places, and blocks that are audited are filled as those that are timed, so
that nothing tells a kernel which is which. Each slot has parameters and buffers of its own too: what a kernel prepares
from them in one launch is of no use in the next. Values are new in each filling: each element lies between two draws at
its own place, near one of them, by random numbers that begin at a random place; so ranges and structural zeros survive,
and no result can be remembered. Whole numbers take the value of either draw. The random numbers of symmetric matrices
are symmetric; where the reference has no answer to such a mixture (a Cholesky factor), two draws are blended by one
number, alike at all places, and rolled along their diagonal. Tensors whose neighbours belong together are put together
from a few stretches, blended in the same way; a vector in order is sorted again, and one permutation is taken by
another. Draws are replaced by new ones all the time where drawing is quick, and now and then where it is not.
"""

from __future__ import annotations

import itertools
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import Role, TensorSpec
from gpu_worker.judge import laws
from gpu_worker.judge.deviation import finite, stretches
from gpu_worker.judge.mixing import AT_ONCE, NEAREST, PERIOD, Mixer
from gpu_worker.judge.reference_link import ReferenceLink
from gpu_worker.judge.refusal import UnusableReference
from gpu_worker.judge.slots import Slots, flat_storage
from gpu_worker.judge.structure import Structure, belong_together, like

STRETCHES = 3
MIXTURES_TRIED = 3

QUICK_DRAW_SECONDS = 5e-3
"""Draws that take less are replaced with each filling."""

DRAWING_SHARE = 0.05
"""Other draws are replaced so often that this share of the time goes to drawing."""

LARGEST_RENEWED = 2**28
"""Bytes of a draw up to which that is done: beside the pool, one more is in memory while it is drawn."""

WANTED = 3
"""Launches to be compared under each law; laws that have fewer are drawn more often."""
PREFERENCE = 4.0


@dataclass(frozen=True)
class _Given:
    """Facts about one given tensor."""

    spec: TensorSpec
    structure: Structure
    together: bool
    """True if neighbours belong together."""
    smooth: bool
    """True if values between two draws mean something."""
    ordered: bool
    """True for vectors that rise throughout."""
    permutes: bool
    """True for vectors that hold each whole number below their length once."""


class Fillings:
    """A pool of draws, and the slots that are filled from it."""

    def __init__(
        self,
        reference: ReferenceLink,
        specs: Sequence[TensorSpec],
        seeds: Sequence[int],
        step: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """Draw the pool; ``step`` gives the size of a perturbation that visibly moves the output."""
        self._reference = reference
        self._step = step
        self._draw_seconds = 0.0
        self._next_draw = 0.0
        """On the monotonic clock, for draws that are not quick."""
        specs = [spec for spec in specs if spec.role is not Role.OUTPUT]
        self._inputs = sum(spec.role is Role.INPUT for spec in specs)
        self._role = laws.drawn_role(specs)
        self._random = random.Random(secrets.randbits(64))
        drawn = [self._draw(reference, seed) for seed in seeds]
        device = drawn[0][0].device
        self._generator = torch.Generator(device=device)
        self._first = drawn[0]
        varied = [self._varied(specs, draw) for draw in drawn]
        self._pool = [[flat_storage(tensor) for tensor in draw] for draw in varied]
        self._given = [
            _Given(
                spec,
                Structure.of(versions[0], spec.role),
                belong_together(versions),
                _smooth(versions),
                ordered=all(map(_rises, versions)),
                permutes=all(map(_permutes, versions)),
            )
            for spec, versions in zip(specs, zip(*varied, strict=True), strict=True)
        ]
        self._tiny = any(laws.tiny(tensor) for tensor in drawn[0][self._inputs :])
        self._mixer = Mixer(self._generator.manual_seed(secrets.randbits(60)), device)
        self._rolled = self._blended = False
        if any(given.structure.symmetric for given in self._given) and not self._answers_mixtures(reference):
            self._rolled = self._blended = True
            self._blended = self._answers_mixtures(reference)

    @property
    def at_once(self) -> int:
        """Most slots to fill in one call: in less time than one by one, and their inputs stay in a cache until then."""
        return max(1, AT_ONCE // max((given.spec.storage_elements for given in self._given), default=1))

    def fill(self, slots: Slots, drawn: Mapping[int, str]) -> None:
        """Write new inputs, parameters and buffers into slots, each under its law."""
        with one_thread() if self.at_once > 1 else nullcontext():
            for index, given in enumerate(self._given):
                self._mix_slots(slots, list(drawn), index, given)
            for slot, law in drawn.items():
                if law != laws.OWN:
                    self._put_under(law, slots, slot)

    def _put_under(self, law: str, slots: Slots, slot: int) -> None:
        """Draw what lies in a slot under a law."""
        action = laws.transform(law, self._step())
        views = slots.given(slot)
        for index, (given, storage) in enumerate(zip(self._given, slots.storages(slot), strict=True)):
            if not storage.is_floating_point():
                continue
            if given.spec.role is not Role.INPUT and laws.draws_state(law, tiny=self._tiny):
                state = laws.moved_state(law, views[index], given.spec.role, given.structure, self._seeded())
                storage.copy_(flat_storage(state))
            if action is not None and given.spec.role is self._role and not laws.draws_parameters(law):
                laws.change(action, views[index], given.structure, self._seeded())

    def renew(self) -> None:
        """Replace a draw of the pool by a new one, where that is quick, or has not been done for long."""
        if self._draw_seconds > QUICK_DRAW_SECONDS and not self._may_draw():
            return
        drawn = self._draw(self._reference, secrets.randbits(40))
        varied = self._varied([given.spec for given in self._given], drawn)
        self._pool[self._random.randrange(len(self._pool))] = [flat_storage(tensor) for tensor in varied]

    def _may_draw(self) -> bool:
        size = sum(given.spec.nbytes for given in self._given)
        return size <= LARGEST_RENEWED and time.monotonic() > self._next_draw

    def _seeded(self) -> torch.Generator:
        return self._generator.manual_seed(self._random.getrandbits(60))

    def _mix_slots(self, slots: Slots, chosen: Sequence[int], index: int, given: _Given) -> None:
        """Write mixtures of draws of one tensor into slots."""
        if len(chosen) < 2 or given.together or given.structure.symmetric:
            for slot in chosen:
                self._mix_into(slots.storages(slot)[index], index)
            return
        pool = [draw[index] for draw in self._pool]
        pairs = [self._two_draws() for _ in chosen]
        begins = [self._random.randrange(PERIOD) for _ in chosen]
        self._mixer.mix_rows(slots.rows(given.spec), chosen, pool, pairs, begins, smooth=given.smooth)

    def _mix_into(self, into: torch.Tensor, index: int) -> None:
        """Write a mixture of draws into a flat storage."""
        given = self._given[index]
        if given.structure.symmetric and self._rolled:
            self._roll(into, index)
        elif given.together:
            self._put_together(into, index)
        else:
            first, second = (self._pool[draw][index] for draw in self._two_draws())
            begin = self._random.randrange(PERIOD)
            if given.structure.symmetric and 0 not in given.spec.strides:
                self._mixer.mix_symmetric(into, first, second, begin, given.spec, smooth=given.smooth)
            else:
                self._mixer.mix(into, first, second, begin, smooth=given.smooth)

    def _roll(self, into: torch.Tensor, index: int) -> None:
        """Write symmetric matrices, of one draw or between two, rows and columns rolled by the same random number."""
        given = self._given[index]
        first, second = (self._pool[draw][index] for draw in self._two_draws())
        self._write(into, first, second, blended=self._blended and given.smooth)
        if given.spec.contiguous and not given.structure.zeros:
            matrices = into.view(given.spec.shape)
            shift = self._random.randrange(given.spec.shape[-1])
            matrices.copy_(matrices.roll((shift, shift), (-2, -1)))

    def _write(self, into: torch.Tensor, draw: torch.Tensor, other: torch.Tensor, *, blended: bool) -> None:
        """Write a draw, or one a random part of the way to another, alike at all places: what is in order stays so."""
        if blended:
            torch.lerp(draw, other, NEAREST * self._random.random(), out=into)
        else:
            into.copy_(draw)

    def _put_together(self, into: torch.Tensor, index: int) -> None:
        """Write stretches of whole rows, cut at random places, of one draw each; state is one draw, whole."""
        given = self._given[index]
        spec = given.spec
        draws = [self._pool[draw][index] for draw in self._random.sample(range(len(self._pool)), len(self._pool))]
        self._write(into, *draws[:2], blended=given.smooth)  # what lies between rows too
        if index >= self._inputs or 0 in spec.strides or (not spec.contiguous and len(spec.shape) < 2):
            return
        if given.permutes:
            for _ in range(self._random.randrange(1, STRETCHES + 1)):
                into.copy_(into[self._random.choice(draws).long()])
            return
        target, *sources = [_rows(storage, spec) for storage in (into, *draws)]
        rows = target.shape[0]
        edges = [0, *sorted(self._random.randrange(rows + 1) for _ in range(STRETCHES - 1)), rows]
        pairs = zip(sources, [*sources[1:], sources[0]], strict=True)
        for (start, end), pair in zip(itertools.pairwise(edges), itertools.cycle(pairs)):  # endless
            self._write(target[start:end], *(source[start:end] for source in pair), blended=given.smooth)
        if given.ordered:
            into.copy_(into.sort().values)

    def _two_draws(self) -> Sequence[int]:
        return self._random.sample(range(len(self._pool)), 2)

    def _answers_mixtures(self, reference: ReferenceLink) -> bool:
        """Return whether the reference has finite answers to mixtures; of positive definite matrices it seldom has."""
        for _ in range(MIXTURES_TRIED):
            inputs = []
            for index, given in enumerate(self._given):
                storage = torch.empty_like(self._pool[0][index])
                self._mix_into(storage, index)
                inputs.append(storage.as_strided(given.spec.shape, given.spec.strides))
            try:
                outputs = reference.run(inputs)
            except UnusableReference as error:
                if error.kind is FailureKind.OUT_OF_MEMORY:
                    raise
                return False
            if not all(map(finite, outputs)):
                return False
        return True

    def _draw(self, reference: ReferenceLink, seed: int) -> list[torch.Tensor]:
        began = time.monotonic()
        drawn = reference.draw(seed)
        ended = time.monotonic()
        self._draw_seconds = ended - began
        self._next_draw = ended + self._draw_seconds / DRAWING_SHARE
        return drawn

    def _varied(self, specs: Sequence[TensorSpec], draw: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Give the draw state of its own, and inputs of its own where ``get_inputs`` always gives the same."""
        result = []
        for spec, tensor, other in zip(specs, draw, self._first, strict=True):
            is_fixed = spec.role is not Role.INPUT or (draw is not self._first and torch.equal(tensor, other))
            if is_fixed and tensor.is_floating_point():
                moved = like(tensor, tensor.clone(memory_format=torch.contiguous_format))
                laws.change(laws.jittered, moved, Structure.of(tensor, spec.role), self._seeded())
                result.append(moved)
            else:
                result.append(tensor)
        return result


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread of PyTorch: others, which wait for the next small call, slow it down on a shared core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def weights(admitted: Sequence[str], compared: Mapping[str, int]) -> dict[str, float]:
    """Return how often to draw each law: the problem's own as often as all others together.

    Laws of which few launches were compared are drawn more often.
    """
    others = max(1, len(admitted) - 1)
    return {
        law: (others if law == laws.OWN else 1.0) * (PREFERENCE if compared.get(law, 0) < WANTED else 1.0)
        for law in admitted
    }


def _smooth(versions: Sequence[torch.Tensor]) -> bool:
    """Return whether a floating tensor holds other values than whole numbers and infinities: those may be flags."""
    if not versions[0].is_floating_point() or not all(map(finite, versions)):
        return False
    return any(not torch.equal(part, part.round()) for tensor in versions for part in stretches(tensor))


def _rows(storage: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Return a view of a flat storage by its rows in memory, whatever the order of the tensor's dimensions."""
    view = storage.as_strided(spec.shape, spec.strides)
    view = view.permute(sorted(range(view.dim()), key=lambda axis: -spec.strides[axis]))
    return view.flatten(0, -2) if view.dim() > 2 and view.is_contiguous() else view


def _rises(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 1 and tensor.is_contiguous() and bool((tensor[1:] >= tensor[:-1]).all())


def _permutes(tensor: torch.Tensor) -> bool:
    if tensor.dim() != 1 or not tensor.is_contiguous() or tensor.is_floating_point() or tensor.dtype is torch.bool:
        return False
    places = torch.arange(tensor.numel(), device=tensor.device)
    return tensor.numel() > 1 and bool(torch.equal(tensor.long().sort().values, places))
