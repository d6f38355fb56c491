"""Matrix products on the ``cuda`` target: the plain kernel, and what the tiled ones share (grid, depth, epilogue).

Tiles on the scalar units are ``cuda_matmul_tiled``'s, of sums of quarters ``cuda_matmul_strassen``'s; those on tensor
cores ``cuda_matmul_tensor``'s and, a warpgroup at a time, ``cuda_matmul_warpgroup``'s.
"""

from __future__ import annotations

from agents.playbook.operators import Matmul
from agents.playbook.templates import cuda_matmul_strassen, cuda_matmul_tensor, cuda_matmul_tiled, cuda_matmul_warpgroup
from agents.playbook.templates.cuda_math import bounds
from agents.playbook.templates.cuda_matmul_parts import Tiling, second_stage
from agents.playbook.templates.matmul_text import address, finished, input_names, title
from agents.playbook.templates.source import Options, Source, arguments
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Tunable, Workspace
from cupilot.domain.problem import Target

PIECE = 256
"""Products that one float32 accumulator sums before it is put away."""


def render(operator: Matmul, options: Options) -> Kernel:
    """Return the kernel of a matrix product under the given techniques."""
    source = Source(title(operator), options)
    source.constants(batches=operator.batches, m=operator.m, n=operator.n, k=operator.k)
    if "strassen" in options:
        return cuda_matmul_strassen.render(operator, options, source)
    parts = options.number("split_k", "parts", 1)
    if "shared_tiling" not in options:
        return _plain(source, operator, options, parts)
    tiling = Tiling.of(operator, options)
    if "warpgroup_mma" in options:
        return _by_warpgroups(source, operator, options, tiling)
    module = cuda_matmul_tensor if "tensor_cores" in options else cuda_matmul_tiled
    shared_bytes = module.add_kernel(source, operator, options, tiling)
    launch = Launch(
        kernel="multiply",
        args=(*input_names(operator), _destination(operator, parts)),
        grid=(str(tiling.blocks(operator)),),
        block=(str(tiling.threads),),
        shared_bytes=str(shared_bytes),
    )
    return _with_second_stage(source, operator, launch, parts)


def _by_warpgroups(source: Source, operator: Matmul, options: Options, tiling: Tiling) -> Kernel:
    maps = cuda_matmul_warpgroup.add_kernel(source, operator, options, tiling)
    bias = (operator.bias.name,) if operator.bias and tiling.parts == 1 else ()
    launch = Launch(
        kernel="multiply",
        args=(*(tensor_map.name for tensor_map in maps), *bias, _destination(operator, tiling.parts)),
        grid=(str(tiling.blocks(operator)),),
        block=(str(tiling.threads),),
        shared_bytes=str(cuda_matmul_warpgroup.shared_bytes(tiling)),
        cluster=(str(tiling.cluster),) if tiling.cluster > 1 else (),
    )
    kernel = _with_second_stage(source, operator, launch, tiling.parts)
    return Kernel(target=kernel.target, source=kernel.source, plan=kernel.plan.model_copy(update={"tensor_maps": maps}))


def _destination(operator: Matmul, parts: int) -> str:
    return operator.output if parts == 1 else "parts"


def _with_second_stage(source: Source, operator: Matmul, launch: Launch, parts: int) -> Kernel:
    if parts == 1:
        return source.kernel(Target.CUDA, LaunchPlan(launches=(launch,)))
    size = operator.batches * operator.m * operator.n
    adding = second_stage(source, operator)
    workspace = (Workspace(name="parts", bytes=str(size * parts * 4)),)
    return source.kernel(Target.CUDA, LaunchPlan(launches=(launch, adding), workspace=workspace))


def _plain(source: Source, operator: Matmul, options: Options, parts: int) -> Kernel:
    """Return a kernel with one thread for each element of the result."""
    factor = options.number("loop_unrolling", "factor", 1)
    bias = f"*({address(operator.bias, 'batch', 'i', 'j')})" if operator.bias else ""
    value = finished(operator, "total", bias) if parts == 1 else "total"
    source.constants(parts=parts, part=-(-operator.k // parts), piece=PIECE)
    source.add(
        """
        extern "C" __global__ void $BOUNDS multiply($ARGUMENTS) {
            const long long item = (long long)blockIdx.x * K_BLOCK + threadIdx.x;
            if (item >= K_PARTS * K_BATCHES * K_M * K_N) return;
            const long long j = item % K_N, i = item / K_N % K_M;
            $BATCH
            const long long first = item / K_N / K_M / K_BATCHES * K_PART;
            const long long last = first + K_PART < K_K ? first + K_PART : K_K;
            float total = 0.0f;
            for (long long begin = first; begin < last; begin += K_PIECE) {
                const long long end = begin + K_PIECE < last ? begin + K_PIECE : last;
                float piece = 0.0f;
                $UNROLL
                for (long long k = begin; k < end; ++k) piece += *($A) * *($B);
                total += piece;
            }
            p_$OUT[item] = $VALUE;
        }
        """,
        BOUNDS=bounds(options, "K_BLOCK"),
        ARGUMENTS=arguments(input_names(operator), [("float", _destination(operator, parts))]),
        BATCH=["const long long batch = item / K_N / K_M % K_BATCHES;"] if operator.batches > 1 else [],
        UNROLL=[f"#pragma unroll {factor}"] if factor > 1 else [],
        A=address(operator.a, "batch", "i", "k"),
        B=address(operator.b, "batch", "k", "j"),
        OUT=_destination(operator, parts),
        VALUE=value,
    )
    size = operator.batches * operator.m * operator.n * parts
    launch = Launch(
        kernel="multiply",
        args=(*input_names(operator), _destination(operator, parts)),
        grid=(f"ceil_div({size}, K_BLOCK)",),
        block=("K_BLOCK",),
    )
    kernel = _with_second_stage(source, operator, launch, parts)
    plan = kernel.plan.model_copy(update={"tunables": {"K_BLOCK": Tunable(value=256, choices=(64, 128, 256, 512))}})
    return Kernel(target=kernel.target, source=kernel.source, plan=plan)
