"""From a problem's facts to a kernel: lower, cut, and render for a target."""

from __future__ import annotations

from collections import OrderedDict
from math import prod

from agents.playbook.compiler.attention import Attention, with_attention
from agents.playbook.compiler.cpu import tiling
from agents.playbook.compiler.cpu.source import source_of
from agents.playbook.compiler.cpu.tiling import Vectors
from agents.playbook.compiler.cpu.windows import with_windows
from agents.playbook.compiler.cuda.joint import with_joint_products
from agents.playbook.compiler.cuda.launches import render
from agents.playbook.compiler.cuda.moments import is_side_by_side
from agents.playbook.compiler.cuda.relaid import with_relaid_factors
from agents.playbook.compiler.cuda.row_layouts import is_worth
from agents.playbook.compiler.cuda.tiles import LARGEST_TILE, Tiles
from agents.playbook.compiler.fused import with_fused_rows
from agents.playbook.compiler.groups import Program, cut
from agents.playbook.compiler.lowering import UNFORESEEN, Unsupported, lowered
from agents.playbook.compiler.moments import with_moments
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.phases import with_phases
from agents.playbook.compiler.products import product_of
from agents.playbook.compiler.split_depth import divided
from agents.playbook.compiler.splitting import with_split_axes
from agents.playbook.compiler.tensors import Order, Reduce, Tensor
from cupilot.domain.kernel import MAX_SOURCE_BYTES, MAX_WORKSPACE_BYTES, Launch, LaunchPlan, Tunable, Workspace
from cupilot.domain.problem import ProblemFacts, Role, Target
from cupilot.domain.tensor_map import TensorMap

INDEX_LIMIT = 2**31 - 2**22
"""Elements up to which indices of 32 bits do, with room for a step beyond the end."""
_KEPT = 16
Rendered = tuple[str, LaunchPlan]
Tiling = Tiles | Vectors | None
"""Tiles of products on ``cuda``, vectors on ``cpu``; None for the plain kernel."""
_KEPT_PROGRAMS = 8
_programs: OrderedDict[tuple[int, bool], tuple[ProblemFacts, Program]] = OrderedDict()
_matrices: OrderedDict[int, tuple[Program, Program]] = OrderedDict()
_KEPT_REFUSALS = 512
"""More than the micro-kernels of one problem that a search asks for again and again."""
_refusals: OrderedDict[tuple[int, Vectors], tuple[ProblemFacts, str | None]] = OrderedDict()
_kept: OrderedDict[tuple[int, Target, Tiling], tuple[ProblemFacts, Rendered | Unsupported]] = OrderedDict()


def rendered(facts: ProblemFacts, target: Target, tiles: Tiling = None) -> Rendered:
    """Return source and plan of a problem's kernel; those of the last few problems are kept, and refusals too.

    Raises :class:`~agents.playbook.compiler.lowering.Unsupported`.
    """
    key = (id(facts), target, tiles)
    if key not in _kept or _kept[key][0] is not facts:
        _kept[key] = facts, _rendered_or_refused(facts, target, tiles)
        while len(_kept) > _KEPT:
            _kept.popitem(last=False)
    result = _kept[key][1]
    if isinstance(result, Unsupported):
        raise Unsupported(result.node, result.reason) from result.__cause__
    return result


def refusal_of_tiles(facts: ProblemFacts, *, online: bool = False) -> str | None:
    """Return why a problem's products cannot be tiled on ``cuda``; None where they can.

    Tiles make the source longer, and may make it too long. The largest make it the longest, so that they are tried.
    """
    tiles = Tiles(LARGEST_TILE, LARGEST_TILE, LARGEST_TILE, online=online)
    groups = tiled_program(facts, tiles).groups
    if all(product_of(group) is None and not isinstance(group, Attention) for group in groups):
        return "no launch is a product with at least 16 rows, columns and terms"
    return _refusal(facts, Target.CUDA, tiles)


def refusal_of_vectors(facts: ProblemFacts, vectors: Vectors) -> str | None:
    """Return why a problem's products cannot be tiled on ``cpu`` under a micro-kernel; None where they can. Kept."""
    key = id(facts), vectors
    if key not in _refusals or _refusals[key][0] is not facts:
        _refusals[key] = facts, _made_refusal_of_vectors(facts, vectors)
        while len(_refusals) > _KEPT_REFUSALS:
            _refusals.popitem(last=False)
    return _refusals[key][1]


def _made_refusal_of_vectors(facts: ProblemFacts, vectors: Vectors) -> str | None:
    if all(tiling.product_of(group) is None for group in tiled_program(facts, vectors).groups):
        return f"no loop is a product with at least {tiling.LEAST} rows, {tiling.LEAST_LANES} columns"
    return _refusal(facts, Target.CPU, vectors)


def _refusal(facts: ProblemFacts, target: Target, tiles: Tiling) -> str | None:
    try:
        rendered(facts, target, tiles)
    except Unsupported as error:
        return f"with tiles, {error.reason}"
    return None


def tiled_program(facts: ProblemFacts, tiles: Tiling) -> Program:
    """Return the groups of a problem, with products as their tiles need them."""
    if isinstance(tiles, Tiles):
        return divided(with_relaid_factors(matrices_of(facts, online=tiles.online), tiles), tiles)
    program = program_of(facts)
    if tiles is None or tiles.rectangle is None:
        return program
    return with_windows(with_split_axes(program, tiling.product_of), tiling.product_of)


