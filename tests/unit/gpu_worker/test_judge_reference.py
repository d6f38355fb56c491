"""Facts that the judge finds about a reference: tensors, names, scalars, graph, work."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import ModuleType

import pytest
import torch

from cupilot.domain.problem import DType, GraphNode, NumericsPolicy, ProblemFacts, Role
from gpu_worker.judge.copies import Change
from gpu_worker.judge.refusal import UnusableReference
from gpu_worker.judge.roundings import nudge
from gpu_worker.reference.loading import _draw
from gpu_worker.reference.reference import Reference
from gpu_worker.targets.cpu_judge import CpuJudgeDevice

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


@pytest.fixture(scope="module")
def device() -> CpuJudgeDevice:
    return CpuJudgeDevice(threads=1, cache_bytes=2**20, memory_bytes=2**30)


def reference(
    device: CpuJudgeDevice,
    forward: str,
    inputs: str,
    init: str = "pass",
    *,
    arguments: str = "x",
    policy: NumericsPolicy = NumericsPolicy.FP32,
) -> Reference:
    source = f"""{HEAD}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, {arguments}):
        {forward}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""
    return Reference(source, policy, device, seed=1)


def facts(device: CpuJudgeDevice, *args: str, **more: str) -> ProblemFacts:
    with torch.no_grad():
        return reference(device, *args, **more).facts("hash")  # type: ignore[arg-type]


def ops(known: ProblemFacts) -> list[str]:
    return [node.op for node in known.graph.nodes]


def test_a_plain_operator(device: CpuJudgeDevice) -> None:
    known = facts(device, "return torch.softmax(x, dim=1)", "torch.rand(8, 16)")
    assert [(item.name, item.role, item.shape) for item in known.tensors] == [
        ("x", Role.INPUT, (8, 16)),
        ("out", Role.OUTPUT, (8, 16)),
    ]
    assert known.graph.nodes == (
        GraphNode(
            op="aten._softmax.default",
            args=({"ref": "x"}, 1, False),
            results=("v0",),
            shapes=((8, 16),),
            dtypes=("float32",),
            line=10,
        ),
    )
    assert known.graph.outputs == ("v0",)
    assert known.op_class == "softmax"
    assert known.flops == 5 * 128
    assert known.compulsory_bytes == 2 * 128 * 4


def test_parameters_buffers_and_scalars_have_names(device: CpuJudgeDevice) -> None:
    init = (
        "self.norm = nn.BatchNorm1d(4); self.alpha = 0.5; self.sizes = (3, 4); self.flag = True; self.text = 'no'; "
        "self.register_buffer('in', torch.zeros(1))"
    )
    known = facts(device, "return self.norm(x) * scale", "torch.rand(8, 4), 2.5", init, arguments="x, scale")
    names = {item.name: (item.role, item.dtype) for item in known.tensors}
    assert list(names) == [
        *("x", "in_", "norm_weight", "norm_bias"),
        *("norm_running_mean", "norm_running_var", "norm_num_batches_tracked", "out"),
    ]
    assert names["norm_weight"] == (Role.PARAMETER, DType.FLOAT32)
    assert names["norm_num_batches_tracked"] == (Role.BUFFER, DType.INT64)
    assert known.scalars["SCALE"] == 2.5
    assert known.scalars["ALPHA"] == 0.5
    assert known.scalars["SIZES_0"] == 3
    assert known.scalars["FLAG"] is True
    assert known.scalars["NORM_EPS"] == 1e-5
    assert "TEXT" not in known.scalars


def test_names_are_c_identifiers(device: CpuJudgeDevice) -> None:
    known = facts(
        device, "return out + float + x", "torch.rand(4), torch.rand(4), torch.rand(4)", arguments="out, float, x"
    )
    names = [item.name for item in known.tensors]
    assert names == ["out_2", "float_", "x", "out"]


def test_several_outputs_strides_and_integers(device: CpuJudgeDevice) -> None:
    known = facts(
        device,
        "return x.t(), [x.sum(), idx + 1]",
        "torch.rand(6, 4).t(), torch.arange(3)",
        arguments="x, idx",
    )
    by_name = {item.name: item for item in known.tensors}
    assert by_name["x"].strides == (1, 4)
    assert by_name["out0"].shape == (6, 4)
    assert by_name["out1"].shape == ()
    assert by_name["out2"].dtype is DType.INT64


