"""Minimal filtering on one axis: a few outputs of a filter with as many multiplications as outputs and taps less one.

After Toom and Cook: polynomials are multiplied at points, zero, pairs of opposite numbers, and infinity. Sums at
opposite numbers share their even and odd parts. A filter's values are scaled such that inputs need few multiplications.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

_SIZES = {
    4: (Fraction(1),),
    6: (Fraction(3, 4), Fraction(5, 4)),
    8: (Fraction(1), Fraction(2), Fraction(1, 2)),
}
"""Sizes of the pairs of points, by the number of all points.

Those under which the rounding of one large input does least to results that it is no part of, among fractions of few
bits: with 1 and 2 in place of the second, that is 1.7 times as much.
"""

Terms = Sequence[tuple[Fraction, str]]


@dataclass(frozen=True)
class Filter:
    """F(outputs, taps): ``outputs`` results of a filter of ``taps``."""

    outputs: int
    taps: int

    @property
    def points(self) -> int:
        """Return the points, and the inputs under the filter: an even number."""
        return self.outputs + self.taps - 1

    @cached_property
    def _pairs(self) -> tuple[Fraction, ...]:
        return _SIZES[self.points]

    @property
    def _finite(self) -> list[Fraction]:
        return [Fraction(0), *(sign * size for size in self._pairs for sign in (1, -1))]

    def _without(self, left_out: Sequence[Fraction]) -> list[Fraction]:
        """Return the coefficients, the lowest first, of the polynomial that is zero at the other finite points."""
        product = [Fraction(1)]
        for point in self._finite:
            if point not in left_out:
                shifted = [Fraction(0), *product]
                product = [high - point * low for high, low in zip(shifted, [*product, Fraction(0)], strict=True)]
        return product

    def filter_rows(self) -> list[list[Fraction]]:
        """Return, for each point, the factors of a filter's taps."""
        rows = []
        for point in self._finite:
            scale = Fraction(1)
            for other in self._finite:
                scale *= point - other if other != point else 1
            rows.append([point**tap / scale for tap in range(self.taps)])
        return [*rows, [Fraction(tap == self.taps - 1) for tap in range(self.taps)]]

    def inputs(self, given: str, made: str) -> list[str]:
        """Return the statements that transform inputs ``given[...]`` into ``made[...]``, one for each point."""
        places = [f"{given}[{place}]" for place in range(self.points)]
        lines = [f"{made}[0] = {_sum(zip(self._without([Fraction(0)]), places, strict=False))};"]
        for pair, size in enumerate(self._pairs):
            both = list(zip(self._without([size]), places, strict=False))
            even, odd = f"even{pair}", f"odd{pair}"
            lines += [
                f"const float {even} = {_sum(both[0::2])}, {odd} = {_sum(both[1::2])};",
                f"{made}[{2 * pair + 1}] = {even} + {odd};",
                f"{made}[{2 * pair + 2}] = {even} - {odd};",
            ]
        return [*lines, f"{made}[{self.points - 1}] = {_sum(zip(self._without([]), places, strict=True))};"]

    def results(self, given: str, made: str) -> list[str]:
        """Return the statements that transform the points' sums ``given[...]`` into outputs ``made[...]``."""
        lines = []
        for pair in range(len(self._pairs)):
            plus, minus = (f"{given}[{2 * pair + place}]" for place in (1, 2))
            lines.append(f"const float same{pair} = {plus} + {minus}, other{pair} = {plus} - {minus};")
        for output in range(self.outputs):
            name = "other" if output % 2 else "same"
            terms = [(size**output, f"{name}{pair}") for pair, size in enumerate(self._pairs)]
            if output == 0:
                terms.append((Fraction(1), f"{given}[0]"))
            if output == self.outputs - 1:
                terms.append((Fraction(1), f"{given}[{self.points - 1}]"))
            lines.append(f"{made}[{output}] = {_sum(terms)};")
        return lines


def _sum(terms: object) -> str:
    """Return a sum as C++ text, those with a factor of one first."""
    items = sorted(((factor, name) for factor, name in terms if factor), key=lambda item: item[0] != 1)  # type: ignore[attr-defined]
    text = ""
    for factor, name in items:
        if not text:
            text = name if factor == 1 else f"{_float(factor)} * {name}"
        elif abs(factor) == 1:
            text = f"({text} {'+' if factor > 0 else '-'} {name})"
        else:
            text = f"fmaf({_float(factor)}, {name}, {text})"
    return text


def _float(factor: Fraction) -> str:
    return f"{float(factor)!r}f"
