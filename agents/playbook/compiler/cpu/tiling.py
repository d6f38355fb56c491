"""Tiles of a reduction on the ``cpu`` target: rows, vectors of lanes along them, and a depth of terms.

As a matrix product's, with the group's index maps in the place of strides: matrices and convolutions are one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from agents.playbook.compiler.cpu.windows import Window
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.parameters import Pointers, target_index
from agents.playbook.compiler.products import Product, seen_as_product
from agents.playbook.compiler.tensors import Reduce
from agents.playbook.compiler.terms import Term, affine
from agents.playbook.ordering import walk

LEAST = 8
"""Rows, and terms, below which panels are mostly empty or not worth packing."""
LEAST_LANES = 16
TILE_LANES, TILE_ROWS = 256, 256
"""Largest tile: its panel of 256 KiB and its totals of 256 KiB lie on a thread's stack, and in a core's cache."""
ENOUGH_TILES = 64
HALF = 0.5
"""Share of results among lanes below which vectors are packed, although they could be loaded."""
FULL = 0.85
"""Share of a vector's lanes from which on no vector reaches beyond the end of a row."""


@dataclass(frozen=True)
class Rectangle:
    """Results that the micro-kernel keeps in registers: rows by vectors of so many lanes."""

    rows: int
    vectors: int
    width: int


@dataclass(frozen=True)
class Vectors:
    """Vectors on the ``cpu`` target beyond what compilers make of plain loops."""

    rectangle: Rectangle | None = None
    """Of the micro-kernel of products; None where these are loops too."""
    degree: int = 0
    """Of the exponential's polynomial; 0 where functions are the library's."""


def product_of(group: Group) -> Product | None:
    """Return how a group is a matrix product of some size; None where it is none.

    The second factor follows the lanes, the first the rows.
    """
    product = seen_as_product(group)
    if product is None or not product.rows or not product.columns:
        return None
    if _stride(group, product.rows) < _stride(group, product.columns):
        product = Product(product.second, product.first, product.batch, product.columns, product.rows)
    assert isinstance(group.source, Reduce)
    _, height, width = product.sizes(group)
    return product if min(height, prod(group.source.extents)) >= LEAST and width >= LEAST_LANES else None


def _stride(group: Group, axes: list[int]) -> int:
    """Return how far results lie apart that differ in one of these axes, at least."""
    factors = affine(_offset(group)).factors
    return min(factors.get(group.index[axis], 1 << 62) for axis in axes)


def _offset(group: Group) -> Term:
    target = group.targets[0]
    return target.tensor.offset(target_index(group, target))


@dataclass(frozen=True)
class Layout:
    """Lanes of vectors: runs of ``rows`` rows of ``last`` results, ``pitch`` lanes from row to row."""

    runs: int
    rows: int
    last: int
    pitch: int
    width: int

    @property
    def run(self) -> int:
        """Lanes of a run: whole vectors."""
        return -(-((self.rows - 1) * self.pitch + self.last) // self.width) * self.width

    @property
    def lanes(self) -> int:
        """Lanes of all runs."""
        return self.runs * self.run

    @property
    def filled(self) -> float:
        """Share of the lanes that are results."""
        return self.rows * self.last / self.run


@dataclass(frozen=True)
class Tiling:
    """A product cut into tiles of rows and lanes."""

    group: Group
    product: Product
    rectangle: Rectangle
    pointers: Pointers

    @cached_property
    def direct(self) -> bool:
        """Return whether vectors are loaded from where the second factor lies, which is a copy made for that."""
        copied = self.product.second.op == "load" and isinstance(self.product.second.data, Window)
        return copied and self._direct_layout.filled >= HALF

    @cached_property
    def layout(self) -> Layout:
        """Layout of the lanes."""
        if self.direct:
            return self._direct_layout
        total = self.product.sizes(self.group)[2]
        rows = self._rows
        in_rows = len(self.product.columns) > 1 and rows.filled >= FULL and not self._follow_each_other
        return rows if in_rows else Layout(1, 1, total, total, self.rectangle.width)

    @property
    def _rows(self) -> Layout:
        total, last = self.product.sizes(self.group)[2], self.group.shape[self.product.columns[-1]]
        return Layout(total // last, 1, last, last, self.rectangle.width)

    @property
    def _direct_layout(self) -> Layout:
        """Rows, or runs of rows that lie evenly in the second factor, whichever leaves fewer lanes empty."""
        rows, axes = self._rows, self.product.columns
        if len(axes) == 1:
            return rows
        before = self.group.shape[axes[-2]]
        pitch = affine(self.second_offset).factors.get(self.group.index[axes[-2]], 0)
        joined = Layout(rows.runs // before, before, rows.last, pitch, rows.width)
        return joined if pitch >= rows.last and joined.filled > rows.filled else rows

    @property
    def second_offset(self) -> Term:
        """Offset of the second factor, where that is loaded directly."""
        load = self.product.second
        offset: Term = load.data.offset(load.args[: len(load.data.shape)])
        return offset

    @property
    def _follow_each_other(self) -> bool:
        """Return whether rows follow each other in memory, in factor and result."""
        outer, inner = (self.group.index[axis] for axis in self.product.columns[-2:])
        last = self.group.shape[self.product.columns[-1]]
        loads = [term for term in walk([self.product.second]) if term.op == "load"]
        offsets = [term.data.offset(term.args[: len(term.data.shape)]) for term in loads]
        factors = [affine(offset).factors for offset in (*offsets, _offset(self.group))]
        return all(each.get(outer, 0) == each.get(inner, 0) * last for each in factors)

    @property
    def panels(self) -> int:
        """Panels of rows."""
        return -(-self.product.sizes(self.group)[1] // self.rectangle.rows)

    @property
    def depth(self) -> int:
        """Terms of a sum."""
        assert isinstance(self.group.source, Reduce)
        return prod(self.group.source.extents)

    @property
    def packed(self) -> int:
        """Elements of the first factor's panels, all of which exist at once."""
        return self.product.sizes(self.group)[0] * self.panels * self.rectangle.rows * self.depth

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the panels, and of the offsets of the second factor's terms."""
        return 4 * self.packed + 8 * self.product.sizes(self.group)[0] * self.depth

    def tile(self) -> tuple[int, int]:
        """Return rows and lanes of a tile: as many as fit, but for enough tiles."""
        rows, across = self.rectangle.rows, self.rectangle.vectors * self.rectangle.width
        batches = self.product.sizes(self.group)[0]
        lanes, height = TILE_LANES // across * across, min(TILE_ROWS // rows, self.panels)

        def count() -> int:
            return batches * -(-self.layout.lanes // lanes) * -(-self.panels // height)

        while count() < ENOUGH_TILES and lanes > across:
            lanes -= across
        while count() < ENOUGH_TILES and height > 4:
            height = -(-height // 2)
        return height * rows, lanes
