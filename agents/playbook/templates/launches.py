"""Kernels of the compiler: the launches of any graph of supported calls."""

from __future__ import annotations

from dataclasses import replace

from agents.playbook.compiler.cpu.tiling import Rectangle, Vectors
from agents.playbook.compiler.cuda.tiles import Tiles
from agents.playbook.compiler.lowering import Unsupported
from agents.playbook.compiler.program import Tiling, rendered
from agents.playbook.compiler.refusals import unsupported
from agents.playbook.operators import Launches
from agents.playbook.templates.source import Options
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import ProblemFacts, Target


def as_launches(facts: ProblemFacts, target: Target, source: str = "") -> Launches:
    """Return the graph as launches; raises NoTemplate naming the call, and the line of the source that makes it."""
    try:
        rendered(facts, target)
    except Unsupported as error:
        raise unsupported(facts, error.node, error.reason, source) from error
    return Launches(facts)


def tiling_of(options: Options) -> Tiling:
    """Return the tiles in shared memory, or the vectors on ``cpu``, that a strategy asks for."""
    if "shared_tiling" in options:
        m, n, k = (options.number("shared_tiling", name, 0) for name in ("tile_m", "tile_n", "tile_k"))
        precision = options.text("tensor_cores", "precision")
        maps, online = "tma_loads" in options, "online_softmax" in options
        stages = options.number("tma_loads" if maps else "async_copy", "stages", 2)
        tiles = Tiles(m, n, k, precision, stages, "warpgroup_mma" in options, maps, online)
        if "minimal_filtering" not in options:
            return tiles
        outputs, taps = (options.number("minimal_filtering", name, 0) for name in ("outputs", "taps"))
        return replace(tiles, filtering=(outputs, taps))
    if "simd" not in options:
        return None
    rows, vectors = (options.number("micro_kernel", name, 0) for name in ("rows", "vectors"))
    rectangle = Rectangle(rows, vectors, options.number("simd", "width", 16)) if rows else None
    return Vectors(rectangle, options.number("polynomial_exp", "degree", 0))


def render(operator: Launches, options: Options, target: Target) -> Kernel:
    """Return the kernel of a graph."""
    source, plan = rendered(operator.facts, target, tiling_of(options))
    head = f"// A graph of {len(operator.facts.graph.nodes)} calls\n// Techniques: {options.describe()}\n"
    return Kernel(target=target, source=head + source, plan=plan)
