"""A program on the ``cpu`` target: one function that runs its groups one after the other, as tiles or as loop nests."""

from __future__ import annotations

from agents.playbook.compiler.cpu.nests import EXTREMES, PARALLEL, nest
from agents.playbook.compiler.cpu.polynomials import with_polynomials
from agents.playbook.compiler.cpu.tiles import micro_kernels, tiles
from agents.playbook.compiler.cpu.tiling import Rectangle, Tiling, Vectors, product_of
from agents.playbook.compiler.emission import statements
from agents.playbook.compiler.groups import ALIGNMENT, Group, Program
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.preludes import prelude, trimmed
from agents.playbook.compiler.shapes_of_work import operations

FEW_OPERATIONS = 20_000
"""Work that one thread does in the 5 to 10 us that it takes to wake others and wait for them."""
_REDUCTIONS = {
    name: f"#pragma omp declare reduction({name} : float : omp_out = fn_{kind}(omp_out, omp_in)) "
    f"initializer(omp_priv = {first})"
    for kind, name, first in (("max", EXTREMES["max"], "-FN_INFF"), ("min", EXTREMES["min"], "FN_INFF"))
}


def source_of(program: Program, pointers: Pointers, index_type: str, vectors: Vectors) -> tuple[str, int]:
    """Return the C++ text of a program, with one entry point ``run``, and the bytes of its workspace."""
    rectangle = vectors.rectangle
    tilings = [_tiling(group, rectangle, pointers) for group in program.groups]
    base = -(-program.workspace_bytes // ALIGNMENT) * ALIGNMENT
    tiled = [tiling for tiling in tilings if tiling is not None]
    packed = max((tiling.workspace_bytes for tiling in tiled), default=0)
    bodies, calls = [], []
    for place, (group, tiling) in enumerate(zip(program.groups, tilings, strict=True)):
        workspace = tiling is not None or pointers.needs_workspace(group)
        lines = tiles(tiling, base) if tiling is not None else _nest(group, pointers, simd=vectors.degree > 0)
        parameters = pointers.parameters([group], workspace=workspace)
        lines = [*pointers.declarations(group), *lines]
        bodies.append("\n".join([f"static void group{place}({parameters}) {{", *statements(lines, 1), "}"]))
        names = [f"p_{name}" for name, _, _ in pointers.arguments([group])]
        calls.append(f"    group{place}({', '.join([*names, *(['arena'] if workspace else [])])});")
    size = base + packed if packed else program.workspace_bytes
    parameters = pointers.parameters(program.groups, workspace=size > 0)
    entry = "\n".join([f'extern "C" void run({parameters}) {{', *calls, "}"])
    kinds = {tiling.direct for tiling in tiled}
    micro = [micro_kernels(rectangle, kinds)] if rectangle is not None and kinds else []
    body = "\n\n".join([*bodies, entry])
    declared = [line for name, line in _REDUCTIONS.items() if f"reduction({name} :" in body]
    text = "\n\n".join([*declared, *micro, body])
    head = prelude(index_type, cuda=False)
    head = with_polynomials(head, text, vectors.degree) if vectors.degree else head
    return f'#include "problem.h"\n{trimmed(head, text)}\n\n{text}\n', size


def _tiling(group: Group, rectangle: Rectangle | None, pointers: Pointers) -> Tiling | None:
    product = product_of(group) if rectangle is not None else None
    return None if product is None or rectangle is None else Tiling(group, product, rectangle, pointers)


def _nest(group: Group, pointers: Pointers, *, simd: bool) -> list[str]:
    lines = nest(group, pointers, simd=simd)
    return [line for line in lines if line.lstrip() != PARALLEL] if operations(group) <= FEW_OPERATIONS else lines
