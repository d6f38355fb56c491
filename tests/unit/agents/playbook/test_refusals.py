"""Refusals where the playbook has no kernel: the line of the user's file, what is near it, and how to go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from agents.interface import NoTemplate
from agents.playbook.compiler.lowering import why_not
from agents.playbook.templates.launches import as_launches
from cupilot.domain.problem import Graph, ProblemFacts, Target
from gpu_worker.reference.fourier import MAX_POINTS
from tests.unit.agents.playbook.references import trace

SOURCE = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return operator_of(x)
"""


def refusal(function: Callable[[torch.Tensor], torch.Tensor], line: int | None, source: str = SOURCE) -> NoTemplate:
    """Return the error for a function of a matrix, all of whose calls are made by a line."""
    facts: ProblemFacts
    facts, _ = trace(function, {"x": torch.rand(4, 8)})
    nodes = tuple(node.model_copy(update={"line": line}) for node in facts.graph.nodes)
    facts = facts.model_copy(update={"graph": Graph(nodes=nodes, outputs=facts.graph.outputs)})
    with pytest.raises(NoTemplate) as caught:
        as_launches(facts, Target.CPU, source)
    return caught.value


def test_a_refusal_names_the_users_line_its_text_and_the_way_on() -> None:
    error = refusal(torch.special.erfcx, 5)
    assert "`return operator_of(x)` in line 5, which calls aten.special_erfcx.default" in error.message
    assert error.where == "problem.source:5"
    assert error.hint is not None
    assert "near it are supported: " in error.hint
    assert "special_entr" in error.hint.removeprefix("near it are supported: ").split(", ")[0]
    assert "--agents hybrid" in error.hint


def test_a_call_into_a_tensor_of_another_size_is_told_from_one_that_is_unknown() -> None:
    error = refusal(lambda x: torch.mul(x, 2, out=torch.empty(0)), 5)
    assert "line 5, which calls aten.mul.out (result [4, 8]" in error.message
    assert "without out=" in error.message


def test_a_derivative_without_a_rule_is_named_with_its_line() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda t: torch.cdist(t, t + 1).square().sum())(x)  # type: ignore[no-any-return]

    assert "in line 5, which calls aten._cdist_backward.default" in refusal(forward, 5).message


def test_an_overload_whose_name_ends_like_out_is_given_no_tensor() -> None:
    assert "out=" in why_not("aten.unheard_of.out")
    assert "out=" not in why_not("aten.unheard_of.dtype_layout")


def test_packed_sequences_are_refused_with_a_way_on() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.utils.rnn.pack_padded_sequence(x[..., None], [8, 5, 5, 2], batch_first=True).data

    assert "run the layer over the padded batch" in refusal(forward, 5).message


def test_a_matrix_that_is_too_large_is_told_from_a_call_that_is_unknown() -> None:
    facts, _ = trace(torch.linalg.inv, {"x": torch.eye(9)})
    with pytest.raises(NoTemplate, match="of matrices with up to 8 rows it is"):
        as_launches(facts, Target.CPU, "")


@pytest.mark.parametrize(
    ("function", "way"),
    [(lambda x: torch.dropout(x, 0.1, True), "call `self.eval()`"), (torch.rand_like, "let `get_inputs` draw them")],
)
def test_random_numbers_are_refused_with_a_way_on(function: Callable[[torch.Tensor], torch.Tensor], way: str) -> None:
    message = refusal(function, 5).message
    assert "no kernel draws PyTorch's random numbers" in message
    assert way in message


@pytest.mark.parametrize(("line", "source"), [(None, SOURCE), (6, SOURCE), (5, "")])
def test_a_line_that_the_file_does_not_have_is_not_quoted(line: int | None, source: str) -> None:
    error = refusal(torch.special.erfcx, line, source)
    assert error.message.startswith("the playbook has no kernel for aten.special_erfcx.default (result [4, 8])")


def test_a_tensor_given_by_keyword_that_no_lowering_reads_is_refused() -> None:
    """An attention mask that was overlooked once gave a kernel for another operator."""
    x, mask = torch.rand(1, 2, 4, 8), torch.zeros(4, 4)
    facts, _ = trace(
        lambda x, mask: torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask),
        {"x": x, "mask": mask},
    )
    nodes = tuple(
        node.model_copy(update={"kwargs": {"unheard_of": node.kwargs["attn_mask"]}})
        if "attn_mask" in node.kwargs
        else node
        for node in facts.graph.nodes
    )
    facts = facts.model_copy(update={"graph": Graph(nodes=nodes, outputs=facts.graph.outputs)})
    with pytest.raises(NoTemplate, match="its argument unheard_of is not supported"):
        as_launches(facts, Target.CPU)


