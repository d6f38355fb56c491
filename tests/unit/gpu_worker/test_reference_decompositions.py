"""Rules by which calls are traced as simpler ones; the tests of the playbook's compiler judge the graphs of most."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpu_worker.reference.decompositions import decomposition
from gpu_worker.reference.trace import trace

ATEN = torch.ops.aten


@pytest.mark.parametrize(
    ("module", "call"),
    [(nn.LSTMCell, ATEN._thnn_fused_lstm_cell.default), (nn.GRUCell, ATEN._thnn_fused_gru_cell.default)],
)
@pytest.mark.parametrize("bias", [True, False])
def test_cells_that_only_gpus_fuse_are_what_the_modules_compute(
    module: type[nn.LSTMCell | nn.GRUCell], call: object, bias: bool
) -> None:
    torch.manual_seed(0)
    cell = module(4, 3, bias=bias)
    x, hidden, state = torch.randn(5, 4), torch.randn(5, 3), torch.randn(5, 3)
    biases = (cell.bias_ih, cell.bias_hh) if bias else ()
    rule = decomposition(call, lambda _: None)
    assert rule is not None
    if isinstance(cell, nn.LSTMCell):
        got = rule(x @ cell.weight_ih.t(), hidden @ cell.weight_hh.t(), state, *biases)[:2]
        wanted = cell(x, (hidden, state))
    else:
        got = rule(x @ cell.weight_ih.t(), hidden @ cell.weight_hh.t(), hidden, *biases)[:1]
        wanted = (cell(x, hidden),)
    torch.testing.assert_close(tuple(got), tuple(wanted))


def _calls(function: object, **given: torch.Tensor) -> list[str]:
    traced = trace(lambda: [function(*given.values())], given)  # type: ignore[operator]
    return [node.op for node in traced.graph.nodes]


def test_a_layer_of_attention_is_traced_as_what_it_is_made_of() -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    before = torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        calls = _calls(lambda x, *_: layer(x, x, x, need_weights=False)[0], x=torch.randn(2, 3, 8), **_named(layer))
    assert not [call for call in calls if "native_multi_head" in call]
    assert torch.backends.mha.get_fastpath_enabled() is before


def _named(layer: nn.Module) -> dict[str, torch.Tensor]:
    return {name.replace(".", "_"): value for name, value in layer.named_parameters()}


def test_a_rule_that_fails_leaves_the_call_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(x: torch.Tensor) -> None:
        torch.abs(x) @ x
        raise RuntimeError("another PyTorch")

    def rule(func: object, _: object) -> object:
        return broken if func is ATEN.relu.default else None

    monkeypatch.setattr("gpu_worker.reference.trace.decomposition", rule)
    x = torch.randn(4)
    traced = trace(lambda: [torch.relu(x)], {"x": x})
    assert [node.op for node in traced.graph.nodes] == ["aten.relu.default"]
    assert traced.matmul_flops == traced.least_matmul_flops == 0


def test_a_number_that_a_rule_looks_at_is_none_that_forward_makes() -> None:
    calls = _calls(lambda values: torch.bincount(values, minlength=5), values=torch.tensor([3, 1, 4]))
    assert "aten.index_add.default" in calls
    assert "aten._local_scalar_dense.default" not in calls


def test_a_random_slope_is_not_taken_for_the_middle_one() -> None:
    slopes = {"x": torch.randn(9)}
    assert "aten.rrelu_with_noise.default" in _calls(lambda x: nn.functional.rrelu(x, training=True), **slopes)
    assert "aten.rrelu_with_noise.default" not in _calls(lambda x: nn.functional.rrelu(x, training=False), **slopes)


def test_sizes_that_follow_from_values_stay_as_they_are() -> None:
    values = torch.tensor([3, 1, 4])
    assert "aten.bincount.default" in _calls(torch.bincount, values=values)
    assert "aten.bincount.default" not in _calls(lambda values: torch.bincount(values, minlength=5), values=values)
    assert "aten.histc.default" in _calls(lambda x: torch.histc(x, 4), x=torch.rand(9))


def test_results_for_given_tensors_are_copied_into_them() -> None:
    given = {"x": torch.rand(3, 4), "room": torch.rand(3, 4)}
    calls = _calls(lambda x, room: torch.div(x, 2.0, out=room) + room.sum(), **given)
    assert calls[:2] == ["aten.div.Tensor", "aten.copy_.default"]
    assert torch.equal(given["room"], given["x"] / 2)


def test_a_result_that_resizes_or_converts_the_given_tensor_stays_as_it_is() -> None:
    given = {"x": torch.rand(3, 4)}
    assert _calls(lambda x: torch.mul(x, x, out=torch.empty(0)), **given)[-1] == "aten.mul.out"
    double = torch.empty(4, dtype=torch.float64)
    assert _calls(lambda x: torch.sum(x, 0, dtype=torch.float64, out=double), **given)[-1] == "aten.copy_.default"
    assert _calls(lambda x: torch.add(x[0], x[1], out=double), **given)[-1] == "aten.add.out"
