"""References as pool entries and problem facts, for the tests of the strategy pool."""

from __future__ import annotations

from cupilot.domain.evaluation import FailureKind, Verdict
from cupilot.domain.pool import PoolEntry
from cupilot.domain.problem import DType, Graph, GraphNode, NumericsPolicy, ProblemFacts, Role, Target, TensorSpec
from cupilot.domain.problems import load
from cupilot.domain.roofline import Zone
from cupilot.domain.strategy import Strategy, TechniqueUse

REFERENCES: dict[str, tuple[str, tuple[str, ...], tuple[tuple[int, ...], ...]]] = {
    "softmax": ("softmax", ("_softmax",), ((4096, 8192),)),
    "row_softmax": ("softmax", ("amax", "sub", "exp", "sum", "div"), ((1024, 32768),)),
    "log_softmax": ("softmax", ("_log_softmax",), ((4096, 4096),)),
    "layer_norm": ("norm", ("native_layer_norm",), ((16, 64, 256, 256), (64, 256, 256), (64, 256, 256))),
    "rms_norm": ("norm", ("pow", "mean", "add", "sqrt", "div"), ((112, 64, 512, 512),)),
    "batch_norm": ("norm", ("_native_batch_norm_legit",), ((64, 64, 512, 512), (64,), (64,))),
    "l2_norm": ("norm", ("linalg_vector_norm", "div"), ((32768, 65535),)),
    "gelu": ("elementwise", ("gelu",), ((4096, 8192),)),
    "new_gelu": ("elementwise", ("mul", "pow", "mul", "add", "mul", "tanh", "add", "mul"), ((8192, 8192),)),
    "relu": ("elementwise", ("relu",), ((4096, 8192),)),
    "leaky_relu": ("elementwise", ("leaky_relu",), ((4096, 8192),)),
    "swish": ("elementwise", ("sigmoid", "mul"), ((4096, 8192),)),
    "matmul": ("matmul", ("mm",), ((2048, 4096), (4096, 2048))),
    "matmul_square": ("matmul", ("mm",), ((4096, 4096), (4096, 4096))),
    "batched_matmul": ("matmul", ("bmm",), ((128, 512, 1024), (128, 1024, 2048))),
    "sum_reduction": ("reduction", ("sum",), ((128, 4096, 4095),)),
    "max_reduction": ("reduction", ("amax",), ((128, 4096, 4095),)),
    "conv2d": ("conv", ("convolution",), ((16, 16, 1024, 1024), (64, 16, 3, 3))),
    "max_pool2d": ("pool", ("max_pool2d_with_indices",), ((32, 64, 512, 512),)),
    "average_pool2d": ("pool", ("avg_pool2d",), ((16, 64, 2048, 2048),)),
    "cumsum": ("scan", ("cumsum",), ((32768, 32768),)),
    "cross_entropy_loss": ("loss", ("_log_softmax", "nll_loss_forward"), ((32768, 4096), (32768,))),
    "mse_loss": ("loss", ("mse_loss",), ((32768, 32768), (32768, 32768))),
}
"""Name, operator family, ATen operators and shapes, as KernelBench's level 1 has them."""


def strategy(*ids: str) -> Strategy:
    return Strategy(techniques=tuple(TechniqueUse(id=each) for each in ids))


def operators_of(name: str) -> tuple[str, ...]:
    return tuple(f"aten.{each}.default" for each in REFERENCES[name][1])


def entry(
    reference: str,
    key: str,
    *,
    techniques: tuple[str, ...] = ("tiling",),
    speedup: float | None = 2.0,
    failure: FailureKind | None = None,
    verdict: Verdict | None = None,
    team: str = "blue",
    target: Target = Target.CUDA,
    policy: NumericsPolicy = NumericsPolicy.FP32,
    device_class: str = "sm_90",
    zone: Zone = Zone.MEMORY,
) -> PoolEntry:
    op_class, _, shapes = REFERENCES[reference]
    counts = speedup is not None and failure is None
    return PoolEntry(
        id=key,
        team=team,
        problem_name=reference,
        problem_hash=f"hash of {reference}",
        op_class=op_class,
        operators=operators_of(reference),
        shapes=shapes,
        target=target,
        policy=policy,
        dtype="float32",
        device_class=device_class,
        zone=zone,
        strategy=strategy(*techniques),
        kernel_hash=f"kernel of {key}",
        verdict=verdict or (Verdict.AUDITED if counts else Verdict.REJECTED),
        speedup=speedup if counts else None,
        failure=failure,
        created_at="2026-01-01T00:00:00Z",
    )


def on_builtin(entry: PoolEntry) -> PoolEntry:
    """The entry as one on the built-in problem that it is named after: only such may be shared."""
    return entry.model_copy(update={"problem_hash": load(entry.problem_name, policy=entry.policy).content_hash()})


def facts(reference: str, policy: NumericsPolicy = NumericsPolicy.FP32) -> ProblemFacts:
    op_class, _, shapes = REFERENCES[reference]
    tensors = [_tensor(f"x{place}", Role.INPUT, shape) for place, shape in enumerate(shapes)]
    return ProblemFacts(
        problem_hash=f"hash of {reference}",
        policy=policy,
        tensors=(*tensors, _tensor("out", Role.OUTPUT, shapes[0])),
        graph=Graph(
            nodes=tuple(
                GraphNode(op=each, args=(), results=(f"v{place}",), shapes=(shapes[0],), dtypes=("torch.float32",))
                for place, each in enumerate(operators_of(reference))
            ),
            outputs=("v0",),
        ),
        op_class=op_class,
        flops=1e9,
        compulsory_bytes=10**9,
    )


def _tensor(name: str, role: Role, shape: tuple[int, ...]) -> TensorSpec:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return TensorSpec(name=name, role=role, dtype=DType.FLOAT32, shape=shape, strides=tuple(strides))
