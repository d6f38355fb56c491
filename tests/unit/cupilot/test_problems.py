"""The built-in problems: every file is a problem, small sizes are small, full sizes are the published ones."""

import re

import pytest

from cupilot import problems
from cupilot.errors import NotFound
from cupilot.problem import NumericsPolicy, check_source


def test_there_is_one_for_every_operator_the_playbook_promises() -> None:
    promised = {"softmax", "log_softmax", "layer_norm", "rms_norm", "l2_norm", "l1_norm", "gelu", "relu", "swish"}
    promised |= {
        "sum_reduction",
        "mean_reduction",
        "max_reduction",
        "argmax",
        "matmul",
        "matmul_large_k",
        "batched_matmul",
    }
    assert promised <= set(problems.names())
    assert problems.names("level1") == problems.names()


@pytest.mark.parametrize("name", problems.names())
def test_source_is_a_problem_at_both_sizes_and_needs_nothing_but_torch(name: str) -> None:
    for size in ("small", "full"):
        source = problems.load(name, size=size).source
        check_source(source)
        assert "small:" not in source
        assert set(re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE)) <= {"torch", "math"}


def test_small_replaces_the_marked_sizes_only() -> None:
    small, full = problems.load("softmax").source, problems.load("softmax", size="full").source
    assert "ROWS = 2048\nCOLS = 8192\n" in small
    assert "ROWS = 4096\nCOLS = 393216\n" in full
    assert small.replace("2048", "4096").replace("8192", "393216") == full


def test_the_policy_is_the_callers() -> None:
    problem = problems.load("matmul", policy=NumericsPolicy.TF32)
    assert (problem.name, problem.policy) == ("matmul", NumericsPolicy.TF32)
    assert problem.content_hash() != problems.load("matmul").content_hash()


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(NotFound) as caught:
        problems.load("sofmax")
    assert caught.value.hint is not None
    assert "softmax" in caught.value.hint


@pytest.mark.parametrize("name", problems.names())
def test_the_small_size_runs_and_uses_every_input(name: str) -> None:
    """Run as a user would; these files are ours, so this is the one place outside the sandbox where that is right."""
    torch = pytest.importorskip("torch")
    namespace: dict[str, object] = {"__name__": "problem"}
    shrunk = re.sub(
        r"^([A-Z]+ = )(\d+)$", lambda m: f"{m[1]}{min(int(m[2]), 7)}", problems.load(name).source, flags=re.M
    )
    exec(compile(shrunk, name, "exec"), namespace)
    torch.manual_seed(0)
    model = namespace["Model"](*namespace["get_init_inputs"]())  # type: ignore[operator]
    inputs = namespace["get_inputs"]()  # type: ignore[operator]
    with torch.no_grad():
        output = model(*inputs)
        assert torch.isfinite(output.double()).all()
        for index, tensor in enumerate(inputs):
            changed = [other.clone() for other in inputs]
            changed[index] = torch.randn_like(tensor) * 3
            assert not torch.equal(model(*changed), output)
