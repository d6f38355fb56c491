"""Terms as C++ statements, the same text for both targets. Knows nothing about loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isnan

from agents.playbook.compiler.terms import BOOL, COMPARISONS, INDEX, Term
from agents.playbook.ordering import walk

TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "long long",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
    INDEX: "idx",
}
"""C++ type of each register and storage type; ``f16``, ``bf16`` and ``idx`` are the preludes'."""
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%", "and": "&", "or": "|", "xor": "^"}
SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
INLINE = 40
"""Characters up to which a value that is used once is written where it is used."""


def literal(value: float | bool, dtype: str) -> str:
    """Return a constant as C++ text."""
    if dtype == BOOL:
        return "true" if value else "false"
    if dtype not in ("float32", "float64"):
        if dtype == "int64":
            return f"{value}LL" if value > -(2**63) else f"({value + 1}LL - 1)"
        return str(value) if value >= 0 else f"({value})"
    suffix = "f" if dtype == "float32" else ""
    if isnan(value):
        return f"FN_NAN{suffix.upper()}"
    if value in (float("inf"), float("-inf")):
        return f"FN_INF{suffix.upper()}" if value > 0 else f"(-FN_INF{suffix.upper()})"
    text = f"{value:.9g}" if dtype == "float32" else repr(float(value))
    text = text if "." in text or "e" in text else f"{text}.0"
    return f"{text}{suffix}" if not text.startswith("-") else f"({text}{suffix})"


@dataclass
class Emitter:
    """Turns terms into statements that declare one constant each."""

    names: dict[Term, str]
    """Terms that already have a name: loop indices and accumulated values."""
    pointer: Callable[[object], str]
    """Name of the pointer to a tensor."""
    prefix: str = "t"
    lines: list[str] = field(default_factory=list)

    def emit(self, *roots: Term) -> list[str]:
        """Return a name or short text for each root; statements that they need are added to ``lines``."""
        order = walk(roots, self.names)
        uses: dict[Term, int] = {}
        for term in order:
            for arg in term.args:
                uses[arg] = uses.get(arg, 0) + 1
        texts: dict[Term, str] = {}
        for term in order:
            text = self._text(term, texts)
            if term.op not in ("const", "index") and (uses.get(term, 0) > 1 or len(text) > INLINE):
                name = f"{self.prefix}{len(self.names)}"
                self.lines.append(f"const {TYPES[term.dtype]} {name} = {text};")
                self.names[term] = name
            else:
                texts[term] = text
        return [self._of(root, texts) for root in roots]

    def _of(self, term: Term, texts: Mapping[Term, str]) -> str:
        return self.names.get(term) or texts[term]

    def _text(self, term: Term, texts: Mapping[Term, str]) -> str:
        args = [self._of(arg, texts) for arg in term.args]
        kind = TYPES[term.dtype]
        if term.op == "const":
            return literal(term.data, term.dtype)
        if term.op == "index":
            return str(term.data)
        if term.op == "load":
            return self._load(term, args)
        if term.op == "cast":
            return f"to<{kind}>({args[0]})"
        if term.op == "round":
            return f"round_{TYPES.get(term.data, term.data)}({args[0]})"
        if term.op == "bounded":
            return f"{'wrapped' if term.data else 'bounded'}({args[0]}, {args[1]})"
        if term.op == "where":
            return f"({args[0]} ? {args[1]} : {args[2]})"
        if term.op in COMPARISONS:
            return f"({args[0]} {SIGNS[term.op]} {args[1]})"
        if term.op == "not":
            return f"(!{args[0]})"
        if term.op in INFIX:
            text = f"({args[0]} {INFIX[term.op]} {args[1]})"
            return text if term.dtype in ("float32", "float64", "int64", "int32", BOOL, INDEX) else f"({kind}){text}"
        return f"{term.op}({', '.join(args)})"

    def _load(self, term: Term, args: list[str]) -> str:
        tensor = term.data
        rank = len(tensor.shape)
        parts = [
            text if step == 1 else f"{text} * {step}"
            for text, step, index in zip(args, tensor.strides(), term.args, strict=False)
            if not (index.op == "const" and index.data == 0) and step
        ]
        place = f"ld({self.pointer(tensor)}, {' + '.join(parts[:rank]) or '0'})"
        return f"({args[rank]} ? {place} : ({TYPES[term.dtype]})0)" if len(args) > rank else place


def statements(lines: Iterable[str], depth: int) -> list[str]:
    """Return lines at an indentation."""
    return [f"{'    ' * depth}{line}" for line in lines]
