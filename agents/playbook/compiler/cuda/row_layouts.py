"""Threads and packs of the launches that reduce each row several times, and which groups they do for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from agents.playbook.compiler.cuda.rows import RUN, SHORT_ROW, WARP
from agents.playbook.compiler.fused import FusedRows
from agents.playbook.compiler.packs import Packs, item_bytes, loads_in, width_of
from agents.playbook.compiler.shapes_of_work import counted, depends
from agents.playbook.compiler.terms import Term, affine
from agents.playbook.ordering import walk

BLOCK = 256
HELD_BYTES = 256
"""Bytes of a row's elements that a thread holds, so that enough registers are left for the rest."""
MOST_ITEMS = 128
"""Elements of a row that a thread holds."""
LARGEST_BODY = 4000
"""Operations of a level's unrolled loops that compilers take in little time."""
LONGEST = 32768
"""Terms of rows that are read once, if these are too few for every multiprocessor to have some."""
ENOUGH_ROWS = 512
TINY = 2**16
"""Elements up to which a launch takes longer than what it does."""
FLIGHT_BYTES, MOST_FLIGHT_BYTES = 128, 512
"""Bytes that a thread has in flight where it does not hold them, and where few blocks leave it all registers."""
FEW_ROWS = 132


def is_worth(group: FusedRows) -> bool:
    """Return whether a block holds a row, and reads elements that lie side by side."""
    return Layout(group).is_worth


@dataclass(frozen=True)
class Layout:
    """The threads and packs of a fused group."""

    group: FusedRows

    @cached_property
    def packs(self) -> Packs:
        """Packs of neighbouring elements; of one where some would not be wide."""
        group = self.group
        stored = [(target.tensor.offset(target.place), target.tensor) for target in group.maps]
        width = width_of(group.column, group.length, self._moving_roots, stored)
        packs = Packs(group.column, width)
        return Packs(group.column, 1) if any(not self._is_wide(packs, load) for load in self._loads(packs)) else packs

    @staticmethod
    def _is_wide(packs: Packs, load: Term) -> bool:
        return packs.stays(load) or packs.is_wide_load(load)

    @property
    def _moving_roots(self) -> list[Term]:
        arguments = [step.argument for level in self.group.levels for step in level]
        return [*arguments, *(target.value for target in self.group.maps)]

    def _loads(self, packs: Packs) -> list[Term]:
        found = loads_in(packs.unguarded(self._moving_roots))
        return [load for load in found if depends(load, self.group.column)]

    @cached_property
    def lanes(self) -> int:
        """Threads of a row: some of a warp, or a block."""
        if self.group.length > SHORT_ROW:
            return BLOCK
        lanes = 1
        while lanes < WARP and lanes * 2 * self.packs.width < self.group.length:
            lanes *= 2
        return lanes

    @property
    def is_held(self) -> bool:
        """Return whether threads hold a row's elements, as more than one loop needs them."""
        return len(self.group.levels) > 1 or bool(self.group.maps)

    @property
    def flight(self) -> int:
        """Packs that a thread has at once: all of its row if they are held."""
        most = -(-self.group.length // (self.lanes * self.packs.width))
        if self.is_held:
            return most
        each = self.packs.width * sum(item_bytes(load.data) for load in self.held)
        flight = FLIGHT_BYTES if prod(self.group.shape) > FEW_ROWS else MOST_FLIGHT_BYTES
        return max(1, min(most, RUN // self.packs.width, flight // max(1, each)))

    @property
    def is_worth(self) -> bool:
        """Return whether a block holds a row, and reads elements that lie side by side."""
        group, packs = self.group, self.packs
        beside = packs.width > 1 or all(_is_beside(load, group.column) for load in self._loads(packs))
        short = packs.width == 1 and group.length < WARP
        if (short or not beside) and prod(group.shape) * group.length > TINY:
            return False
        if not self.is_held:
            return group.length <= LONGEST or prod(group.shape) >= ENOUGH_ROWS
        items = self.flight * packs.width
        held = items * sum(item_bytes(load.data) for load in self.held)
        operations = items * counted(self._moving_roots)
        return items <= MOST_ITEMS and held <= HELD_BYTES and operations <= LARGEST_BODY

    @cached_property
    def held(self) -> list[Term]:
        """Loads of elements whose place is known before any reduction."""
        return [load for load in self._loads(self.packs) if all(term.op != "accumulated" for term in walk([load]))]


def _is_beside(load: Term, column: Term) -> bool:
    """Return whether neighbouring elements of a load are neighbours in memory."""
    factors = affine(load.data.offset(load.args[: len(load.data.shape)])).factors
    return factors.get(column) == 1 and all(part is column or not depends(part, column) for part in factors)
