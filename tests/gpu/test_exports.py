"""Exports on a real GPU, against PyTorch: values, streams, CUDA graphs, torch.compile, the single file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from cupilot.exports import ExportFormat
from tests.unit.exports.cuda_cases import CUDA_CASES, cuda_winner
from tests.unit.exports.installed import imported, launches_of, run, write

pytestmark = pytest.mark.gpu


@pytest.fixture(params=CUDA_CASES, ids=lambda name: name.replace(" ", "_"))
def package(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ModuleType]:
    made = cuda_winner(request.param)
    with imported(write(made, ExportFormat.TORCH, tmp_path), f"cupilot_{made.slug}") as module:
        yield module


def _models(package: ModuleType) -> tuple[Any, Any, list[torch.Tensor]]:
    torch.manual_seed(5)
    slow = package.reference.Model().cuda()
    for parameter in slow.parameters():
        torch.nn.init.normal_(parameter)
    fast = package.Model().cuda()
    fast.load_state_dict(slow.state_dict())
    return fast, slow, [tensor.cuda() for tensor in package.reference.get_inputs()]


def _same(got: Any, expected: Any) -> None:
    for mine, right in zip(pytree.tree_leaves(got), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=2e-4 * max(right.abs().max().item(), 1.0))


def test_values_and_fallback(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = launches_of(package, monkeypatch)
    fast, slow, arguments = _models(package)
    with torch.no_grad():
        assert fast.why_not(*arguments) == []
        _same(fast(*arguments), slow(*arguments))
        assert len(calls) == 1
        halves = [tensor[: tensor.shape[0] // 2] for tensor in arguments]
        _same(fast(*halves), slow(*halves))
        with torch.autocast("cuda", torch.bfloat16):
            fast(*arguments)
    given = [tensor.clone().requires_grad_() for tensor in arguments]
    pytree.tree_leaves(fast(*given))[0].sum().backward()
    assert given[0].grad is not None
    assert len(calls) == 1


def test_it_runs_on_the_current_stream(package: ModuleType) -> None:
    fast, slow, arguments = _models(package)
    with torch.no_grad():
        fast(*arguments)
        stream = torch.cuda.Stream()
        waiting = [torch.empty_like(tensor) for tensor in arguments]
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            for late, tensor in zip(waiting, arguments, strict=True):
                late.copy_(tensor)
            got = fast(*waiting)
        stream.synchronize()
        _same(got, slow(*arguments))


def test_a_cuda_graph_captures_it(package: ModuleType) -> None:
    if any(launch["cooperative"] for launch in package.spec["launches"]):
        pytest.skip("capturing cooperative launches depends on the driver")
    fast, slow, arguments = _models(package)
    with torch.no_grad():
        fast(*arguments)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = fast(*arguments)
        for tensor in arguments:
            tensor.copy_(torch.randn_like(tensor))
        graph.replay()
        _same(got, slow(*arguments))


def test_torch_compile(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = launches_of(package, monkeypatch)
    fast, slow, arguments = _models(package)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(fast, fullgraph=True)
        _same(compiled(*arguments), slow(*arguments))
    assert calls


def test_the_package_tests_itself(tmp_path: Path) -> None:
    folder = write(cuda_winner("layer norm"), ExportFormat.TORCH, tmp_path)
    done = run(folder, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "tests", timeout=280)
    assert done.returncode == 0, done.stdout[-3000:]
    print(done.stdout)


@pytest.mark.parametrize("name", CUDA_CASES)
def test_model_new(name: str, tmp_path: Path) -> None:
    made = cuda_winner(name)
    write(made, ExportFormat.KERNELBENCH, tmp_path)
    context: dict[str, Any] = {}
    text = (tmp_path / f"{made.slug}_modelnew.py").read_text(encoding="utf-8")
    exec(compile(text, "modelnew", "exec", dont_inherit=True), context)
    slow, fast = context["Model"]().cuda(), context["ModelNew"]().cuda()
    fast.load_state_dict(slow.state_dict())
    arguments = [tensor.cuda() for tensor in context["get_inputs"]()]
    assert context["LAUNCHER"].trouble(torch.device("cuda", 0)) is None
    with torch.no_grad():
        _same(fast(*arguments), slow(*arguments))
