"""Strips of windows on the ``cuda`` target: the neighbouring results that a thread has, and the packs that it reads.

A strip is some results side by side, and some below each other along the outermost axis. Neighbouring threads have
neighbouring strips of a row. Statements are written by :mod:`agents.playbook.compiler.cuda.sliding`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, prod

from agents.playbook.compiler.cuda.maps import values_and_places
from agents.playbook.compiler.cuda.windows import Axis, Window
from agents.playbook.compiler.packs import UNKNOWN, WIDEST, Packs, item_bytes, loads_in
from agents.playbook.compiler.shapes_of_work import depends
from agents.playbook.compiler.terms import INDEX, Term, make, number, plus, substituted

WARP = 32
ROWS, MORE_ROWS, STRIDED_ROWS = 4, 8, 2
"""Results below each other that a thread has, at most: with few taps, with many, and where results share few places."""
MANY_TAPS = 16
MANY_PACKS = 4
"""Packs beyond which a thread of one row has two chunks of it."""
MOST_ELEMENTS = 48
"""Elements of a row that a thread holds."""
LARGEST_BODY = 1200
"""Operations of a thread that are written out."""
ENOUGH_THREADS = 2**18
"""Threads that keep a card busy."""
FIRST, EACH = "base", "j"
"""Names of the place of a pack's first element, and of each in the loop over ``k``."""


