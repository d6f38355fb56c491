"""The judge's line to a reference process that says what it likes: refused by form, and at no cost to the judge."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import NumericsPolicy, Role
from gpu_worker.channel import Channel, ChannelClosed
from gpu_worker.judge.baseline_link import MISMATCHES, BaselineLink
from gpu_worker.judge.deviation import Selection
from gpu_worker.judge.exchange import NotALayout, TensorLayout, layouts_from_json, places, write
from gpu_worker.judge.reference_link import ReferenceLink, ReferenceLost
from gpu_worker.judge.refusal import UnusableReference
from gpu_worker.targets.cpu_judge import CpuJudgeDevice
from tests.unit.gpu_worker.served import Served

SOURCE = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(32))
    def forward(self, x):
        return torch.softmax(x * self.scale, dim=1), x.argmax(dim=1)
def get_inputs():
    return [torch.rand(64, 32).t().contiguous().t()]
def get_init_inputs():
    return []
"""

Answer = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def device() -> CpuJudgeDevice:
    return CpuJudgeDevice(threads=1, cache_bytes=2**18, memory_bytes=2**26)


@pytest.fixture
def links(device: CpuJudgeDevice) -> Iterator[Callable[[Answer], ReferenceLink]]:
    """Makes links to a peer that answers every question as it is told to."""
    opened: list[tuple[ReferenceLink, threading.Thread]] = []

    def link(answer: Answer) -> ReferenceLink:
        ours, theirs = Channel.pair()
        thread = threading.Thread(target=_answer_all, args=(theirs, answer), daemon=True)
        thread.start()
        opened.append((ReferenceLink(ours, device), thread))
        return opened[-1][0]

    yield link
    for each, thread in opened:
        each.close()
        thread.join()


def _answer_all(channel: Channel, answer: Answer) -> None:
    with channel, suppress(ChannelClosed):
        while True:
            message, descriptors = channel.receive(descriptors=1)
            for descriptor in descriptors:
                os.close(descriptor)
            channel.send(answer(message))


def _tensors(question: dict[str, Any], *layouts: Any) -> dict[str, Any]:
    """Tensors as the answer to ``run``; to other questions that all is well."""
    return {"ok": True, "results": list(layouts)} if question["op"] == "run" else {"ok": True}


@pytest.mark.parametrize(
    "answer",
    [None, [], "ok", 7, {}, {"ok": 1}, {"ok": "true"}, {"ok": False, "error": "whatever"}, {"ok": False}],
    ids=str,
)
def test_what_is_no_answer_ends_the_conversation(links: Callable[[Answer], ReferenceLink], answer: Any) -> None:
    with pytest.raises(ReferenceLost):
        links(lambda _: answer).wait_ready()


@pytest.mark.parametrize(
    "layout",
    [
        ["float32", [2**40], [1]],
        ["float32", [2**30], [0]],
        ["float32", [4], [2**40]],
        ["float32", [-1], [1]],
        ["float32", [4], [-1]],
        ["float32", [4.0], [1]],
        ["float32", [True], [1]],
        ["float32", [2**200], [1]],
        ["float32", [4, 4], [1]],
        ["float32", [1] * 65, [1] * 65],
        ["complex64", [4], [1]],
        ["__class__", [4], [1]],
        ["float32", [4]],
        {"dtype": "float32"},
        None,
    ],
    ids=str,
)
def test_layouts_that_describe_no_tensor_are_refused(layout: Any) -> None:
    with pytest.raises(NotALayout):
        layouts_from_json([layout], 2**26)


def test_many_tensors_count_together() -> None:
    one = ["float32", [2**20], [1]]
    assert len(layouts_from_json([one] * 4, 2**24)) == 4
    with pytest.raises(NotALayout):
        layouts_from_json([one] * 5, 2**24)
    with pytest.raises(NotALayout):
        layouts_from_json([["float32", [0], [1]]] * 5000, 2**24)


def test_results_larger_than_the_judges_memory_are_refused(links: Callable[[Answer], ReferenceLink]) -> None:
    with pytest.raises(UnusableReference, match="larger"):
        links(lambda question: _tensors(question, ["float32", [2**40], [1]])).run([torch.zeros(4)])


def test_an_error_cannot_blame_the_machine(links: Callable[[Answer], ReferenceLink]) -> None:
    answer = {"ok": False, "error": "unusable", "kind": "infrastructure", "message": "x" * 100_000}
    with pytest.raises(UnusableReference) as caught:
        links(lambda _: answer).wait_ready()
    assert caught.value.kind is FailureKind.INVALID_PROBLEM
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize("tensors", [[torch.rand(5, 7).t()], [torch.rand(1, 4).expand(9, 4)], [torch.empty(0, 3)],
                                     [torch.tensor(True), torch.arange(5), torch.rand(3, 3)[1:, 1:]]])  # fmt: skip
def test_tensors_keep_values_and_strides(tensors: Sequence[torch.Tensor]) -> None:
    layouts = [TensorLayout.of(tensor) for tensor in tensors]
    offsets, size = places(layouts)
    memory = torch.zeros(size, dtype=torch.uint8)
    write(tensors, memory)
    for tensor, layout, offset in zip(tensors, layouts, offsets, strict=True):
        taken = TensorLayout.from_json(layout.as_json(), 2**20).copy(memory, offset)
        assert torch.equal(taken, tensor)
        assert taken.stride() == tensor.stride()


@pytest.fixture
def served(device: CpuJudgeDevice) -> Served:
    return Served(SOURCE, NumericsPolicy.FP32, device)