def test_in_place_calls_make_new_values_for_every_alias(device: CpuJudgeDevice) -> None:
    known = facts(device, "y = x * 1.0; z = y[0]; y.add_(1); return z + y", "torch.rand(4, 4)")
    added = next(node for node in known.graph.nodes if node.op == "aten.add_.Tensor")
    assert len(added.results) == 2
    last = known.graph.nodes[-1]
    assert {argument["ref"] for argument in last.args[:2]} == set(added.results)  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    "forward",
    [
        "return x.add_(1)",
        "return F.relu(x, inplace=True) * 2",
        "x.view(-1)[3:].zero_(); return x * 2",
        "x.data.mul_(2); return x + 0.5",
        "x.numpy()[0] = 7; return x + 0.5",
    ],
)
def test_a_reference_that_changes_its_input_is_refused_by_name(device: CpuJudgeDevice, forward: str) -> None:
    with pytest.raises(
        UnusableReference,
        match=r"^in_place_reference: forward changes its argument x.*: begin forward with x = x\.clone\(\)",
    ):
        facts(device, forward, "torch.tensor([1.0, float('nan'), -3.0, 4.0])")


def test_a_reference_that_changes_a_copy_is_none(device: CpuJudgeDevice) -> None:
    known = facts(device, "x = x.clone(); return x.add_(1)", "torch.tensor([1.0, float('nan')])")
    assert ops(known) == ["aten.clone.default", "aten.add_.Tensor"]


def test_operators_are_timed_without_what_python_does_between_them(device: CpuJudgeDevice) -> None:
    subject = reference(device, "import time; time.sleep(0.02); return x @ x", "torch.rand(64, 64)")
    subject.facts("hash")
    assert 0 < subject.operator_seconds(subject.draw(1)) < 0.02


def test_small_constants_are_in_the_graph_and_large_ones_refused(device: CpuJudgeDevice) -> None:
    known = facts(device, "return x * torch.tensor([2.0, 3.0])", "torch.rand(4, 2)")
    constant = known.graph.nodes[0]
    assert constant.op == "constant"
    assert constant.args == ([2.0, 3.0],)
    with pytest.raises(UnusableReference, match="register_buffer"):
        facts(device, "return x * self.mask", "torch.rand(100)", "self.mask = torch.rand(100)")


@pytest.mark.parametrize(
    ("forward", "inputs", "arguments", "matmul_flops", "op_class"),
    [
        ("return a @ b", "torch.rand(8, 16), torch.rand(16, 4)", "a, b", 2 * 8 * 16 * 4, "matmul"),
        ("return torch.bmm(a, b)", "torch.rand(3, 8, 16), torch.rand(3, 16, 4)", "a, b", 6 * 8 * 16 * 4, "matmul"),
        ("return a @ b", "torch.rand(8, 16), torch.rand(16)", "a, b", 2 * 8 * 16, "matmul"),
        ("return F.conv2d(a, b)", "torch.rand(1, 2, 5, 5), torch.rand(3, 2, 3, 3)", "a, b", 2 * 9 * 3 * 2 * 9, "conv"),
        (
            "return F.scaled_dot_product_attention(a, a, a)",
            "torch.rand(1, 2, 8, 4)",
            "a",
            2 * 2 * 8 * 8 * (4 + 4),
            "attention",
        ),
    ],
)
def test_matrix_work_is_counted(
    device: CpuJudgeDevice, forward: str, inputs: str, *, arguments: str, matmul_flops: int, op_class: str
) -> None:
    known = facts(device, forward, inputs, arguments=arguments)
    assert known.matmul_flops == matmul_flops
    assert known.op_class == op_class


@pytest.mark.parametrize(
    ("forward", "op_class"),
    [
        ("return F.gelu(x)", "elementwise"),
        ("return x / x.abs().sum(1, keepdim=True)", "norm"),
        ("return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)", "norm"),
        ("return F.layer_norm(x, (16,))", "norm"),
        ("return x.sum(1)", "reduction"),
        ("return torch.cumsum(x, 1)", "scan"),
        ("return F.max_pool1d(x, 2)", "pool"),
        ("return F.mse_loss(x, x * 2)", "loss"),
        ("return x.t()", "other"),
    ],
)
def test_operator_families(device: CpuJudgeDevice, forward: str, op_class: str) -> None:
    assert facts(device, forward, "torch.rand(8, 16)").op_class == op_class


