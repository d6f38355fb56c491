"""Imported files: what is told to their runner, what is refused with which code, and who is stopped with them."""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from cupilot.domain.imported import ImportedKernel, InvalidImport, check_import
from cupilot.domain.problem import Target
from gpu_worker import imported
from gpu_worker.channel import Channel
from gpu_worker.sandbox.family import Family
from gpu_worker.sandbox.files import python_folders
from gpu_worker.sandbox.limits import Limits
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.signature import Layout, NotPortable, Signature, TensorArgument
from gpu_worker.targets.base import Access, Program, RunnerError
from gpu_worker.targets.imported_runner import ImportedRunner
from gpu_worker.targets.user_errors import compiler_errors

X = Layout("x", "input", "float32", (2, 3), (3, 1))
WEIGHT = Layout("layer_weight", "parameter", "float32", (3,), (1,))
COUNT = Layout("count", "buffer", "int64", (), ())
OUT = Layout("out", "output", "float32", (2, 3), (3, 1))
SIGNATURE = Signature(
    ((3,), {"scale": 2.0}),
    (TensorArgument("x"), (1, [None, torch.float16])),
    {"layer.weight": "layer_weight", "count": "count"},
    (X, WEIGHT, COUNT, OUT),
    "fp32",
)
PLACES = {"x": 0, "layer_weight": 256, "count": 512, "out": 768}

FILE = """
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self, features, scale):
        super().__init__()
        self.layer = nn.Module()
        self.layer.weight = nn.Parameter(torch.zeros(features))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.scale = scale

    def forward(self, x, options):
        self.count += options[0]
        return x * self.layer.weight * self.scale + self.count
"""


