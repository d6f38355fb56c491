"""Typed scalar terms: what a launch computes for one element, loads and index arithmetic included.

Terms are interned, so equal terms are one object. Index terms (dtype ``index``) know their bounds and are simplified on
construction: divisions, remainders and comparisons that the bounds decide disappear. Knows nothing of PyTorch and
nothing of loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from agents.playbook.ordering import walk

INDEX = "index"
BOOL = "bool"
FLOATS = ("float32", "float64")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
HALVES = ("float16", "bfloat16")
EIGHTS = ("float8_e4m3fn", "float8_e5m2")
"""Types that values are rounded to between two calls; no tensor of a kernel's has them."""
UNBOUNDED = 2**62

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(frozen=True, eq=False)
class Term:
    """One typed value. Compared by identity; made by the functions of this module only."""

    op: str
    """``const``, ``index``, ``load``, ``accumulated``, ``cast``, ``where``, an operator, or a ``fn_*`` function."""
    dtype: str
    """Type of the register: a float of 32 or 64 bits, an integer, ``bool``, or ``index``."""
    args: tuple[Term, ...] = ()
    """Operands; of a ``load`` the index on each axis, then the guard where there is one."""
    data: Any = None
    """Of a ``const`` the value, of an ``index`` its name, of a ``load`` the tensor, of a ``cast`` the storage type that
    the value is rounded to."""
    low: int = -UNBOUNDED
    high: int = UNBOUNDED
    """Inclusive bounds of an index term."""


_terms: WeakValueDictionary[tuple[Any, ...], Term] = WeakValueDictionary()


def make(op: str, dtype: str, *args: Term, data: Any = None, low: int = -UNBOUNDED, high: int = UNBOUNDED) -> Term:
    """Return the one term of this form."""
    known = id(data) if op == "load" else repr(data)
    key = (op, dtype, known, low, high, *(id(arg) for arg in args))
    term = _terms.get(key)
    if term is None:
        term = Term(op, dtype, args, data, low, high)
        _terms[key] = term
    return term


def register(dtype: str) -> str:
    """Return the register type that values of a storage type are computed in."""
    return "float32" if dtype in HALVES else dtype


def const(value: float | bool, dtype: str) -> Term:
    """Return a constant of a register type."""
    if dtype == BOOL:
        return make("const", BOOL, data=bool(value))
    if dtype in FLOATS:
        return make("const", dtype, data=float(value))
    whole = _wrapped(int(value), dtype) if dtype in INTEGERS else int(value)
    return make("const", dtype, data=whole, low=whole, high=whole)