def test_questions_are_answered_as_by_the_reference_itself(served: Served) -> None:
    given = served.link.draw(7)
    assert given[0].stride() == (1, 64)
    probabilities, places_ = served.link.run(given)
    assert torch.allclose(probabilities, torch.softmax(given[0] * given[1], dim=1))
    assert torch.equal(places_, given[0].argmax(dim=1))
    exact, selection = served.link.run_selecting(given)[1]
    assert torch.equal(exact, places_)
    assert selection is not None
    assert torch.equal(selection.values, given[0].double())
    assert served.link.exact
    assert served.link.run_exact(given)[0].dtype is torch.float64
    assert served.link.reads(given, ["x"])["x"].all()


@pytest.mark.parametrize(
    ("forward", "dim", "distinct"),
    [
        ("x.topk(3).indices", -1, True),
        ("x.topk(3, dim=0, largest=False).indices", 0, True),
        ("x.sort(0).indices", 0, True),
        ("x.argsort()", -1, True),
        ("x.kthvalue(2, 0).indices", 0, False),
        ("x.median(1).indices", 1, False),
        ("x.argmax(1).to(torch.int32)", 1, False),
    ],
)
def test_what_indices_select_from_is_known(device: CpuJudgeDevice, forward: str, dim: int, distinct: bool) -> None:
    (found,) = selections(device, forward)
    assert found is not None
    assert (found.dim, found.distinct) == (dim, distinct)


def test_a_stable_sort_has_one_right_answer(device: CpuJudgeDevice) -> None:
    assert selections(device, "x.argsort(stable=True)") == [None]
    assert selections(device, "x.argmax(1) + 1") == [None]


def selections(device: CpuJudgeDevice, forward: str) -> list[Selection | None]:
    source = (
        "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        f"        return {forward}\n\n\ndef get_inputs():\n    return [torch.rand(8, 8)]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    link = Served(source, NumericsPolicy.FP32, device).link
    return [selection for _, selection in link.run_selecting(link.draw(1))]


def test_the_reference_never_has_memory_that_a_kernel_writes(served: Served) -> None:
    pytorch = BaselineLink(served.link, served.facts.tensors)
    pytorch.use(3)
    pytorch.fill(1, served.link.draw(7))
    assert pytorch.block("eager", [1]) is not None
    outputs = {spec.name for spec in served.facts.tensors if spec.role is Role.OUTPUT}
    assert outputs
    assert not any(outputs & set(offsets) for offsets in served.server._slots)
    assert torch.equal(pytorch.answer(1)[0], pytorch.answer(1)[0])
    pytorch.close()


def test_what_the_judge_took_stays_what_it_was(served: Served) -> None:
    """The reference process keeps the memory in which it gave its answers, and may write there at any time."""
    given = served.link.draw(7)
    outputs = served.link.run(given)
    before = [tensor.clone() for tensor in (*given, *outputs)]
    for memory in served.server._memory.values():
        memory.bytes.zero_()
    assert all(map(torch.equal, before, (*given, *outputs)))


def test_a_reference_that_changes_its_mind_about_dtypes_and_numbers_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = served.link.draw(7)
    for wrong in ([torch.zeros(64, 32)], [torch.zeros(64, 32, dtype=torch.float64), torch.zeros(64).long()]):
        monkeypatch.setattr(served.server.reference, "run", lambda _, wrong=wrong: wrong)
        with pytest.raises(UnusableReference, match="called again"):
            served.link.run(given)
    monkeypatch.setattr(served.server.reference, "draw", lambda _: [torch.zeros(64, 32), torch.zeros(32)])
    with pytest.raises(UnusableReference, match="strides"):
        served.link.draw(8)


def test_times_that_the_judge_did_not_wait_for_are_not_taken(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, whose events tell of a time that the judge's clock only bounds."""
    monkeypatch.setattr(served.link.device, "baseline_time", lambda host, said: said if said <= host else None)
    monkeypatch.setattr(served.server._device, "baseline_seconds", lambda calls: [call() for call in calls] and 1e3)
    pytorch = BaselineLink(served.link, served.facts.tensors)
    pytorch.use(1)
    pytorch.fill(0, served.link.draw(7))
    for _ in range(MISMATCHES - 1):
        assert pytorch.block("eager", [0]) is None
    with pytest.raises(UnusableReference) as caught:
        pytorch.block("eager", [0])
    assert caught.value.kind is FailureKind.INFRASTRUCTURE
    pytorch.close()


def test_memory_that_a_reference_refuses_is_given_back(links: Callable[[Answer], ReferenceLink]) -> None:
    def refuse(message: dict[str, Any]) -> Any:
        if message["op"] == "attach":
            return {"ok": False, "error": "unusable", "message": "no, thanks"}
        return {"ok": True, "results": [["uint8", [2**20], [1]]], "exact": True}

    link = links(refuse)
    before = _memory_files()
    for _ in range(3):
        with pytest.raises(UnusableReference, match="no, thanks"):
            link.run_exact([])
    assert _memory_files() == before


def test_an_arena_gives_its_memory_back_once(device: CpuJudgeDevice) -> None:
    before = _memory_files()
    arena = device.allocate(2**20)
    assert _memory_files() > before
    arena.close()
    arena.close()
    assert _memory_files() == before
    device.allocate(2**20)  # that nobody closes
    assert _memory_files() == before


def _memory_files() -> int:
    gc.collect(1)
    links = [entry.readlink() for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return sum("memfd:arena" in str(link) for link in links)
