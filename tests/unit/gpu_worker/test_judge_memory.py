"""The judge's memory: what it holds of problems that nearly fill a device."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cupilot.domain.evaluation import LACKS_MEMORY, FailureKind
from cupilot.domain.problem import NumericsPolicy
from gpu_worker.judge import admission, copies, deviation, laws, main, reference_link, room
from gpu_worker.judge.admission import Admission, admit
from gpu_worker.judge.baseline_link import BaselineLink
from gpu_worker.judge.cases import Cases
from gpu_worker.judge.refusal import UnusableReference
from gpu_worker.judge.structure import nonzeros
from gpu_worker.targets.base import Arena
from gpu_worker.targets.cpu_judge import CpuJudgeDevice
from tests.unit.gpu_worker.served import Served

pytestmark = pytest.mark.slow

SOURCE = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def forward(self, x):
        return torch.nn.functional.softplus(x)
def get_inputs():
    return [torch.rand(2048, 2048)]
def get_init_inputs():
    return []
"""
TENSOR_BYTES = 2048 * 2048 * 4
LIMIT_TENSORS = 9
"""Share of the judge, of the 13 tensors of 6 GiB that a card of 80 GiB holds."""


@pytest.fixture
def served() -> Served:
    return Served(SOURCE, NumericsPolicy.FP32, CpuJudgeDevice(threads=1, cache_bytes=2**18, memory_bytes=2**28))


def cases_of(served: Served, tensors: int) -> Cases:
    """Cases within a budget of so many inputs."""
    return Cases(served.link, served.facts.tensors, tensors * TENSOR_BYTES, rounding=0.0, factor=0.0)


