"""Bounds by magnitude: small elements are held to their own size, honest float32 is not refused.

Kernels are PyTorch functions here; the laws and bounds are those that the judge measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

from cupilot.domain.problem import NumericsPolicy
from gpu_worker.judge import bands, laws, roundings
from gpu_worker.judge.deviation import BANDS, Expected, band_of, deviation, largest, unit_of
from gpu_worker.judge.tolerance import PRECISIONS
from tests.unit.gpu_worker.test_judge_measuring import Subject

Kernel = Callable[..., torch.Tensor]

NORMAL = "torch.randn(64, 256)"
ROWS = f"{NORMAL} * 10.0 ** torch.linspace(-6, 2, 64)[torch.randperm(64)][:, None]"
MATRICES = "torch.randn(128, 128), torch.randn(128, 128)"


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def wrong_under(subject: Subject, kernel: Kernel) -> dict[str, float]:
    """The laws under which a kernel errs by more than the bounds, and by how many times as much; offsets left out."""
    errors = {}
    for item in subject.admit().laws:
        if item.law in (laws.INTEGERS, laws.OFFSET):
            continue
        case, tolerance = subject.cases.get(item.law), item.tolerance
        (limit,) = subject.limits(item.law)
        errors[item.law] = deviation(bands.held(case.expected[0], limit, tolerance), kernel(*case.given)) / tolerance
    return {law: error for law, error in errors.items() if error > 1}


def in_nine_bits(values: torch.Tensor, below: float) -> torch.Tensor:
    return torch.where(values.abs() < below, roundings.round_mantissa(values, 9), values)


@pytest.mark.parametrize(("expression", "inputs", "kernel"), [
    ("torch.softmax(x, 1)", f"8 * {NORMAL}", lambda x: functional.threshold(x.softmax(1), 1e-6, 0)),
    ("torch.softmax(x, 1)", f"8 * {NORMAL}", lambda x: in_nine_bits(x.softmax(1), 1e-3)),
    ("torch.exp(8 * x)", NORMAL, lambda x: torch.exp(8 * x).masked_fill(x < 0, 0)),
    ("x * x * x", f"10 * {NORMAL}", lambda x: (x * x * x).masked_fill(x.abs() < 0.3, 0)),
    ("torch.cumprod(x, 1)", "torch.rand(64, 64) + 0.1", lambda x: in_nine_bits(x.cumprod(1), 1e-6)),
    ("torch.relu(x)", ROWS, lambda x: x.relu().masked_fill(x < 1e-3, 0)),
])  # fmt: skip
def test_small_elements_are_held_to_their_own_size(expression: str, inputs: str, kernel: Kernel) -> None:
    subject = Subject(expression, inputs)
    tolerance, case = subject.admit().laws[0].tolerance, subject.cases.get(laws.OWN)
    assert largest(case.expected, [kernel(*case.given)]) <= tolerance, "the spread hides it"
    assert laws.OWN in wrong_under(subject, kernel)


def test_bounds_are_measured_only_where_an_error_could_exceed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take two more passes of the reference, one of them in float64."""
    subject = Subject("torch.softmax(x, 1)", f"8 * {NORMAL}")
    (own, *_) = subject.admit().laws
    case, (limit,) = subject.cases.get(laws.OWN), subject.limits(laws.OWN)
    asked: list[str] = []
    measured = bands.measured

    def counted(*arguments: Any) -> bands.Most:
        asked.append("measured")
        return measured(*arguments)

    monkeypatch.setattr(bands, "measured", counted)
    right = case.given[0].softmax(1)
    wrong = functional.threshold(right, 1e-6, 0)

    def error(got: torch.Tensor, *, asking: bool = True) -> float:
        return deviation(bands.held(case.expected[0], limit, own.tolerance, asking=asking), got) / own.tolerance

    assert error(right) < 1
    assert error(wrong, asking=False) > 1e100, "as long as nothing is known, it has to be looked at again"
    assert not asked
    assert error(wrong) > 1
    assert error(wrong, asking=False) == error(wrong)
    assert asked == ["measured"]