@dataclass(frozen=True)
class Strip:
    """Results that a thread has of a window."""

    window: Window
    width: int
    """Elements of a pack of the input; with one, the thread has one column."""
    shift: int = 0
    """Of a place, modulo the width, where packs begin."""
    rows: int = 1
    """Results below each other."""
    times: int = 1
    """Chunks of neighbouring results, where there is one row."""

    @property
    def columns(self) -> int:
        """Return the neighbouring results of a thread."""
        return self.width // gcd(self.width, self.window.columns.stride)

    @property
    def down(self) -> Axis | None:
        """Return the axis along which results lie below each other."""
        return self.window.others[0] if self.window.others else None

    @property
    def lead(self) -> int:
        """Return the elements of a thread's first pack before its first place."""
        return (self.width - self.shift) % self.width

    @property
    def packs(self) -> int:
        """Return the packs that a thread reads at one place of the other axes; single elements are those of taps."""
        if self.width == 1:
            return self.window.columns.taps
        return -(-(self.lead + self.window.columns.places(self.columns)) // self.width)

    @cached_property
    def chunks(self) -> int:
        """Return the threads' chunks of a row: whole warps of them where results go through shared memory."""
        count, whole = -(-self.window.columns.results // self.columns), self.times * (WARP if self.staged else 1)
        return -(-count // whole) * whole

    @cached_property
    def staged(self) -> bool:
        """Return whether results go through shared memory, so that neighbouring threads write neighbouring ones."""
        if self.columns == 1:
            return False
        group, packs = self.window.group, self.packs_of_results
        _, places = values_and_places(group)
        size = max(item_bytes(target.tensor) for target in group.targets) * self.columns
        even = self.window.columns.results % self.columns == 0
        return not (even and size <= WIDEST and all(packs.is_wide(place) for place in places))

    @property
    def resident(self) -> int:
        """Return the blocks of a multiprocessor for which a thread's loads are moved ahead, as far as registers do."""
        many = self.window.weight is not None and self.rows > ROWS
        return 3 if many else 1

    @property
    def packs_of_results(self) -> Packs:
        """Return the packs that a thread writes."""
        packs = Packs(self.window.columns.index, self.columns)
        if self.window.group.accumulated is not None:
            packs.known[self.window.group.accumulated] = UNKNOWN
        return packs

    def first(self, pack: int) -> int:
        """Return the place, less the shift, of the first element of the first thread's pack."""
        if self.width == 1:
            return pack * self.window.columns.dilation
        return pack * self.width - (self.width if self.shift else 0)

    def element(self, column: str, tap: str) -> str:
        """Return the number of a column's tap among a thread's elements, as C++ text."""
        if self.width == 1:
            return tap
        axis = self.window.columns
        return f"{self.lead} + {column} * {axis.stride} + {tap} * {axis.dilation}"

    def elements(self, pack: int) -> tuple[Term, int | None]:
        """Return the index of a pack's elements, and the last beginning of a pack where threads may lie beyond it."""
        axis, first = self.window.columns, self.first(pack)
        end = axis.stride * self.columns * (self.chunks - 1) + first
        last = (axis.place.high - self.shift) // self.width * self.width
        index = make("index", INDEX, data=EACH, low=first, high=min(end, last) + self.width - 1)
        return index, last if end > last else None

    def value(self, index: Term) -> tuple[Packs, Term]:
        """Return the packs of an index of elements, and what an element gives."""
        packs = Packs(index, self.width)
        place = plus(index, number(self.shift))
        (value,) = packs.unguarded(substituted([self.window.value], {self.window.columns.place: place}))
        return packs, value

    @property
    def fits(self) -> bool:
        """Return whether all that moves with the columns is read in packs, none of which leaves its tensor."""
        if self.packs * self.width > MOST_ELEMENTS:
            return False
        for pack in range(self.packs):
            index, _ = self.elements(pack)
            packs, value = self.value(index)
            moving = [load for load in loads_in([value]) if not packs.stays(load)]
            if not all(packs.is_wide_load(load) and _is_safe(load, index) for load in moving):
                return False
        return True


def _is_safe(load: Term, index: Term) -> bool:
    """Return whether a wide load lies in its tensor, or is made under a condition."""
    shape = load.data.shape
    if len(load.args) > len(shape):
        return True
    moving = [(at, size) for at, size in zip(load.args, shape, strict=True) if depends(at, index)]
    return all(at.low >= 0 and at.high < size for at, size in moving)


def strip_of(window: Window) -> Strip:
    """Return the strip of a thread: of the widest packs that loads allow and that leave few threads without results."""
    sizes = [item_bytes(load.data) for load in loads_in([window.value]) if depends(load, window.columns.place)]
    width = WIDEST // max(sizes, default=WIDEST)
    while width > 1:
        for shift in range(width):
            strip = Strip(window, width, shift)
            if strip.chunks * strip.columns * 4 <= window.columns.results * 5 and strip.fits:
                return _larger(strip)
        width //= 2
    return _larger(Strip(window, 1))


def _larger(strip: Strip) -> Strip:
    """Return the strip with as many rows, or chunks of one, as pay."""
    results = prod(strip.window.group.shape) // strip.columns
    if strip.down is None:
        return _repeated(strip, results)
    down = strip.down
    rows = down.results if down.results <= MORE_ROWS else _rows(strip, down)
    while rows > 1 and (
        _body(strip, rows) > LARGEST_BODY or results // rows < ENOUGH_THREADS or _is_uneven(down.results, rows)
    ):
        rows //= 2
    return replace(strip, rows=rows)


def _taps(strip: Strip) -> int:
    return prod(axis.taps for axis in (strip.window.columns, *strip.window.others))


def _body(strip: Strip, rows: int) -> int:
    """Return the operations of a thread with so many rows."""
    down, columns = strip.down, strip.columns
    assert down is not None
    if strip.window.weight is not None:
        return rows * _taps(strip) * columns
    places = (down.places(rows) - 1) // down.step + 1
    return (places * _taps(strip) // down.taps + rows * down.taps) * columns


def _rows(strip: Strip, down: Axis) -> int:
    if down.stride > down.step:
        return STRIDED_ROWS
    return MORE_ROWS if _taps(strip) > MANY_TAPS else ROWS


def _is_uneven(results: int, rows: int) -> bool:
    """Return whether strips of half as many rows leave far fewer of them out."""
    return rows > 2 and -(-results // rows) * rows * 10 > -(-results // (rows // 2)) * (rows // 2) * 11


def _repeated(strip: Strip, results: int) -> Strip:
    """Return the strip with two chunks where these are full, or nearly so."""
    more = replace(strip, times=2)
    full = more.chunks * 32 <= strip.chunks * 33 if strip.staged else more.chunks == strip.chunks
    return more if full and strip.packs > MANY_PACKS and results // 2 >= ENOUGH_THREADS else strip