def _wrapped(value: int, dtype: str) -> int:
    """Return a whole number as a register of an integer type holds it."""
    size = 1 << int(dtype.removeprefix("u").removeprefix("int"))
    return value % size if dtype.startswith("u") else (value + size // 2) % size - size // 2


def number(value: int) -> Term:
    """Return a constant index."""
    return const(value, INDEX)


def variable(name: str, extent: int) -> Term:
    """Return a loop's index, from zero to ``extent`` exclusive."""
    return number(0) if extent == 1 else make("index", INDEX, data=name, low=0, high=extent - 1)


def is_const(term: Term, value: float | None = None) -> bool:
    """Return whether the term is a constant, of this value where one is given."""
    return term.op == "const" and (value is None or term.data == value)


def plus(a: Term, b: Term) -> Term:
    """Return the sum of two index terms."""
    if is_const(a) and is_const(b):
        return number(a.data + b.data)
    if is_const(a):
        a, b = b, a
    if is_const(b, 0):
        return a
    if is_const(b) and a.op == "add" and is_const(a.args[1]):
        return plus(a.args[0], number(a.args[1].data + b.data))
    if is_const(b) is False and a.op == "add" and is_const(a.args[1]):
        return plus(plus(a.args[0], b), a.args[1])
    return make("add", INDEX, a, b, low=a.low + b.low, high=a.high + b.high)


def minus(a: Term, b: Term) -> Term:
    """Return the difference of two index terms."""
    return plus(a, times(b, -1))


def times(a: Term, factor: int) -> Term:
    """Return an index term times a constant."""
    if is_const(a):
        return number(a.data * factor)
    if factor in (0, 1):
        return a if factor else number(0)
    if a.op == "mul":
        return times(a.args[0], a.args[1].data * factor)
    if a.op == "add":
        return plus(times(a.args[0], factor), times(a.args[1], factor))
    ends = (a.low * factor, a.high * factor)
    return make("mul", INDEX, a, number(factor), low=min(ends), high=max(ends))


def _addends(term: Term) -> list[Term]:
    return [*_addends(term.args[0]), *_addends(term.args[1])] if term.op == "add" else [term]


def _divided(term: Term, divisor: int) -> tuple[Term, Term]:
    """Return quotient and rest of the addends that are multiples of the divisor, and of the others."""
    quotient, rest = number(0), number(0)
    for addend in _addends(term):
        factor = addend.data if is_const(addend) else addend.args[1].data if addend.op == "mul" else 1
        if factor % divisor == 0:
            part = number(factor // divisor) if is_const(addend) else times(addend.args[0], factor // divisor)
            quotient = plus(quotient, part)
        else:
            rest = plus(rest, addend)
    return quotient, rest


def over(a: Term, divisor: int) -> Term:
    """Return the quotient, rounded down, of an index term that is not negative."""
    if divisor == 1:
        return a
    if is_const(a):
        return number(a.data // divisor)
    quotient, rest = _divided(a, divisor)
    if rest.low >= 0 and rest.high < divisor:
        return quotient
    if a.op == "div":
        return over(a.args[0], a.args[1].data * divisor)
    return make("div", INDEX, a, number(divisor), low=a.low // divisor, high=a.high // divisor)


def modulo(a: Term, divisor: int) -> Term:
    """Return the remainder of an index term that is not negative."""
    if divisor == 1 or is_const(a):
        return number(a.data % divisor if divisor != 1 else 0)
    _, rest = _divided(a, divisor)
    if rest.low >= 0 and rest.high < divisor:
        return rest
    return make("mod", INDEX, a, number(divisor), low=0, high=divisor - 1)


def compare(op: str, a: Term, b: Term) -> Term:
    """Return a comparison; that of index terms whose bounds decide it is a constant."""
    if a.dtype == INDEX:
        decided = _decided(op, a, b)
        if decided is not None:
            return const(decided, BOOL)
    return make(op, BOOL, a, b)


def _decided(op: str, a: Term, b: Term) -> bool | None:
    if op == "lt":
        return True if a.high < b.low else False if a.low >= b.high else None
    if op == "ge":
        return True if a.low >= b.high else False if a.high < b.low else None
    if op in ("le", "gt"):
        return _decided("ge" if op == "le" else "lt", b, a)
    if a.high < b.low or b.high < a.low:
        return op == "ne"
    same = a is b or (is_const(a) and is_const(b) and a.data == b.data)
    return (op == "eq") if same else None


def both(*conditions: Term) -> Term:
    """Return the conjunction of conditions."""
    kept: list[Term] = []
    for item in conditions:
        if is_const(item, False):
            return item
        if not is_const(item) and item not in kept:
            kept.append(item)
    if not kept:
        return const(True, BOOL)
    result = kept[0]
    for item in kept[1:]:
        result = make("and", BOOL, result, item)
    return result


def conjuncts(condition: Term) -> list[Term]:
    """Return the conditions that :func:`both` has joined to this one."""
    if condition.op != "and" or condition.dtype != BOOL:
        return [condition]
    return [part for arg in condition.args for part in conjuncts(arg)]


def within(index: Term, low: int, high: int) -> Term:
    """Return the condition ``low <= index < high``."""
    return both(compare("ge", index, number(low)), compare("lt", index, number(high)))


def cast(value: Term, dtype: str) -> Term:
    """Return the value in another register type."""
    if value.dtype == dtype:
        return value
    if value.op == "const" and (dtype in FLOATS or value.dtype not in FLOATS):
        return const(value.data, dtype)
    return make("cast", dtype, value, data=dtype)


def rounded(value: Term, storage: str) -> Term:
    """Return the value as a tensor of a 16-bit type holds it."""
    held = value.op == "load" and value.data.dtype == storage
    held = held or (value.op == "const" and _fits(value.data, storage))
    return value if held or storage not in HALVES else make("round", "float32", cast(value, "float32"), data=storage)


def _fits(value: float, storage: str) -> bool:
    """Return whether a 16-bit type has a whole number, which all types with so few digits have."""
    digits = {"float16": 11, "bfloat16": 8}.get(storage, 0)
    return abs(value) < 2**digits and float(value).is_integer()


def as_index(value: Term, size: int, *, wrap: bool = False) -> Term:
    """Return an integer value as an index, counted from the end where it is negative, and kept within bounds."""
    return make("bounded", INDEX, cast(value, "int64"), number(size), data=wrap, low=0, high=size - 1)


def where(condition: Term, yes: Term, no: Term) -> Term:
    """Return one of two values of the same type."""
    if is_const(condition):
        return yes if condition.data else no
    if yes is no:
        return yes
    if yes.dtype == INDEX:
        return make("where", INDEX, condition, yes, no, low=min(yes.low, no.low), high=max(yes.high, no.high))
    return make("where", yes.dtype, condition, yes, no)


def guarded(condition: Term, yes: Term, no: Term) -> Term:
    """Return one of two values, where the first may only be loaded if the condition holds."""
    value = restricted(condition, yes)
    alone = value.op == "load" and value.args[-1] is condition and len(value.args) > len(value.data.shape)
    return value if alone and is_const(no, 0) else where(condition, value, no)


def restricted(condition: Term, value: Term) -> Term:
    """Return the value with its loads made only where the condition holds (zero elsewhere)."""
    if is_const(condition):
        return value

    def change(term: Term, args: tuple[Term, ...]) -> Term | None:
        if term.op != "load":
            return None
        rank = len(term.data.shape)
        guard = both(condition, *args[rank:])
        return make("load", term.dtype, *args[:rank], guard, data=term.data)

    return rewritten([value], change)[0]


def load(tensor: Any, dtype: str, indices: Iterable[Term]) -> Term:
    """Return an element of a tensor in memory."""
    return make("load", dtype, *indices, data=tensor)


Change = Callable[[Term, tuple[Term, ...]], Term | None]


def rewritten(roots: Iterable[Term], change: Change) -> list[Term]:
    """Return the roots with every term rebuilt from the bottom up; ``change`` may give another term for one."""
    order = list(roots)
    made: dict[Term, Term] = {}
    for term in walk(order):
        args = tuple(made[arg] for arg in term.args)
        new = change(term, args)
        if new is None:
            new = term if args == term.args else _rebuilt(term, args)
        made[term] = new
    return [made[root] for root in order]


def _rebuilt(term: Term, args: tuple[Term, ...]) -> Term:
    """Return a term of the same form over other operands, simplified anew."""
    if term.dtype == INDEX:
        if term.op == "add":
            return plus(*args)
        if term.op in ("mul", "div", "mod") and is_const(args[1]):
            return {"mul": times, "div": over, "mod": modulo}[term.op](args[0], args[1].data)
    if term.op in COMPARISONS:
        return compare(term.op, *args)
    if term.op == "where":
        return where(*args)
    if term.op == "and" and term.dtype == BOOL:  # of integers it is bit by bit
        return both(*args)
    return make(term.op, term.dtype, *args, data=term.data, low=term.low, high=term.high)


def substituted(roots: Iterable[Term], table: Mapping[Term, Term]) -> list[Term]:
    """Return the roots with some terms replaced."""
    return rewritten(roots, lambda term, _: table.get(term))


@dataclass
class Affine:
    """An index term as a sum of other terms with constant factors."""

    factors: dict[Term, int] = field(default_factory=dict)
    constant: int = 0


def affine(term: Term) -> Affine:
    """Return the factors of an index term, quotients and remainders of the same value rejoined."""
    result = Affine()
    _add_affine(result, term, 1)
    while joined := _joined(result.factors):
        quotient, rest, whole, factor = joined
        del result.factors[quotient], result.factors[rest]
        _add_affine(result, whole, factor)
    return result


def _add_affine(result: Affine, term: Term, scale: int) -> None:
    for addend in _addends(term):
        if is_const(addend):
            result.constant += addend.data * scale
            continue
        base, factor = (addend.args[0], addend.args[1].data) if addend.op == "mul" else (addend, 1)
        result.factors[base] = result.factors.get(base, 0) + factor * scale
        if not result.factors[base]:
            del result.factors[base]


def _joined(factors: Mapping[Term, int]) -> tuple[Term, Term, Term, int] | None:
    """Return a quotient and a remainder that make up a whole, the whole, and its factor."""
    for rest, factor in factors.items():
        if rest.op == "mod":
            whole, size = rest.args[0], rest.args[1].data
            quotient = over(whole, size)
            if quotient.op == "div" and factors.get(quotient) == factor * size:
                return quotient, rest, whole, factor
    return None


def linear(indices: Iterable[Term], strides: Iterable[int]) -> Term:
    """Return the offset of an element."""
    offset = number(0)
    for index, stride in zip(indices, strides, strict=True):
        offset = plus(offset, times(index, stride))
    return offset


def unravel(offset: Term, shape: Iterable[int]) -> tuple[Term, ...]:
    """Return the index on each axis of the element at a dense offset."""
    sizes = list(shape)
    indices: list[Term] = []
    step = 1
    for place in range(len(sizes) - 1, -1, -1):
        index = over(offset, step)
        indices.append(modulo(index, sizes[place]) if place else index)
        step *= sizes[place]
    return tuple(reversed(indices))
