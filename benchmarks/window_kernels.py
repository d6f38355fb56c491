"""Convolutions and pools as direct CUDA kernels, written from the reference's graph: right, plain, and not fast.

A thread computes one place of the output, of a convolution for several output channels at once. One to three
dimensions, strides, padding, dilation, groups, transposed or not; several convolutions after each other through a
workspace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Tunable, Workspace
from cupilot.domain.problem import GraphNode, ProblemFacts, Role, Target

CONVOLUTION = "aten.convolution.default"
POOLS = {
    "aten.avg_pool2d.default": False,
    "aten.avg_pool3d.default": False,
    "aten.max_pool2d_with_indices.default": True,
    "aten.max_pool3d_with_indices.default": True,
}
"""Pools, and whether they take the maximum."""

BLOCKS = (256, 128, 64, 512)
CHANNELS = (8, 4, 2, 1, 16)
"""Output channels a thread, where they divide a group's."""

_PLACE = """
    long long place = (long long)blockIdx.x * BLOCK + threadIdx.x;
    if (place >= PLACES) return;
    int ow = (int)(place % OW), oh = (int)(place / OW % OH), od = (int)(place / ((long long)OW * OH) % OD);
    long long n = place / ((long long)OW * OH * OD);
"""

_FORWARD = """
        int {i} = {o} * S{d} - P{d} + k{i} * L{d};
        if ({i} < 0 || {i} >= I{d}) continue;"""

_BACKWARD = """
        int t{i} = {o} + P{d} - k{i} * L{d};
        if (t{i} < 0 || t{i} % S{d} != 0) continue;
        int {i} = t{i} / S{d};
        if ({i} >= I{d}) continue;"""

_AXES = (("D", "z", "od"), ("H", "y", "oh"), ("W", "u", "ow"))


@dataclass(frozen=True)
class _Windows:
    """A window that moves over three axes, of which the first ones may have one place only."""

    input_size: tuple[int, ...]
    """Depth, height and width of the input..."""
    output_size: tuple[int, ...]
    """...and of the output."""
    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def constants(self, outer: int) -> dict[str, int]:
        names: dict[str, int] = {"PLACES": outer * prod(self.output_size)}
        for letter, values in (("I", self.input_size), ("O", self.output_size), ("K", self.window), ("S", self.stride),
                               ("P", self.padding), ("L", self.dilation)):  # fmt: skip
            names |= {f"{letter}{axis}": value for (axis, _, _), value in zip(_AXES, values, strict=True)}
        return names


def kernels(facts: ProblemFacts, count: int) -> Iterator[tuple[str, Kernel]]:
    """Return named kernels for a chain of convolutions, or for a pool; none for anything else."""
    convolutions = [node for node in facts.graph.nodes if node.op == CONVOLUTION]
    pool = next((node for node in facts.graph.nodes if node.op in POOLS), None)
    made = 0
    for channels in CHANNELS if convolutions else (1,):
        for block in BLOCKS:
            if made == count:
                return
            if convolutions:
                kernel = _convolutions(facts, convolutions, block, channels)
                name = f"direct convolution, {channels} channels a thread, blocks of {block}"
            elif pool is not None:
                kernel = _pool(facts, pool, block)
                name = f"direct pool, blocks of {block}"
            else:
                return
            if kernel is None:
                break
            made += 1
            yield name, kernel


