"""Threads and packs of the launches that reduce each row several times, and which groups they do for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from agents.playbook.compiler.cuda.rows import RUN, SHORT_ROW, WARP, lanes_of
from agents.playbook.compiler.fused import FusedRows
from agents.playbook.compiler.packs import Packs, item_bytes, loads_in, offset_of, width_of
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
SHORT_COLUMN = 32
"""Terms up to which a thread takes a row where rows lie side by side."""
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

    @property
    def _offsets(self) -> tuple[list[Term], list[Term]]:
        """Places in memory that are read and written for each element."""
        written = [target.tensor.offset(target.place) for target in self.group.maps]
        return [offset_of(load) for load in self._loads(self.packs)], written

    @cached_property
    def columns(self) -> bool:
        """Return whether neighbouring threads take neighbouring rows, as these lie side by side."""
        along = next((index for index in reversed(self.group.index) if index.op == "index"), None)
        if along is None or along.high < WARP - 1 or self.packs.width > 1:
            return False
        read, written = self._offsets
        beside = all(_step(place, along) == 1 for place in written) and all(
            _step(each, along) in (0, 1) for each in read
        )
        return beside and any(_step(place, self.group.column) not in (0, 1) for place in read)

    @cached_property
    def lanes(self) -> int:
        """Threads of a row: some of a warp, or a block; in columns one of each warp, or one thread."""
        if self.columns:
            return 1 if self.group.length <= SHORT_COLUMN else BLOCK // WARP
        return BLOCK if self.group.length > SHORT_ROW else lanes_of(self.group.length, self.packs.width)

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
        places = [place for each in self._offsets for place in each]
        beside = packs.width > 1 or self.columns or all(_step(place, group.column) == 1 for place in places)
        short = packs.width == 1 and not self.columns and group.length < WARP
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
        loads = [load for load in self._loads(self.packs) if all(term.op != "accumulated" for term in walk([load]))]
        used = {arg for term in walk(self.packs.unguarded(self._moving_roots), loads) for arg in term.args}
        used |= set(self.packs.unguarded(self._moving_roots))
        return [load for load in loads if load in used]


def _step(offset: Term, index: Term) -> int:
    """Return how far a place in memory moves with an index; -1 where nobody knows."""
    factors = affine(offset).factors
    known = all(part is index or not depends(part, index) for part in factors)
    return factors.get(index, 0) if known else -1