def launched_program(facts: ProblemFacts, target: Target, tiles: Tiling) -> Program:
    """Return the groups of a problem as a target launches them."""
    program = tiled_program(facts, tiles)
    if target is Target.CPU:
        return program
    program = with_moments(with_fused_rows(program, is_worth), is_side_by_side)
    return with_joint_products(program, tiles.precision) if isinstance(tiles, Tiles) and tiles.by_maps else program


def matrices_of(facts: ProblemFacts, *, online: bool = False) -> Program:
    """Return the groups of a problem with products as ``cuda`` tiles them, by phase and with axes split; kept too."""
    program = program_of(facts, online=online)
    key = id(program)
    if key not in _matrices or _matrices[key][0] is not program:
        _matrices[key] = program, with_split_axes(with_phases(program), product_of)
        while len(_matrices) > _KEPT_PROGRAMS:
            _matrices.popitem(last=False)
    return _matrices[key][1]


def _rendered_or_refused(facts: ProblemFacts, target: Target, tiles: Tiling) -> Rendered | Unsupported:
    try:
        return _rendered(facts, target, tiles)
    except Unsupported as error:
        return error.with_traceback(None)
    except UNFORESEEN as error:
        refused = Unsupported(None, f"a variant of a call is not foreseen ({type(error).__name__})")
        refused.__cause__ = error
        return refused


def program_of(facts: ProblemFacts, *, online: bool = False) -> Program:
    """Return the groups of a problem, attention as one where asked for; those of the last few problems are kept.

    Raises Unsupported.
    """
    key = id(facts), online
    if key not in _programs or _programs[key][0] is not facts:
        _programs[key] = facts, with_attention(program_of(facts)) if online else _made(facts)
        while len(_programs) > _KEPT_PROGRAMS:
            _programs.popitem(last=False)
    return _programs[key][1]


def _made(facts: ProblemFacts) -> Program:
    specs = facts.with_role(Role.OUTPUT)
    values = lowered(facts)
    if len(values) != len(specs):
        raise Unsupported(None, "the graph's outputs and the output tensors do not match")
    outputs: list[tuple[str, Tensor]] = []
    for spec, value in zip(specs, values, strict=True):
        if value.shape != spec.shape or value.dtype != spec.dtype.value:
            raise Unsupported(None, f"{spec.name} would be {value.dtype}{list(value.shape)}")
        if 0 in spec.shape:
            raise Unsupported(None, f"{spec.name} has no elements")
        outputs.append((spec.name, value))
    program = cut(outputs)
    strides = {spec.name: spec.strides for spec in specs}
    for tensor, name in program.names.items():
        tensor.layout = strides[name]
    if program.workspace_bytes > MAX_WORKSPACE_BYTES:
        size = program.workspace_bytes / 2**30
        raise Unsupported(
            None, f"its intermediate tensors take {size:.1f} GiB; {MAX_WORKSPACE_BYTES / 2**30:.0f} are allowed"
        )
    return program


def _rendered(facts: ProblemFacts, target: Target, tiles: Tiling) -> Rendered:
    program = launched_program(facts, target, tiles)
    taken = {spec.name for spec in facts.tensors}
    workspace = next(name for name in ("workspace", "workspace_", "workspace__") if name not in taken)
    pointers = Pointers(program, workspace)
    index_type = "int" if _largest(program) < INDEX_LIMIT else "long long"
    tunables: dict[str, Tunable] = {}
    maps: list[TensorMap] = []
    if target is Target.CPU:
        assert not isinstance(tiles, Tiles)
        source, size = source_of(program, pointers, index_type, tiles or Vectors())
        arguments = pointers.launch_arguments(program.groups, workspace=size > 0)
        launches = [Launch(kernel="run", args=arguments)]
    else:
        assert not isinstance(tiles, Vectors)
        source, launches, tunables, size, maps = render(program, pointers, index_type, tiles)
    if size > MAX_WORKSPACE_BYTES:
        raise Unsupported(None, f"its panels take {size / 2**30:.1f} GiB")
    if len(source.encode()) > MAX_SOURCE_BYTES:
        raise Unsupported(
            None,
            f"its source takes {len(source.encode())} bytes; {MAX_SOURCE_BYTES} are allowed, and loops are written out:"
            f" {len(facts.graph.nodes)} calls",
        )
    spaces = (Workspace(name=workspace, bytes=str(size)),) if size else ()
    return source, LaunchPlan(launches=tuple(launches), tunables=tunables, workspace=spaces, tensor_maps=tuple(maps))


def _largest(program: Program) -> int:
    """Return the largest number of elements that an index has to reach."""
    sizes = [0]
    for group in program.groups:
        sizes.append(prod(group.shape))
        if isinstance(group.source, Reduce):
            sizes.append(prod(group.source.extents))
        if isinstance(group.source, Order):
            sizes.append(group.source.length)
        for tensor in [*group.loads(), *(target.tensor for target in group.targets)]:
            sizes.append(sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides(), strict=True)) + 1)
    return max(sizes)