def _convolutions(facts: ProblemFacts, nodes: Sequence[GraphNode], block: int, channels: int) -> Kernel | None:
    shapes = {spec.name: spec.shape for spec in facts.tensors}
    names = {spec.name: spec.name for spec in facts.tensors}
    pieces, launches, workspace = [], [], []
    for index, node in enumerate(nodes):
        value, weight, bias = (_ref(argument) for argument in node.args[:3])
        stride, padding, dilation, transposed, _, groups = node.args[3:9]
        assert isinstance(groups, int)
        shape = node.shapes[0]
        per_thread = channels if (shape[1] // groups) % channels == 0 else 1
        if per_thread != channels and len(nodes) == 1:
            return None
        windows = _Windows(
            _three(shapes[names[value]][2:]), _three(shape[2:]), _three(shapes[weight][2:]),
            _three(stride), _three(padding, 0), _three(dilation),
        )  # fmt: skip
        constants = windows.constants(shape[0]) | {
            "CI": shapes[names[value]][1], "CO": shape[1], "GROUPS": groups, "EACH": per_thread,
        }  # fmt: skip
        result = "out" if node is nodes[-1] else f"between{index}"
        if result != "out":
            workspace.append(Workspace(name=result, bytes=str(4 * prod(shape))))
        names[node.results[0]], shapes[result] = result, shape
        pieces.append(_convolution(f"convolve{index}", constants, bool(transposed), bool(bias)))
        grid = (f"({constants['PLACES']} + BLOCK - 1) / BLOCK", str(shape[1] // per_thread))
        args = (names[value], weight, *((bias,) if bias else ()), result)
        launches.append(Launch(kernel=f"convolve{index}", grid=grid, block=("BLOCK",), args=args))
    return _kernel("".join(pieces), launches, block, workspace)


def _convolution(name: str, constants: Mapping[str, int], transposed: bool, bias: bool) -> str:
    locate = _BACKWARD if transposed else _FORWARD
    loops = ""
    for axis, index, place in _AXES:
        loops += f"\n      for (int k{index} = 0; k{index} < K{axis}; ++k{index}) {{"
        loops += locate.format(i=index, o=place, d=axis)
    inside = "(group * CIG + c) * COG + first - group * COG + j" if transposed else "(first + j) * CIG + c"
    return f"""
namespace {name}_facts {{
{_constants(constants)}
constexpr int CIG = CI / GROUPS, COG = CO / GROUPS;
}}
extern "C" __global__ void __launch_bounds__(BLOCK) {name}(
    const float* x, const float* w, {"const float* bias, " if bias else ""}float* out) {{
    using namespace {name}_facts;{_PLACE}
    int first = blockIdx.y * EACH, group = first / COG;
    float sum[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) sum[j] = {"bias[first + j]" if bias else "0.0f"};
    for (int c = 0; c < CIG; ++c) {{{loops}
        float value = x[(((n * CI + group * CIG + c) * ID + z) * IH + y) * IW + u];
#pragma unroll
        for (int j = 0; j < EACH; ++j)
          sum[j] += value * w[((({inside}) * KD + kz) * KH + ky) * KW + ku];
      }}}}}}
    }}
#pragma unroll
    for (int j = 0; j < EACH; ++j) out[(((n * CO + first + j) * OD + od) * OH + oh) * OW + ow] = sum[j];
}}
"""


def _pool(facts: ProblemFacts, node: GraphNode, block: int) -> Kernel:
    largest = POOLS[node.op]
    arguments = [*node.args, *([[]] * (5 - len(node.args)))]
    window, stride, padding, dilation = arguments[1:5]
    out = next(spec for spec in facts.tensors if spec.role is Role.OUTPUT)
    input_spec = next(spec for spec in facts.tensors if spec.role is Role.INPUT)
    windows = _Windows(
        _three(input_spec.shape[2:]), _three(out.shape[2:]), _three(window), _three(stride or window),
        _three(padding or [0], 0), _three(dilation if largest and dilation else [1]),
    )  # fmt: skip
    loops = ""
    for axis, index, place in _AXES:
        loops += f"\n      for (int k{index} = 0; k{index} < K{axis}; ++k{index}) {{"
        loops += _FORWARD.format(i=index, o=place, d=axis)
    value = "x[((n * ID + z) * IH + y) * IW + u]"
    update = f"best = fmaxf(best, {value});" if largest else f"best += {value};"
    source = f"""
{_constants(windows.constants(prod(out.shape[:2])))}
extern "C" __global__ void __launch_bounds__(BLOCK) pool(const float* x, float* out) {{{_PLACE}
    float best = {"-INFINITY" if largest else "0.0f"};
    {{{loops}
        {update}
      }}}}}}
    }}
    out[place] = best{"" if largest else " / (KD * KH * KW)"};
}}
"""
    grid = (f"({prod(out.shape)} + BLOCK - 1) / BLOCK",)
    launch = Launch(kernel="pool", grid=grid, block=("BLOCK",), args=(input_spec.name, out.name))
    return _kernel(source, [launch], block, [])


def _constants(constants: Mapping[str, int]) -> str:
    kinds = {name: "long long" if name == "PLACES" else "int" for name in constants}
    return "\n".join(f"constexpr {kinds[name]} {name} = {value};" for name, value in constants.items())


def _kernel(source: str, launches: Sequence[Launch], block: int, workspace: Sequence[Workspace]) -> Kernel:
    plan = LaunchPlan(
        launches=tuple(launches),
        tunables={"BLOCK": Tunable(value=block, choices=BLOCKS)},
        workspace=tuple(workspace),
    )
    return Kernel(target=Target.CUDA, source=f'#include "problem.h"\n{source}', plan=plan)


def _three(values: Any, missing: int = 1) -> tuple[int, ...]:
    """Return numbers of three axes; those that the operator does not have come first."""
    numbers = [int(value) for value in values]
    return (*([missing] * (3 - len(numbers))), *numbers)


def _ref(argument: Any) -> str:
    return argument["ref"] if isinstance(argument, dict) else ""