class Memory:
    """An arena of this process."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.bytes = torch.frombuffer(mmap.mmap(-1, 1024), dtype=torch.uint8)

    def map(self, handle: dict[str, Any], descriptors: Sequence[int]) -> torch.Tensor:  # noqa: ARG002
        return self.bytes

    def begin(self) -> None:
        pass

    def end(self) -> float:
        return 0.1

    def touch(self) -> None:
        pass

    def apply(self, policy: str) -> None:
        pass


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setitem(sys.modules, "modelnew", sys)


def loaded(
    source: str, folder: Path, signature: Signature = SIGNATURE, places: Mapping[str, int] = PLACES
) -> tuple[ImportedRunner, Memory]:
    (folder / "modelnew.py").write_text(source)
    memory = Memory()
    runner = ImportedRunner(lambda: memory)
    runner.load(str(folder / "modelnew.py"), [signature.as_json()])
    runner.attach({}, [os.open("/dev/null", os.O_RDONLY)])
    runner.bind([places])
    return runner, memory


def test_a_file_computes_with_what_lies_in_the_slot(tmp_path: Path) -> None:
    runner, memory = loaded(FILE, tmp_path)
    x, weight, count, out = (layout.view(memory.bytes, PLACES[layout.name]) for layout in (X, WEIGHT, COUNT, OUT))
    for turn in (1.0, 2.0):
        x.copy_(torch.arange(6.0).reshape(2, 3) * turn)
        weight.copy_(torch.tensor([1.0, 2.0, 3.0]) * turn)
        count.fill_(7)
        assert runner.run([0]) >= 0.0
        assert torch.equal(out, x * weight * 2.0 + 8)
        assert int(count) == 7  # a running statistic is the file's own copy


PAIR = replace(
    SIGNATURE,
    tensors=(X, WEIGHT, COUNT, replace(OUT, name="out0"), replace(OUT, name="out1")),
    output_paths=("['y']", "['more'][0]['z']"),
)
TWO_PLACES = {"x": 0, "layer_weight": 256, "count": 512, "out0": 768, "out1": 896}


def returning(value: str, signature: Signature, folder: Path) -> list[torch.Tensor]:
    """Return the outputs that the judge sees of a file whose forward returns this."""
    right = "x * self.layer.weight * self.scale + self.count"
    runner, memory = loaded(FILE.replace(f"return {right}", f"return {value}"), folder, signature, TWO_PLACES)
    X.view(memory.bytes, 0).fill_(2.0)
    runner.run([0])
    return [OUT.view(memory.bytes, TWO_PLACES[name]) for name in ("out0", "out1")]


@pytest.mark.parametrize(
    "value",
    [
        "{'y': x, 'more': [{'z': x + 1}]}",
        "{'more': ({'z': x + 1, 'none': None},), 'y': x}",
        "__import__('collections').OrderedDict(more=[{'z': x + 1}], y=x)",
    ],
)
def test_outputs_in_dicts_are_taken_by_their_keys(value: str, tmp_path: Path) -> None:
    assert [float(output[0, 0]) for output in returning(value, PAIR, tmp_path)] == [2.0, 3.0]


@pytest.mark.parametrize(
    ("value", "lacks", "extra"),
    [
        ("{'y': x, 'more': [{'w': x}]}", "it lacks ['more'][0]['z']", "has no ['more'][0]['w']"),
        ("{'y': x, 'more': [{'z': x}], 'w': x}", "", "has no ['w']"),
        ("{'y': x}", "it lacks ['more'][0]['z']", ""),
        ("(x, x)", "it lacks ['y'], ['more'][0]['z']", "has no [0], [1]"),
        ("x", "it lacks ['y'], ['more'][0]['z']", ""),
    ],
)
def test_other_keys_are_refused_by_name(value: str, lacks: str, extra: str, tmp_path: Path) -> None:
    with pytest.raises(RunnerError) as caught:
        returning(value, PAIR, tmp_path)
    assert caught.value.details["code"] == "wrong_output_keys"
    assert lacks in str(caught.value)
    assert extra in str(caught.value)
    assert ("lacks" in str(caught.value), "has no" in str(caught.value)) == (bool(lacks), bool(extra))


def test_a_dict_stands_for_no_tuple_and_sequences_are_alike(tmp_path: Path) -> None:
    plain = replace(PAIR, output_paths=())
    with pytest.raises(RunnerError, match=r"the reference has no \['y'\], \['z'\]"):
        returning("{'y': x, 'z': x + 1}", plain, tmp_path)
    for value in ("(x, x + 1)", "[x, None, (x + 1,)]"):
        assert [float(output[0, 0]) for output in returning(value, plain, tmp_path)] == [2.0, 3.0]


@pytest.mark.parametrize("into", ["out", "torch.from_numpy(out.numpy())"])
def test_the_judges_own_memory_is_no_result(into: str, tmp_path: Path) -> None:
    """Its bytes would be right, and handing them over would take no time; an input may be returned as it is."""
    place = "out = torch.as_strided(x, (2, 3), (3, 1), x.storage_offset() + 192)"
    right = "x * self.layer.weight * self.scale + self.count"
    aliased = FILE.replace(f"return {right}", f"{place}; out.copy_({right}); return {into}")
    runner, _ = loaded(aliased, tmp_path)
    with pytest.raises(RunnerError) as caught:
        runner.run([0])
    assert caught.value.details["code"] == "output_aliased"
    runner, _ = loaded(FILE.replace(f"return {right}", "return x"), tmp_path)
    assert runner.run([0]) >= 0.0


def test_a_signature_says_the_same_on_the_other_side() -> None:
    assert Signature.from_json(SIGNATURE.as_json()) == SIGNATURE
    masked = replace(SIGNATURE, constructor=((float("-inf"), [float("inf")]), {}))
    assert Signature.from_json(json.loads(json.dumps(masked.as_json(), allow_nan=False))) == masked
    with pytest.raises(NotPortable, match="Tensor"):
        Signature(((torch.ones(1),), {}), (), {}, (), "fp32").as_json()


LOAD_FAILURES = {
    "no_model_new": ("ModelNew = 3", "no class ModelNew"),
    "import_failed": (FILE + "\nraise KeyError('gone')", "KeyError: 'gone'\n  line 17"),
    "constructor_arguments": (FILE.replace("features, scale", "features"), "unexpected keyword argument 'scale'"),
    "constructor_failed": (FILE.replace("self.scale = scale", "exit(3)"), "SystemExit: 3\n  line 11"),
    "parameters_differ": (
        FILE.replace("self.layer.weight", "self.layer.w"),
        r"lacks layer.weight .*; .* no layer.w",
    ),
    "compile_error": (FILE + "\nraise RuntimeError('Error building extension: a.cpp:3: error: no')", "a.cpp:3: error"),
    "no_ninja": (FILE + "\nraise RuntimeError('Ninja is required to load C++ extensions')", "no ninja"),
}


@pytest.mark.parametrize("code", LOAD_FAILURES)
def test_a_file_that_cannot_be_loaded_says_why(code: str, tmp_path: Path) -> None:
    source, words = LOAD_FAILURES[code]
    with pytest.raises(RunnerError, match=words) as caught:
        loaded(source, tmp_path)
    assert caught.value.details["code"] == code


FORWARD_FAILURES = {
    "forward_failed": ("raise ValueError('seven')", "ValueError: seven\n  line 15, in forward: raise"),
    "wrong_shape": ("return x[:1]", r"shape \[1, 3\]; the reference's has \[2, 3\]"),
    "wrong_dtype": ("return x.double()", "dtype torch.float64"),
    "wrong_output_count": ("return x, x", "returned 2 tensors; the reference returns 1"),
    "wrong_output_type": ("return x.as_subclass(type('Lazy', (torch.Tensor,), {}))", "is a Lazy"),
    "out_of_memory": ("raise torch.OutOfMemoryError('big')", "forward: big"),
}


@pytest.mark.parametrize("code", FORWARD_FAILURES)
def test_a_file_that_cannot_be_run_says_why(code: str, tmp_path: Path) -> None:
    statement, words = FORWARD_FAILURES[code]
    runner, _ = loaded(FILE.replace("return x * self.layer.weight * self.scale + self.count", statement), tmp_path)
    with pytest.raises(RunnerError, match=words) as caught:
        runner.run([0])
    assert caught.value.details["code"] == code


def test_a_file_is_looked_at_before_it_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidImport, match="line 1"):
        check_import("def f(:")
    with pytest.raises(InvalidImport, match="does not define ModelNew"):
        check_import("class Model: ...")
    check_import("from mine import Fast as ModelNew")
    refused = imported.stage(ImportedKernel(target=Target.CPU, source="x = 1"), tmp_path, Sandbox())
    assert refused.build.binary is None
    assert refused.failure is not None
    assert refused.failure.details["code"] == "invalid_import"
    barred = imported.stage(ImportedKernel(target=Target.CPU, source=FILE), tmp_path, Sandbox("landlock+seccomp"))
    assert barred.failure is not None
    assert barred.failure.details["code"] == "not_installed"


def test_the_lines_that_matter_are_told_of_a_long_build_log() -> None:
    log = "[1/2] c++ main.cpp\nmain.cpp:4:2: error: no such thing\na.cpp:9: note: x\nld: undefined reference to `f'"
    assert compiler_errors(log) == "main.cpp:4:2: error: no such thing\nld: undefined reference to `f'"


CHILDREN = """
import os, socket, sys
if os.fork() == 0 and os.fork() == 0:
    socket.socket(fileno=int(sys.argv[1])).sendall(b"x")