def test_only_what_is_read_counts_as_compulsory(device: CpuJudgeDevice) -> None:
    known = facts(device, "return x[:, :4] * 2", "torch.rand(8, 16), torch.rand(100)", arguments="x, unused")
    assert known.compulsory_bytes == 2 * 8 * 4 * 4
    table = facts(device, "return F.embedding(i, t)", "torch.arange(3), torch.rand(1000, 8)", arguments="i, t")
    assert table.compulsory_bytes == 3 * 8 + 2 * 3 * 8 * 4


CONVOLVED = "return torch.func.grad(lambda t: F.conv2d(t, w, stride=2, padding=1).square().sum())(x)"


def test_products_of_rules_are_no_work_that_a_kernel_must_do(device: CpuJudgeDevice) -> None:
    assert facts(device, "return torch.matrix_exp(x)", "torch.rand(4, 4)").matmul_flops == 0
    inputs = "torch.rand(2, 3, 8, 8), torch.rand(5, 3, 3, 3)"
    known = facts(device, CONVOLVED, inputs, arguments="x, w")
    assert known.matmul_flops == 2 * (2 * (2 * 4 * 4) * 5 * 3 * 3 * 3)  # forward, and with respect to the input


def test_rows_that_a_mask_selects_are_told_by_their_line(device: CpuJudgeDevice) -> None:
    known = facts(device, "y = x[x > 0.5]\n        return y", "torch.rand(40)")
    (selected,) = [node for node in known.graph.nodes if node.op == "aten.index.Tensor"]
    assert selected.line == HEAD.count("\n") + len(["", "class", "__init__", "super", "pass", "forward", "y ="])


def test_float64_is_used_throughout(device: CpuJudgeDevice) -> None:
    subject = reference(device, "return x / torch.full((4,), 3.0)", "torch.rand(4)")
    subject.facts("hash")
    with torch.no_grad():
        given = subject.draw(3)
        assert torch.equal(subject.run_exact(given)[0], given[0].double() / 3.0)


def test_where_float64_fails_float32_stands_in(device: CpuJudgeDevice) -> None:
    subject = reference(device, "return x @ self.w", "torch.rand(4, 8)", "self.w = torch.ones(8, 1)")
    with torch.no_grad():
        subject.facts("hash")
        assert subject.run_exact(subject.draw(3))[0].dtype is torch.float64
    assert not subject.exact


NAMES_ITS_TYPE = "return (q.to(torch.bfloat16) * s) @ x"


def test_casts_that_do_not_meet_float64_are_left_out(device: CpuJudgeDevice) -> None:
    inputs = "torch.randint(0, 9, (4, 32)), torch.rand(4, 1).bfloat16(), torch.rand(32, 9).bfloat16()"
    subject = reference(device, NAMES_ITS_TYPE, inputs, arguments="q, s, x")
    with torch.no_grad():
        subject.facts("hash")
        for seed in (3, 4):
            given = subject.draw(seed)
            q, s, x = (tensor.double() for tensor in given)
            assert torch.equal(subject.run_exact(given)[0], (q * s) @ x)
            assert subject.answered_exactly
    assert subject.exact


ROUNDS = "return (x - x.to(torch.bfloat16).float()) @ torch.ones(8, 3, dtype=torch.float32)"
READS_BITS = "return (x.to(torch.float32).view(torch.int32) & -65536).view(torch.float32) @ x.t()"


@pytest.mark.parametrize("forward", [ROUNDS, READS_BITS])
def test_casts_that_are_the_operator_stay(device: CpuJudgeDevice, forward: str) -> None:
    subject = reference(device, forward, "torch.rand(4, 8)")
    with torch.no_grad():
        subject.facts("hash")
        given = subject.draw(3)
        assert torch.equal(subject.run_exact(given)[0], subject.run(given)[0].double())
        assert not subject.answered_exactly
    assert not subject.exact


