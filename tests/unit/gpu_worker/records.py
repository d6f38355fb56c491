"""Value objects that tests of the worker start from."""

from __future__ import annotations

from collections.abc import Sequence

from cupilot.domain.evaluation import Baseline, Comparison, Interval, Preparation
from cupilot.domain.hardware import Device, Environment, Peaks
from cupilot.domain.kernel import Kernel, LaunchPlan
from cupilot.domain.problem import DType, Graph, NumericsPolicy, Problem, ProblemFacts, Role, Target, TensorSpec
from cupilot.domain.roofline import place
from gpu_worker.messages.judge import KernelOrder

PROBLEM = Problem(name="double", source="irrelevant here")

DEVICE = Device(
    target=Target.CPU, uid="cpu-0", name="a CPU", arch="x86-64-avx2", units=2, memory_bytes=2**34, cache_bytes=2**25
)

PEAKS = Peaks(
    device_uid="cpu-0", bandwidth=1e10, scalar_flops=1e11, launch_seconds=1e-7, measured_at="2026-01-01T00:00:00+00:00"
)


def spec(
    name: str,
    shape: Sequence[int],
    role: Role = Role.INPUT,
    dtype: DType = DType.FLOAT32,
    strides: Sequence[int] | None = None,
) -> TensorSpec:
    if strides is None:
        strides, last = [], 1
        for size in reversed(shape):
            strides.insert(0, strides[0] * last if strides else 1)
            last = size
    return TensorSpec(name=name, role=role, dtype=dtype, shape=tuple(shape), strides=tuple(strides))


def facts(policy: NumericsPolicy = NumericsPolicy.FP32, rows: int = 1000) -> ProblemFacts:
    """Something that reads and writes ``rows`` x 1000 floats."""
    return ProblemFacts(
        problem_hash=PROBLEM.content_hash(),
        policy=policy,
        tensors=(spec("x", (rows, 1000)), spec("out", (rows, 1000), Role.OUTPUT)),
        graph=Graph(nodes=(), outputs=("x",)),
        op_class="elementwise",
        flops=rows * 1000.0,
        compulsory_bytes=rows * 8000,
    )


def preparation(policy: NumericsPolicy = NumericsPolicy.FP32) -> Preparation:
    known = facts(policy)
    return Preparation(
        facts=known,
        placement=place(known, PEAKS),
        peaks=PEAKS,
        environment=Environment(device=DEVICE),
        baseline_us=interval(2000.0),
        laws=("own",),
        tolerances={"own": 1e-4},
        admission={"zeros": True},
    )


def kernel(source: str = "irrelevant here") -> Kernel:
    plan = LaunchPlan.model_validate({"launches": [{"kernel": "run", "args": ["x", "out"]}]})
    return Kernel(target=Target.CPU, source=source, plan=plan)


def interval(median: float, width: float = 0.01) -> Interval:
    return Interval(low=median * (1 - width), median=median, high=median * (1 + width))


def comparison(kernel_us: float, baseline_us: float = 2000.0, width: float = 0.01) -> Comparison:
    return Comparison(
        baseline=Baseline.EAGER,
        kernel_us=interval(kernel_us),
        baseline_us=interval(baseline_us),
        speedup=interval(baseline_us / kernel_us, width),
        pairs=10,
        launches=100,
    )


def order() -> KernelOrder:
    """A kernel to be judged."""
    return KernelOrder(
        binary="kernel.bin",
        launches=(),
        workspace={},
        laws=("own",),
        tolerances={"own": 1e-4},
        thorough=False,
        incumbent=None,
        baselines=(Baseline.EAGER,),
    )