def test_a_size_that_is_only_known_at_run_time_is_named_with_what_stands_for_it() -> None:
    error = refusal(lambda x: x.masked_select(x > 0), 5)
    assert "only known when it runs; calls that treat its rows apart, sums, " in error.message
    assert error.hint is not None
    assert "--agents hybrid" in error.hint


def set_rows(x: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return a copy with some rows, or what a mask selects, replaced."""
    result = x.clone()
    result[rows] = values
    return result


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (lambda x: torch.complex(x, x).sqrt().real, "aten.sqrt.default"),
        (lambda x: torch.complex(x, x).cumprod(0).real, "aten.cumprod.default"),
        (lambda x: torch.complex(x, x) == torch.complex(x, x + 1), "aten.eq.Tensor"),
        (lambda x: (torch.complex(x, x) ** 3).real, "aten.pow.Tensor_Scalar"),
    ],
)
def test_a_complex_call_is_refused_by_its_own_name(function: Callable[[torch.Tensor], torch.Tensor], op: str) -> None:
    assert f"in line 5, which calls {op} (result [4, 8]): it is given complex64" in refusal(function, 5).message


NEAR_MISSES: dict[str, tuple[Callable[..., torch.Tensor], dict[str, torch.Tensor], str]] = {
    "values_of_a_mask": (
        set_rows,
        {"x": torch.rand(4, 8), "rows": torch.tensor([True, False, True, False]), "values": torch.rand(2, 8)},
        "masked_fill, where and masked_scatter are supported",
    ),
    "strides_of_a_result": (
        lambda x: (x * 2).t().as_strided((2, 3), (8, 1)),
        {"x": torch.rand(4, 8)},
        "strides are followed only of a contiguous input",
    ),
    "long_transform": (
        lambda x: torch.fft.rfft(x).abs(),
        {"x": torch.rand(1, MAX_POINTS + 2)},
        "of up to 4,096 points it is",
    ),
    "complex_inverse": (
        lambda x: torch.complex(x, x).reciprocal().real,
        {"x": torch.rand(4, 8)},
        "is given complex64, and is not among the calls",
    ),
    "strides_of_a_transposed_input": (
        lambda x: x.as_strided((2, 3), (8, 1)),
        {"x": torch.rand(8, 4).T},
        "strides are followed only of a contiguous input",
    ),
    "mean_of_integers": (
        lambda x, i: x.scatter_reduce(1, i, x, "mean"),
        {"x": torch.arange(8).view(2, 4), "i": torch.arange(8).view(2, 4) % 3},
        "it combines int64 by mean",
    ),
    "eight_bit_image": (
        lambda x: torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear"),
        {"x": torch.zeros(1, 1, 2, 2, dtype=torch.uint8)},
        "of uint8 the nearest element is supported",
    ),
    "beyond_the_range_of_floats": (
        lambda x: x.round(decimals=400),
        {"x": torch.rand(4, 8)},
        r"a variant of it is not foreseen \(OverflowError\)",
    ),
    "places_of_adaptive_maxima": (
        lambda x: torch.nn.functional.adaptive_max_pool2d(x, 2, return_indices=True),
        {"x": torch.rand(1, 2, 6, 6)},
        r"adaptive_max_pool2d.default \(.*result 2 of its 2 is used, and is not supported",
    ),
    "sorted_by_a_tensor": (
        lambda e, s: torch.searchsorted(e, e + 1, sorter=s),
        {"e": torch.rand(5), "s": torch.arange(5)},
        "its argument sorter is not supported",
    ),
}


@pytest.mark.parametrize("name", list(NEAR_MISSES))
def test_a_near_miss_gets_no_kernel_and_is_told_why(name: str) -> None:
    function, inputs, reason = NEAR_MISSES[name]
    facts, _ = trace(function, inputs)
    with pytest.raises(NoTemplate, match=reason):
        as_launches(facts, Target.CPU)
