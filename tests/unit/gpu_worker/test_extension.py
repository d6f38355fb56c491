"""Which function of a torch extension is called, and with what; builds are tested with the judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from gpu_worker.signature import Layout, Signature, TensorArgument
from gpu_worker.targets.base import RunnerError
from gpu_worker.targets.extension import Extension, Function, chosen

X = Layout("x", "input", "float32", (2, 3), (3, 1))
WEIGHT = Layout("norm_weight", "parameter", "float32", (3,), (1,))
COUNT = Layout("norm_count", "buffer", "int64", (), ())
SIGNATURE = Signature(
    ((3,), {"eps": 0.5}),
    (TensorArgument("x"), 2),
    {"norm.weight": "norm_weight", "norm.count": "norm_count"},
    (X, WEIGHT, COUNT),
    "fp32",
    ("features",),
)
REFUSAL = "forward(): incompatible function arguments"


def function(accepts: Sequence[type], names: tuple[str, ...] = (), name: str = "forward") -> Function:
    """One that takes positional arguments of these types, and keyword arguments of these names, and returns both."""

    def call(*arguments: Any, **named: Any) -> Any:
        taken = names[: len(arguments)]
        if [type(item) for item in arguments] != list(accepts) or set(named) - set(names) or set(named) & set(taken):
            raise TypeError(f"{REFUSAL}. The following")
        return arguments, named

    return Function(name, call, f"{name}(...)", names, (REFUSAL,))


T, P = torch.Tensor, torch.nn.Parameter


@pytest.mark.parametrize(
    ("accepts", "names", "tail", "named"),
    [
        ((T, int, P, T, int, float), (), [3, 0.5], {}),
        ((T, int, P, T), (), [], {}),
        ((T, int, P, int, float), (), [3, 0.5], {}),
        ((T, int, P), (), [], {}),
        ((T, int, int, float), (), [3, 0.5], {}),
        ((T, int), (), [], {}),
        ((T, int, P), ("x", "times", "w", "eps"), [], {"eps": 0.5}),
        ((T, int, P, T), ("x", "times", "eps", "features"), [], {}),
        ((T, int, P, T), ("x", "times", "features", "count", "eps"), [], {"eps": 0.5}),
    ],
)
def test_the_fullest_call_that_fits_is_made(
    accepts: Sequence[type], names: tuple[str, ...], tail: list[Any], named: dict[str, Any]
) -> None:
    module = Extension(function(accepts, names), SIGNATURE)
    x = torch.ones(2, 3)
    for _ in range(2):
        arguments, keywords = module(x, 2)
        assert (arguments[0] is x, arguments[1]) == (True, 2)
        assert [item for item in arguments[2:] if not isinstance(item, torch.Tensor)] == tail
        assert keywords == named


def test_parameters_are_those_of_the_reference() -> None:
    module = Extension(function((T, int, P, T)), SIGNATURE)
    assert {key: tuple(value.shape) for key, value in module.named_parameters()} == {"norm.weight": (3,)}
    assert {key: value.dtype for key, value in module.named_buffers()} == {"norm.count": torch.int64}
    module.get_parameter("norm.weight").data = torch.full((3,), 7.0)
    arguments, _ = module(torch.ones(2, 3), 2)
    assert arguments[2].tolist() == [7.0, 7.0, 7.0]


def test_a_call_that_fits_nothing_is_told_with_all_that_there_is() -> None:
    with pytest.raises(RunnerError) as caught:
        Extension(function((T, T)), SIGNATURE)(torch.ones(2, 3), 2)
    assert caught.value.details["code"] == "arguments_do_not_fit"
    given = "x float32[2, 3], 2; norm_weight float32[3] (parameter), norm_count int64[] (buffer); features=3, eps=0.5"
    assert given in str(caught.value)


def test_an_error_of_its_own_code_is_not_taken_for_a_refusal() -> None:
    def call(*_: Any) -> Any:
        raise RuntimeError("x must be contiguous")

    with pytest.raises(RuntimeError, match="must be contiguous"):
        Extension(Function("forward", call, "forward()", (), (REFUSAL,)), SIGNATURE)(torch.ones(2, 3), 2)


def named(*names: str) -> list[Function]:
    return [function((), name=name) for name in names]


def test_the_only_function_is_called_or_forward_or_the_chosen_one() -> None:
    assert chosen(named("run"), "").name == "run"
    assert chosen(named("backward", "forward"), "").name == "forward"
    assert chosen(named("forward", "run"), "int f();\n// cupilot: function run\n").name == "run"


@pytest.mark.parametrize(
    ("names", "source", "code", "words"),
    [
        (("fast", "slow"), "", "several_functions", "fast, slow; choose one with --function NAME"),
        (("fast",), "// cupilot: function slow", "no_such_function", "no function slow; it exports fast"),
        ((), "", "no_function", "exports no function"),
    ],
)
def test_what_cannot_be_chosen_is_said(names: Sequence[str], source: str, code: str, words: str) -> None:
    with pytest.raises(RunnerError, match=words) as caught:
        chosen(named(*names), source)
    assert caught.value.details["code"] == code