def test_half_keeps_the_dtype_of_the_boundary(device: CpuJudgeDevice) -> None:
    subject = reference(
        device, "return a @ b", "torch.rand(64, 64), torch.rand(64, 64)", arguments="a, b", policy=NumericsPolicy.HALF
    )
    known = subject.facts("hash")
    assert known.tensor("out").dtype is DType.FLOAT32
    with torch.no_grad():
        given = subject.draw(1)
        ours, exact = subject.run(given)[0], subject.run_exact(given)[0]
    assert ours.dtype is torch.float32
    assert 1e-4 < float((ours - exact).abs().max()) < 1.0


@pytest.mark.parametrize(
    ("forward", "inputs", "words"),
    [
        ("return x", "torch.rand(4, dtype=torch.complex64)", "complex64.*view_as_real"),
        (
            "return x",
            "torch.rand(4).to(torch.float8_e5m2)",
            r"view\(torch.uint8\), and .* by view\(torch.float8_e5m2\)",
        ),
        ("return x.to_sparse()", "torch.rand(4)", "strided"),
        ("return x", "'text', object()", "object"),
        ("return x", "torch.rand(0)", "no elements"),
        ("return None", "torch.rand(4)", "must return a tensor"),
        ("return torch.autograd.grad(self.w.sum(), x)", "torch.rand(4)", r"torch.func.grad.*requires_grad_\(\)"),
    ],
)
def test_what_cannot_be_given_to_a_kernel_is_refused(
    device: CpuJudgeDevice, forward: str, inputs: str, words: str
) -> None:
    weights = "self.w = nn.Parameter(torch.ones(4))"
    with pytest.raises(UnusableReference, match=words):
        facts(device, forward, inputs, weights, arguments="*x" if "text" in inputs else "x")


def short_of_memory(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Float64 fails for more than so many rows."""
    honest = Reference._in_float64

    def limited(self: Reference, tensors: Sequence[torch.Tensor], change: Change | None) -> list[torch.Tensor]:
        if tensors[0].shape[0] > rows:
            raise RuntimeError("CUDA out of memory")
        return honest(self, tensors, change)

    monkeypatch.setattr(Reference, "_in_float64", limited)


@pytest.mark.parametrize(
    ("forward", "inputs", "init"),
    [
        ("return torch.softmax(x, dim=1)", "torch.rand(37, 16)", "pass"),
        ("return self.layer(x), x.t().contiguous().t()", "torch.rand(37, 16)", "self.layer = nn.Linear(16, 4)"),
    ],
)
def test_where_memory_is_short_the_oracle_runs_on_pieces_of_the_batch(
    device: CpuJudgeDevice, monkeypatch: pytest.MonkeyPatch, forward: str, inputs: str, init: str
) -> None:
    with torch.no_grad():
        known = reference(device, forward, inputs, init)
        known.facts("hash")
        given = known.draw(3)
        whole = known.run_exact(given)
        short_of_memory(monkeypatch, rows=10)
        pieces = known.run_exact(given)
        moved = known.run_exact(given, change=partial(nudge, relative=1e-4, seed=1))
    assert known.exact
    assert all(0 < float((one - other).abs().max()) < 1e-3 for one, other in zip(whole, moved, strict=True))
    assert all(
        torch.allclose(one, other, rtol=1e-14) and one.dtype is torch.float64
        for one, other in zip(whole, pieces, strict=True)
    )


@pytest.mark.parametrize(
    "forward", ["return x - x.mean(dim=0)", "return x.sum()", "return x.flip(0)", "return x.argmax(dim=1)"]
)
def test_what_mixes_a_batch_is_not_cut(device: CpuJudgeDevice, monkeypatch: pytest.MonkeyPatch, forward: str) -> None:
    with torch.no_grad():
        known = reference(device, forward, "torch.rand(37, 16)")
        known.facts("hash")
        given = known.draw(3)
        short_of_memory(monkeypatch, rows=10)
        outputs = known.run_exact(given)
        assert not known.answered_exactly
        assert all(torch.allclose(one, two.to(one)) for one, two in zip(outputs, known.run(given), strict=True))
        monkeypatch.undo()
        known.run_exact(given)
    assert known.answered_exactly, "once there is memory again"


def test_a_draw_that_lacks_memory_is_not_made_on_the_host_instead() -> None:
    module = ModuleType("large")

    def get_inputs() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    module.get_inputs = get_inputs  # type: ignore[attr-defined]
    with pytest.raises(torch.OutOfMemoryError):
        _draw(module, 1, torch.device("meta"))
