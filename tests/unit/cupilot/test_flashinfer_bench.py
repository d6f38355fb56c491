"""Files of flashinfer-bench: definitions become problems, solutions files that can be judged, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from cupilot.cli.app import app
from cupilot.domain.evaluation import Evaluation, Failure, FailureKind, LawResult, Verdict, WorkloadResult
from cupilot.domain.flashinfer_bench.reading import modelnew_source, policy_of, problem_source
from cupilot.domain.flashinfer_bench.schema import Definition, InvalidRecord, Solution, lines, read, read_workloads
from cupilot.domain.flashinfer_bench.writing import solution, traces
from cupilot.domain.imported import is_extension
from cupilot.domain.problem import NumericsPolicy, Problem

REFERENCE = """
import torch

@torch.no_grad()
def run(hidden_states, weight, positions, eps):
    x = hidden_states.to(torch.float32)
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.to(torch.float32)
    return {"output": y.to(hidden_states.dtype), "scaled": positions * 2}
"""
DEFINITION: dict[str, Any] = {
    "name": "rmsnorm_h64",
    "op_type": "rmsnorm",
    "axes": {
        "batch_size": {"type": "var"},
        "hidden_size": {"type": "expr", "expression": "heads * max(head_dim, 1)"},
        "heads": {"type": "const", "value": 4},
        "head_dim": {"type": "const", "value": 16},
    },
    "inputs": {
        "hidden_states": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"},
        "weight": {"shape": ["hidden_size"], "dtype": "bfloat16"},
        "positions": {"shape": ["batch_size", "2"], "dtype": "int32"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {
        "output": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"},
        "scaled": {"shape": ["batch_size", "2"], "dtype": "int32"},
    },
    "reference": REFERENCE,
    "tags": ["kept"],
}
RANDOM = {"type": "random"}
INPUTS = {"hidden_states": RANDOM, "weight": RANDOM, "positions": RANDOM, "eps": {"type": "scalar", "value": 1e-5}}


def definition(**changes: Any) -> Definition:
    return read(Definition, json.dumps(DEFINITION | changes), "d.json")


def with_axis(name: str, axis: dict[str, Any]) -> dict[str, Any]:
    return {"axes": {**DEFINITION["axes"], name: axis}}


def with_input(shape: str, dtype: str) -> dict[str, Any]:
    return {"inputs": {**DEFINITION["inputs"], "q": {"shape": [shape], "dtype": dtype}}}


def expression(text: str) -> dict[str, Any]:
    return {"type": "expr", "expression": text}


def workload_lines(**inputs: Any) -> str:
    rows = [{"uuid": f"w{size}", "axes": {"batch_size": size}, "inputs": INPUTS | inputs} for size in (3, 5)]
    return json.dumps(rows[0]) + "\n\n" + json.dumps({"definition": "rmsnorm_h64", "workload": rows[1]}) + "\n"


def executed(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "made"}
    exec(compile(source, "made.py", "exec"), names)
    return names


def test_a_definition_becomes_a_problem_with_workloads() -> None:
    source = problem_source(definition(), read_workloads(workload_lines(), "w.jsonl"))
    problem = Problem(name="rmsnorm", source=source)
    first, second = problem.workloads()
    assert first.values == {"BATCH_SIZE": 3, "EPS": 1e-5}
    for workload, size in ((first, 3), (second, 5)):
        made = executed(problem.at(workload).source)
        inputs = made["get_inputs"]()
        assert [tuple(item.shape) for item in inputs[:3]] == [(size, 64), (64,), (size, 2)]
        assert [item.dtype for item in inputs[:3]] == [torch.bfloat16, torch.bfloat16, torch.int32]
        assert inputs[3] == 1e-5
        output, scaled = made["Model"](*made["get_init_inputs"]())(*inputs)
        assert output.shape == (size, 64)
        assert torch.equal(scaled, inputs[2] * 2)
    assert policy_of(definition()) is NumericsPolicy.HALF


@pytest.mark.parametrize(
    "opening",
    [
        "from __future__ import annotations\n",
        '"""Norm \u00b5."""\nfrom __future__ import (\n    annotations,\n)\n',
        "from __future__ import annotations; from __future__ import division; import math\n",
    ],
)
def test_future_statements_of_a_reference_open_the_file(opening: str) -> None:
    described = definition(reference=opening + REFERENCE)
    made = executed(problem_source(described, read_workloads(workload_lines(), "w.jsonl")))
    assert made["annotations"]
    assert ("math" in made) == ("math" in opening)
    assert made["Model"]()(*made["get_inputs"]())[0].shape == (3, 64)


def test_a_solution_is_called_by_position_or_by_name() -> None:
    modelnew = "class ModelNew:\n    def __call__(self, h, w, p, eps):\n        return h, w, p, eps\n"
    made = solution(definition(), "mine", modelnew, target_hardware=["cuda"])
    run = executed(made.sources[0].content)["run"]
    assert run(1, 2, 3, 4) == (1, 2, 3, 4)
    assert run(eps=4, hidden_states=1, weight=2, positions=3) == (1, 2, 3, 4)
    with pytest.raises(InvalidRecord, match="lambda"):
        solution(definition(inputs={"lambda": {"shape": None, "dtype": "int32"}}), "s", modelnew, target_hardware=[])


def test_traces_are_json_where_an_error_is_infinite() -> None:
    def unknown(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    (workload, _) = read_workloads(workload_lines(), "w.jsonl")
    (judged,) = Problem(name="rmsnorm", source=problem_source(definition(), [workload])).workloads()
    law = LawResult(law="own", passed=False, error=float("inf"), tolerance=1e-4, reference_error=1e-6)
    failure = Failure(kind=FailureKind.WRONG_VALUE, message="x")
    part = WorkloadResult(workload=judged, verdict=Verdict.REJECTED, laws=(law,), failure=failure)
    evaluation = Evaluation(
        kernel_hash="k", problem_hash="p", verdict=Verdict.REJECTED, failure=failure, workloads=(part,)
    )
    text = lines(traces(definition(), [workload], "s", evaluation))
    correctness = json.loads(text, parse_constant=unknown)["evaluation"]["correctness"]
    assert (correctness["max_relative_error"], correctness["max_absolute_error"]) == ("Infinity", "NaN")


def test_inputs_of_a_definitions_own_function() -> None:
    entry = (
        "\ndef made(axes, device):\n    return {'positions': torch.full((axes['batch_size'], 2), 7, device=device)}\n"
    )
    described = definition(custom_inputs_entrypoint="made", reference=REFERENCE + entry)
    source = problem_source(described, read_workloads(workload_lines(positions={"type": "custom"}), "w.jsonl"))
    assert executed(source)["get_inputs"]()[2].tolist() == [[7, 7]] * 3


@pytest.mark.parametrize(
    ("changes", "inputs", "said"),
    [
        ({}, {"weight": {"type": "safetensors", "path": "a", "tensor_key": "b"}}, "weight comes from safetensors"),
        ({}, {"eps": RANDOM}, "no value for the scalar eps"),
        (with_axis("more", {"type": "var"}), {}, "no size for the axis more"),
        (with_axis("eps", {"type": "const", "value": 1}), {}, "the name EPS"),
        (with_axis("a", expression("open('x')")), {}, "more than arithmetic"),
        (with_axis("a", expression("b")), {}, "b is no axis"),
        ({"axes": {"a": expression("b + 1"), "b": expression("a"), "batch_size": {"type": "var"}}}, {}, "each other"),
        (with_input("heads", "float8_e4m3fn"), {}, "float8_e4m3fn"),
        (with_input("nowhere", "int8"), {}, "axis nowhere"),
        ({"reference": "def walk(): ..."}, {}, "no function run"),
        ({"reference": "def run(:"}, {}, "not valid Python"),
        ({"axes": {"n": {"type": "some"}}}, {}, "axes.n"),
    ],
)
def test_what_cannot_be_judged_is_refused_by_name(changes: dict[str, Any], inputs: Any, said: str) -> None:
    with pytest.raises(InvalidRecord, match=said):
        problem_source(definition(**changes), read_workloads(workload_lines(**inputs), "w.jsonl"))


@pytest.mark.parametrize("sources", [1, 2])
@pytest.mark.parametrize("destinations", [True, False])
def test_a_solution_becomes_a_file_that_can_be_judged(sources: int, destinations: bool) -> None:
    package = f"solution_{destinations}"
    body = "    return h + w, p * 2\n" if not destinations else "    out.copy_(h + w)\n    scaled.copy_(p * 2)\n"
    text = f"def run(h, w, p, eps{', out, scaled' if destinations else ''}):\n{body}"
    files = [{"path": f"{package}/main.py", "content": text}]
    if sources == 2:
        files = [
            {"path": f"{package}/main.py", "content": f"from {package}.inner import scale\n{text}"},
            {"path": f"{package}/inner.py", "content": "scale = 2\n"},
        ]
    spec = {
        "language": "triton",
        "target_hardware": ["cuda"],
        "entry_point": f"{package}/main.py::run",
        "destination_passing_style": destinations,
    }
    made = {"name": "s", "definition": "rmsnorm_h64", "author": "me", "spec": spec, "sources": files}
    source = modelnew_source(definition(), read(Solution, json.dumps(made), "s.json"))
    h, w, p = torch.rand(3, 64).bfloat16(), torch.rand(64).bfloat16(), torch.ones(3, 2, dtype=torch.int32)
    output, scaled = executed(source)["ModelNew"]()(h, w, p, 1e-5)
    assert torch.equal(output, h + w)
    assert (scaled.dtype, scaled.tolist()) == (torch.int32, [[2, 2]] * 3)


def test_solutions_in_cuda_are_judged_as_torch_extensions() -> None:
    code = '#include <torch/extension.h>\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("go", &go); }\n'
    spec = {"language": "cuda", "entry_point": "k.cu::go", "destination_passing_style": False, "binding": "torch"}
    made = {
        "name": "s",
        "definition": "d",
        "author": "me",
        "spec": spec,
        "sources": [{"path": "k.cu", "content": code}],
    }
    source = modelnew_source(definition(), Solution.model_validate(made))
    assert is_extension(source)
    assert source.endswith("// cupilot: function go\n")
    made["spec"] = spec | {"binding": "tvm-ffi"}
    with pytest.raises(InvalidRecord, match="binding torch"):
        modelnew_source(definition(), Solution.model_validate(made))


def test_the_commands_read_and_write_files(tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text(json.dumps(DEFINITION))
    (tmp_path / "w.jsonl").write_text(workload_lines())
    run = CliRunner().invoke
    result = run(app, ["flashinfer", "problem", *map(str, (tmp_path / "d.json", tmp_path / "w.jsonl"))])
    assert result.exit_code == 0, result.output
    assert "class Model(" in result.output
    assert "--policy half" in result.stderr
    modelnew = (
        "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, *inputs):\n        return inputs\n"
    )
    (tmp_path / "new.py").write_text(modelnew)
    out = tmp_path / "s.json"
    files = map(str, (tmp_path / "d.json", tmp_path / "new.py"))
    assert run(app, ["flashinfer", "solution", *files, "--name", "mine", "-o", str(out)]).exit_code == 0
    written = read(Solution, out.read_text(), "s.json")
    assert written.spec.entry_point == "main.py::run"
    assert executed(written.sources[0].content)["run"](1, 2, 3, 4) == (1, 2, 3, 4)
    result = run(app, ["flashinfer", "kernel", str(tmp_path / "d.json"), str(out)])
    assert result.exit_code == 0, result.output
    assert "return run(hidden_states, weight, positions, eps)" in result.output
    (tmp_path / "w.jsonl").write_text("{}\n")
    refused = run(app, ["flashinfer", "problem", *map(str, (tmp_path / "d.json", tmp_path / "w.jsonl"))])
    assert refused.exit_code == 2
    assert "w.jsonl:1 is no workload" in refused.output