def in_order(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(x.shape[0])
    for column in x.T:
        total = total + column
    return total


def moments_in_one_pass(x: torch.Tensor) -> torch.Tensor:
    mean = in_order(x) / x.shape[1]
    variance = in_order(x * x) / x.shape[1] - mean * mean
    return (x - mean[:, None]) * torch.rsqrt(variance + 1e-5)[:, None]


def online_softmax(x: torch.Tensor) -> torch.Tensor:
    top, total = torch.full((x.shape[0],), -1e38), torch.zeros(x.shape[0])
    for column in x.T:
        higher = torch.maximum(top, column)
        total, top = total * torch.exp(top - higher) + torch.exp(column - higher), higher
    return torch.exp(x - top[:, None]) / total[:, None]


def fast_exp(x: torch.Tensor) -> torch.Tensor:
    scaled = x.clamp(-150, 130) * 1.44269504
    whole = torch.round(scaled)
    part = scaled - whole
    series = torch.zeros_like(x)
    for factor in (0.00015404, 0.00133336, 0.00961813, 0.05550411, 0.24022651, 0.69314718, 1.0):
        series = series * part + factor
    return torch.ldexp(series, whole.int())


def strassen(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    half = a.shape[0] // 2
    if half < 16:
        return a @ b
    (a11, a12), (a21, a22) = (rows.split(half, 1) for rows in a.split(half))
    (b11, b12), (b21, b22) = (rows.split(half, 1) for rows in b.split(half))
    p = [
        strassen(first, second)
        for first, second in [
            (a11 + a22, b11 + b22), (a21 + a22, b11), (a11, b12 - b22), (a22, b21 - b11), (a11 + a12, b22),
            (a21 - a11, b11 + b12), (a12 - a22, b21 + b22),
        ]
    ]  # fmt: skip
    upper = torch.cat([p[0] + p[3] - p[4] + p[6], p[2] + p[4]], 1)
    return torch.cat([upper, torch.cat([p[1] + p[3], p[0] - p[1] + p[2] + p[5]], 1)])


def winograd(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    d, g = [x[:, k : 254 + k : 2] for k in range(4)], w[0]
    m = [
        (d[0] - d[2]) * g[0], (d[1] + d[2]) * (0.5 * (g[0] + g[1] + g[2])),
        (d[2] - d[1]) * (0.5 * (g[0] - g[1] + g[2])), (d[1] - d[3]) * g[2],
    ]  # fmt: skip
    return torch.stack([m[0] + m[1] + m[2], m[1] - m[2] - m[3]], 2).reshape(x.shape[0], -1)


def differences_of_sums(x: torch.Tensor) -> torch.Tensor:
    until = functional.pad(x.cumsum(1), (1, 0))
    return (until[:, 5:] - until[:, :-5]) / 5


def in_blocks(x: torch.Tensor) -> torch.Tensor:
    parts, before = [], torch.ones(x.shape[0], 1)
    for block in x.split(32, 1):
        parts.append(block.cumprod(1) * before)
        before = parts[-1][:, -1:]
    return torch.cat(parts, 1)


@pytest.mark.parametrize(("expression", "inputs", "arguments", "kernel"), [
    ("torch.exp(8 * x)", NORMAL, "x", lambda x: fast_exp(8 * x)),
    ("torch.softmax(x, 1)", f"8 * {NORMAL}", "x", online_softmax),
    ("torch.tanh(x)", NORMAL, "x", lambda x: 1 - 2 / (torch.exp(2 * x) + 1)),
    ("nn.functional.silu(x)", f"4 * {NORMAL}", "x", lambda x: x / (1 + fast_exp(-x))),
    ("nn.functional.softplus(x)", NORMAL, "x", lambda x: x.relu() + torch.log(1 + torch.exp(-x.abs()))),
    ("nn.functional.layer_norm(x, (256,))", NORMAL, "x", moments_in_one_pass),
    ("x.sum(1)", "torch.randn(256, 8192)", "x", in_order),
    ("torch.cumprod(x, 1)", "torch.rand(64, 300) + 0.3", "x", in_blocks),
    ("a @ b", MATRICES, "a, b", strassen),
    ("a @ b", "torch.randn(128, 128) * torch.logspace(-3, 3, 128)[:, None], torch.randn(128, 128)", "a, b", strassen),
    ("nn.functional.conv1d(x[:, None], w[:, None])[:, 0]", "torch.randn(64, 256), torch.randn(1, 3)", "x, w", winograd),
    ("nn.functional.avg_pool1d(x, 5, stride=1)", "torch.rand(64, 256)", "x", differences_of_sums),
])  # fmt: skip
def test_honest_float32_is_not_refused(expression: str, inputs: str, arguments: str, kernel: Kernel) -> None:
    refused = wrong_under(Subject(expression, inputs, arguments=arguments), kernel)
    # Strassen's algorithm spreads the rounding of an extreme over a quarter of the output (docs/judge.md).
    assert refused.keys() <= ({laws.PLANTED_EXTREMES} if kernel is strassen else set())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_types_of_more_and_fewer_bits(dtype: str) -> None:
    policy = NumericsPolicy.FP32 if dtype == "float64" else NumericsPolicy.HALF
    subject = Subject("torch.softmax(x, 1)", f"4 * torch.randn(64, 256, dtype=torch.{dtype})", policy)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        return (x if dtype == "float64" else x.float()).softmax(1).to(x.dtype)

    assert not wrong_under(subject, kernel)
    cheat = wrong_under(subject, lambda x: kernel(x).masked_fill(kernel(x) < 1e-4, 0))
    assert laws.OWN in cheat


def test_bands_are_the_exponents_of_float64() -> None:
    values = torch.tensor([0.0, 1.0, 1.999, 2.0, -0.25, 2.0**-126, torch.inf, torch.nan], dtype=torch.float64)
    wanted = [0, 1023, 1023, 1024, 1021, 897, BANDS - 1, BANDS - 1]
    assert band_of(values).tolist() == band_of(values.float()).tolist() == wanted


def test_the_few_largest_elements_and_few_elements_are_held_to_the_tolerance_alone() -> None:
    values = torch.cat([torch.full((1000,), 1.5, dtype=torch.float64), torch.full((10,), 1e6, dtype=torch.float64)])
    expected, precision = Expected(values, unit_of(values)), PRECISIONS[NumericsPolicy.FP32]
    limit = bands.bounds(expected, [values], precision)
    assert limit is not None
    assert float(limit[1023]) == pytest.approx(precision.floor)
    assert float(limit[int(band_of(values[-1:]))]) == float("inf")
    few = Expected(values[:5], unit_of(values[:5]))
    assert bands.bounds(few, [values[:5]], precision) is None


def test_several_maxima_of_a_band_side_by_side_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, and with stretches of odd lengths."""
    values = torch.randn(5000, dtype=torch.float64).pow(3)
    expected, answer = Expected(values, unit_of(values)), values * (1 + 1e-6 * torch.randn(5000, dtype=torch.float64))
    first = bands.bounds(expected, [answer, values], PRECISIONS[NumericsPolicy.FP32])
    monkeypatch.setitem(bands.LANES, "cpu", 7)
    monkeypatch.setattr("gpu_worker.judge.deviation.CHUNK_ELEMENTS", {"cpu": 999})
    second = bands.bounds(expected, [answer, values], PRECISIONS[NumericsPolicy.FP32])
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)
