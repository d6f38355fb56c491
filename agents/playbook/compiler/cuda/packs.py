"""Packs of neighbouring elements on the ``cuda`` target: a thread fetches them with wide loads, then computes each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agents.playbook.compiler.emission import TYPES, Emitter, statements
from agents.playbook.compiler.packs import Packs, joined, offset_of
from agents.playbook.compiler.terms import Term

FIRST, EACH = "base", "j"
"""Names of the index of a pack's first element, and of each in the loop over ``k``."""


@dataclass(frozen=True)
class Fetched:
    """Statements that fetch what packs need, and what then stands for it in the loop over a pack's elements."""

    declared: list[str]
    """Arrays of one item for each of a thread's packs."""
    lines: list[str]
    """Fill the items ``u``; the index of the first element is ``base``."""
    names: dict[Term, str]
    """Of wide loads and of what is the same for the whole pack."""


def fetched(
    packs: Packs,
    roots: Sequence[Term],
    count: int,
    pointer: Callable[[object], str],
    *,
    known: Mapping[Term, str] | None = None,
    prefix: str = "",
) -> Fetched:
    """Return what a thread fetches for each of so many packs, of which it then computes the roots.

    What is ``known`` has a name already; names of arrays begin with the prefix.
    """
    known = known or {}
    still, wide = _needed(packs, roots, known)
    emitter = Emitter({**known, packs.index: FIRST}, pointer, "s")
    places = [joined(offset_of(load)) for load in wide]
    guards = [load.args[len(load.data.shape) :] for load in wide]
    texts = emitter.emit(*still, *places, *(guard for item in guards for guard in item))
    conditions = iter(texts[len(still) + len(wide) :])
    declared, filled, names = list[str](), list[str](), dict[Term, str]()
    for term, text in zip(still, texts, strict=False):
        name = f"{prefix}h{len(declared)}"
        declared.append(f"{TYPES[term.dtype]} {name}[{count}];")
        filled.append(f"{name}[u] = {text};")
        names[term] = f"{name}[u]"
    for load, text, guard in zip(wide, texts[len(still) :], guards, strict=False):
        name, kind = f"{prefix}a{len(declared)}", f"{TYPES[load.data.dtype]}, {packs.width}"
        declared.append(f"pack<{kind}> {name}[{count}];")
        fetch = f"{name}[u] = ::fetch<{packs.width}>({pointer(load.data)} + {text});"
        filled += [f"{name}[u] = {{}};", f"if ({next(conditions)}) {fetch}"] if guard else [fetch]
        names[load] = f"ld({name}[u].items, k)"
    return Fetched(declared, [*emitter.lines, *filled], names)


def _needed(packs: Packs, roots: Sequence[Term], known: Mapping[Term, str]) -> tuple[list[Term], list[Term]]:
    """Return the largest terms that stay the same over a pack, and the wide loads."""
    still, wide = list[Term](), list[Term]()
    stack, seen = list(reversed(roots)), set(known)
    while stack:
        term = stack.pop()
        if term in seen or term.op == "const" or term is packs.index:
            continue
        seen.add(term)
        if packs.stays(term):
            still.append(term)
        elif term.op == "load" and packs.is_wide_load(term):
            wide.append(term)
        else:
            stack.extend(reversed(term.args))
    return still, wide


def each_pack(count: int, found: str, limit: str, body: list[str]) -> list[str]:
    """Return statements for each of a thread's packs, those that begin at a limit or beyond left out.

    ``found`` is the statement that finds the index of a pack's first element.
    """
    inside = [f"if ({FIRST} < {limit}) {{", *statements(body, 1), "}"] if limit else body
    return ["#pragma unroll", f"for (int u = 0; u < {count}; ++u) {{", *statements(from_first(found, inside), 1), "}"]


def from_first(found: str, body: list[str]) -> list[str]:
    """Return statements, after the one that finds the index of a pack's first element where they use it."""
    return [found, *body] if any(re.search(rf"\b{FIRST}\b", line) for line in body) else body


def each_item(count: int, body: list[str]) -> list[str]:
    """Return statements for each element of a pack: their place in it is ``k``, their index ``j``."""
    used = any(re.search(rf"\b{EACH}\b", line) for line in body)
    lines = [f"const idx {EACH} = {FIRST} + k;", *body] if used else body
    return ["#pragma unroll", f"for (int k = 0; k < {count}; ++k) {{", *statements(lines, 1), "}"]