while True:
    pass
"""


def wait_until(condition: Callable[[], bool]) -> None:
    """A signal takes effect when the process next runs."""
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def family() -> Iterator[tuple[Any, Channel]]:
    ours, theirs = Channel.pair()
    access = Access(read_only=python_folders(), subprocesses=True)
    argv = (sys.executable, "-I", "-S", "-c", CHILDREN, str(theirs.fileno()))
    child = Sandbox().start(Program(argv, access), Limits(), [theirs.fileno()])
    theirs.close()
    yield child, ours
    child.kill()
    ours.close()


def test_processes_that_a_program_started_are_stopped_with_it(family: tuple[Any, Channel]) -> None:
    child, channel = family
    assert channel.wait(20.0)
    program = psutil.Process(child.program_pid())
    others = [process for process in program.parent().children(recursive=True) if "python" in process.name()]
    assert len(others) >= 3
    child.freeze()
    wait_until(lambda: all(process.status() == psutil.STATUS_STOPPED for process in others))
    child.thaw()
    wait_until(lambda: all(process.status() != psutil.STATUS_STOPPED for process in others))


def test_looking_for_processes_is_no_time_of_the_programs(
    family: tuple[Any, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program with PyTorch has a hundred threads, and looking through them takes milliseconds."""
    child, channel = family
    assert channel.wait(20.0)
    child.freeze()
    child.thaw()
    look, looks = Family._started, []

    def slow(one: Family) -> list[int]:
        looks.append(time.perf_counter())
        found = look(one)
        looks.append(time.perf_counter())
        return found

    monkeypatch.setattr(Family, "_started", slow)
    stopped = child.freeze()
    assert stopped <= looks[0], "those that are known were stopped before"
    assert len(looks) == 2, "and nobody else was found"
    assert child.thaw() >= looks[-1]