class Device(TorchDispatchMode):
    """Holds so many bytes of this thread's tensors, and raises what PyTorch does where they become more."""

    def __init__(self, limit: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._limit = limit
        self._seen: set[int] = set()
        self._now = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._seen:
            self._seen.add(key)
            self._now += size
            weakref.finalize(storage, self._drop, key, size)
            if self._now > self._limit:
                raise torch.OutOfMemoryError("CUDA out of memory")

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self._now -= size


def test_a_problem_that_nearly_fills_the_device_is_admitted(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "EXACT_ELEMENTS", 2**20)
    with Device(LIMIT_TENSORS * TENSOR_BYTES):
        admitted = admission_of(served, cases_of(served, 2))
    assert [item.law for item in admitted.laws] == [laws.OWN, *laws.TRIED, laws.PERTURBED]


def test_the_perturbed_case_is_kept_in_the_place_of_its_own(served: Served) -> None:
    cases = cases_of(served, 2)
    assert cases.perturb(1e-4)
    cases.get(laws.OWN)
    cases.get(laws.PERTURBED)
    assert cases.held() <= 3 * TENSOR_BYTES


def test_where_memory_is_short_laws_start_from_the_own_draw_which_stays(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "EXACT_ELEMENTS", 2**20)
    cases = cases_of(served, 4)
    own = cases.get(laws.OWN)
    monkeypatch.setattr(served.link, "draw", lambda _: pytest.fail("drawing is slow, and takes memory"))
    for law in (*laws.TRIED, *laws.TRIED):
        assert cases.get(law).law == law
        assert cases.get(laws.OWN) is own


def test_a_case_of_other_tensors_makes_room_for_itself(served: Served) -> None:
    cases = cases_of(served, 2)
    given = cases.get(laws.OWN).given
    cases.expect(laws.OWN, given)
    assert cases.held() == 0


def test_the_slots_that_pytorch_was_timed_on_are_given_back_by_both(served: Served) -> None:
    pytorch = BaselineLink(served.link, served.facts.tensors)
    pytorch.use(1)
    assert "slots" in served.server._memory
    pytorch.release()
    assert "slots" not in served.server._memory
    pytorch.use(2)
    pytorch.fill(1, served.link.draw(7))
    assert pytorch.block("eager", [1]) is not None
    pytorch.close()


def test_large_tensors_that_were_handed_over_leave_no_memory_behind(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "LARGE_SHARE", 0.01)
    drawn = served.link.draw(7)
    assert not served.link._arenas
    assert not served.server._memory
    served.link.run(drawn)
    assert not served.link._arenas
    assert not served.server._memory


def test_memory_for_small_tensors_is_kept(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_link, "KEPT_SHARE", 1.0)
    served.link.run(served.link.draw(7))
    assert set(served.link._arenas) == set(served.server._memory) == {"given", "results"}


@pytest.mark.parametrize(("free", "sparing", "kept"), [(0.5, False, True), (0.1, False, False), (0.5, True, False)])
def test_memory_for_tensors_that_leave_room_is_kept_while_there_is_some(
    served: Served, monkeypatch: pytest.MonkeyPatch, free: float, sparing: bool, kept: bool
) -> None:
    monkeypatch.setattr(room, "LARGE_SHARE", 10.0)
    served.link._room.sparing = sparing
    served.link.wait_ready()
    _leave_free(served, monkeypatch, free)
    released: list[bool] = []
    monkeypatch.setattr(served.server._device, "release_unused", lambda: released.append(True))
    served.link.run(served.link.draw(7))
    assert (bool(served.link._arenas), released == []) == (kept, kept)


@pytest.mark.parametrize(("copies", "kept"), [(4, True), (2, False)])
def test_memory_for_tensors_is_kept_while_there_is_room_for_copies_of_them(
    served: Served, monkeypatch: pytest.MonkeyPatch, copies: int, kept: bool
) -> None:
    """The problem's tensors are not large for the device; what is handed over takes more."""
    handed_over = served.link.device.memory_bytes // 5
    monkeypatch.setattr(reference_link, "LEAST_BYTES", handed_over)
    _leave_free(served, monkeypatch, copies * handed_over / served.link.device.memory_bytes)
    served.link.run(served.link.draw(7))
    served.link.run(served.link.draw(7))
    assert bool(served.link._arenas) is kept


def _leave_free(served: Served, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Have both processes see so much memory free, as a share of the judge's part."""
    device = served.link.device
    monkeypatch.setattr(type(device), "free_bytes", lambda _: share * device.memory_bytes)


def test_memory_that_was_kept_is_given_back_where_the_other_process_has_too_little(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "LARGE_SHARE", 10.0)
    served.link.run(served.link.draw(7))
    assert set(served.link._arenas) == {"given", "results"}
    lacking = [torch.OutOfMemoryError("CUDA out of memory")]

    def short(*given: Any) -> Any:
        if lacking:
            raise lacking.pop()
        return draw(*given)

    draw = served.server.reference.draw
    monkeypatch.setattr(served.server.reference, "draw", short)
    exchanged: list[str] = []
    exchange = served.link._exchange

    def watching(question: dict[str, Any], descriptors: Any = ()) -> Any:
        exchanged.append(question["op"])
        return exchange(question, descriptors)

    monkeypatch.setattr(served.link, "_exchange", watching)
    served.link.draw(8)
    assert exchanged[:3] == ["draw", "detach", "draw"]


def test_memory_to_share_is_asked_for_again_once_the_other_process_has_given_back(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[bool] = []
    allocate = served.link.device.allocate

    def short(size: int) -> Arena:
        if not released:
            raise torch.OutOfMemoryError("CUDA out of memory: no room to share")
        return allocate(size)

    monkeypatch.setattr(served.link.device, "allocate", short)
    monkeypatch.setattr(served.server._device, "release_unused", lambda: released.append(True))
    assert served.link.draw(7)[0].numel() == 2048 * 2048
    assert released


def test_elements_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(deviation.CHUNK_ELEMENTS, "cpu", 1000)
    largest = 0

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            if "count_nonzero" in str(func):
                largest = max(largest, args[0].numel())
            return func(*args, **(kwargs or {}))

    with Counted():  # type: ignore[no-untyped-call]
        assert nonzeros(torch.arange(70 * 70).view(70, 70).mT % 7) == 4200
    assert largest == 1000


def admission_of(served: Served, cases: Cases) -> Admission:
    return admit(served.link, cases, served.facts.tensors, NumericsPolicy.FP32)


def running_out(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the law of signs find no memory so often."""
    tried: Callable[..., Any] = admission._try_law
    left = [times]

    def try_law(law: str, subject: Any, **terms: Any) -> Any:
        if law == "signed" and left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return tried(law, subject, **terms)

    monkeypatch.setattr(admission, "_try_law", try_law)


def test_a_law_is_tried_again_without_what_is_kept_for_others(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    running_out(1, monkeypatch)
    assert "signed" in [item.law for item in admission_of(served, cases_of(served, 64)).laws]


def test_a_law_without_memory_is_left_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    running_out(2, monkeypatch)
    admitted = admission_of(served, cases_of(served, 64))
    assert "signed" not in [item.law for item in admitted.laws]
    assert "law signed left out: there is too little memory for it" in admitted.notes


def without_room_for_float64(served: Served, monkeypatch: pytest.MonkeyPatch, lowest: float) -> None:
    """Let float64 find no memory for inputs that are below a number somewhere, nor for any piece of them."""
    honest = served.server.reference._in_float64

    def limited(tensors: Any, change: Any) -> Any:
        if float(tensors[0].min()) < lowest:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return honest(tensors, change)

    monkeypatch.setattr(served.server.reference, "_in_float64", limited)
    monkeypatch.setattr(served.server.reference, "_in_pieces", lambda *_: None)


def test_a_law_without_room_for_its_exact_answer_is_left_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's float32 answer stood in for it, silently, and the note said that the reference has none in float64."""
    without_room_for_float64(served, monkeypatch, lowest=-1e-3)
    admitted = admission_of(served, cases_of(served, 64))
    assert "signed" not in [item.law for item in admitted.laws]
    assert "law signed left out: there is too little memory for its answer in float64" in admitted.notes
    assert served.link.exact, "memory may be there the next time"


def test_where_the_problems_own_inputs_have_no_room_a_note_says_what_stands_in(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_room_for_float64(served, monkeypatch, lowest=1e9)
    admitted = admission_of(served, cases_of(served, 64))
    assert [item.law for item in admitted.laws] == [laws.OWN]
    assert any("PyTorch's float32 answer is the standard" in note for note in admitted.notes)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_a_judge_that_lacks_memory_says_so_by_code(error: Exception) -> None:
    failure = main._too_large(error, judging=True)
    assert (failure.kind, failure.details["code"]) == (FailureKind.INFRASTRUCTURE, LACKS_MEMORY)
    assert main._too_large(error, judging=False).kind is FailureKind.OUT_OF_MEMORY


def test_a_reference_that_lacks_memory_is_the_judges_lack() -> None:
    short = UnusableReference("forward failed: CUDA out of memory", FailureKind.OUT_OF_MEMORY)
    assert main._unusable(short, judging=True).details["code"] == LACKS_MEMORY
    assert main._unusable(UnusableReference("no answer"), judging=True).details == {}
