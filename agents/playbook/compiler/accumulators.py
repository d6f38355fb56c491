"""Accumulators of reductions and scans as C++ text: their types, first values, and steps."""

from __future__ import annotations

from dataclasses import dataclass

from agents.playbook.compiler.emission import TYPES
from agents.playbook.compiler.terms import FLOATS


@dataclass(frozen=True)
class Accumulator:
    """State of one reduction while it runs."""

    kind: str
    value: str
    """Register type of what is reduced."""

    @property
    def term(self) -> str:
        """C++ type of a term."""
        return TYPES[self.value]

    @property
    def total(self) -> str:
        """C++ type of the total: double for sums and products of floats, and for sums of exponentials."""
        return "double" if self.kind in ("sum", "prod", "logsum") and self.value in FLOATS else self.term

    @property
    def places(self) -> bool:
        """Return whether the position counts."""
        return self.kind.startswith("arg")

    @property
    def chunked(self) -> bool:
        """Return whether terms are added in runs of float32."""
        return self.kind == "sum" and self.value == "float32"

    @property
    def first(self) -> str:
        """Neutral value."""
        if self.kind == "sum":
            return "0"
        if self.kind == "prod":
            return "1"
        sign = "" if self.kind in ("min", "argmin") else "-"
        if self.value in FLOATS:
            return f"({sign}FN_INF{'F' if self.value == 'float32' else ''})"
        largest = {"int64": "9223372036854775807LL", "int16": "32767", "int8": "127", "uint8": "255"}
        top = largest.get(self.value, "1" if self.value == "bool" else "2147483647")
        if self.value in ("uint8", "bool"):
            return top if not sign else "0"
        return top if not sign else f"(-{top} - 1)"

    def step(self, into: str, value: str) -> str:
        """Return the statement that takes a value in; not for those that keep a place."""
        if self.kind == "sum":
            return f"{into} += {value};"
        if self.kind == "prod":
            return f"{into} *= {value};"
        kind = self.total if self.kind == "logsum" else self.term
        return f"{into} = fn_{self.kind}({into}, ({kind}){value});"

    def better(self) -> str:
        """Return the comparison of those that keep a place."""
        return "sooner" if self.kind == "argmax" else "lower"
