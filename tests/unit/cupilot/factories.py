"""Small, valid value objects for tests; each caller changes the field it is about."""

from __future__ import annotations

from cupilot.domain.evaluation import Baseline, BuildReport, Comparison, Interval, LawResult
from cupilot.domain.hardware import Peaks
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan
from cupilot.domain.problem import DType, Graph, NumericsPolicy, ProblemFacts, Role, Target, TensorSpec


def tensor(name: str, *shape: int, role: Role = Role.INPUT, dtype: DType = DType.FLOAT32) -> TensorSpec:
    """A contiguous tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return TensorSpec(name=name, role=role, dtype=dtype, shape=shape, strides=tuple(strides[: len(shape)]))


def facts(*tensors: TensorSpec, **changes: object) -> ProblemFacts:
    """Facts of a row-wise operator on ``x``, 64 x 256."""
    fields: dict[str, object] = {
        "problem_hash": "0" * 64,
        "policy": NumericsPolicy.FP32,
        "tensors": tensors or (tensor("x", 64, 256), tensor("out", 64, 256, role=Role.OUTPUT)),
        "graph": Graph(nodes=(), outputs=("out",)),
        "op_class": "softmax",
        "flops": 5.0 * 64 * 256,
        "compulsory_bytes": 2 * 4 * 64 * 256,
    }
    return ProblemFacts.model_validate({**fields, **changes})


def kernel(*launches: Launch, target: Target = Target.CUDA, **plan: object) -> Kernel:
    """A kernel whose source is never compiled."""
    default = Launch(kernel="rows", grid=("X_ROWS",), block=("256",), args=("x", "out"))
    return Kernel(
        target=target,
        source="// not compiled",
        plan=LaunchPlan.model_validate({"launches": launches or (default,), **plan}),
    )


def peaks(**changes: object) -> Peaks:
    """A device with 1 GB/s and 10 GFLOP/s, so that its ridge lies at 10 operations a byte."""
    fields: dict[str, object] = {
        "device_uid": "test",
        "bandwidth": 1e9,
        "scalar_flops": 1e10,
        "tensor_flops": {NumericsPolicy.TF32: 1e11},
        "measured_at": "2026-01-01T00:00:00Z",
    }
    return Peaks.model_validate({**fields, **changes})


def comparison(speedup: float = 2.0, baseline: Baseline = Baseline.EAGER) -> Comparison:
    """A kernel of 10 us against a baseline that takes ``speedup`` times as long."""

    def interval(value: float) -> Interval:
        return Interval(low=value * 0.9, median=value, high=value * 1.1)

    return Comparison(
        baseline=baseline,
        kernel_us=interval(10.0),
        baseline_us=interval(10.0 * speedup),
        speedup=interval(speedup),
        pairs=20,
        launches=200,
    )


def law(*, passed: bool = True) -> LawResult:
    """The problem's own inputs."""
    return LawResult(law="own", passed=passed, error=1e-7, tolerance=1e-6, reference_error=1e-7)


def build(*, ok: bool = True) -> BuildReport:
    """A build that worked, or did not."""
    return BuildReport(ok=ok, compiler="g++ 12", seconds=0.1)
