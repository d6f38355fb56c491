"""The exact answer: what stands in for it where float64 raises, how it is kept, and what it must not be read from."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
import torch

from cupilot.domain.problem import NumericsPolicy
from gpu_worker.judge import copies, laws
from gpu_worker.judge.deviation import largest
from gpu_worker.judge.lent import lend
from gpu_worker.judge.refusal import UnusableReference, out_of_memory
from gpu_worker.judge.runner_link import RunnerLost
from gpu_worker.judge.structure import nonzeros
from gpu_worker.targets import cpu_judge, cpu_memory
from gpu_worker.targets.cpu_judge import CpuArena, CpuJudgeDevice
from tests.unit.gpu_worker.test_judge_measuring import Subject, audit


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


ONES = "torch.full((64, 64), 0x3F800000, dtype=torch.int32).view(torch.float32)"
MIXED = f"torch.tanh(torch.tanh(x @ w) @ w) @ {ONES}.tril()"
"""Raises in float64, since it multiplies that by float32, and cannot do without: it names the bits."""


def test_what_stands_in_for_float64_is_float32_under_every_policy() -> None:
    """Under ``half`` it was PyTorch's own answer in bfloat16: right kernels were wrong, and PyTorch's error was 0."""

    def kernel(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        x, w = given
        outputs[0].copy_(torch.tanh(torch.tanh(x @ w) @ w) @ torch.ones(64, 64).tril())

    subject = Subject(MIXED, "torch.randn(64, 64), torch.randn(64, 64) / 6", NumericsPolicy.HALF, "x, w")
    assert audit(subject, kernel) is None
    assert subject.reference.exact is False
    assert subject.admit().laws[0].reference_error > 1e-3


def test_inputs_without_an_answer_do_not_end_float64_for_others() -> None:
    """A matrix without an inverse raises; rounded to float32 it has one, which says nothing."""
    subject = Subject("torch.linalg.inv(x)", "torch.eye(8) + torch.rand(8, 8) / 16")
    whole = subject.reference.draw(1)
    exact = subject.reference.run_exact(whole)
    with pytest.raises(UnusableReference, match="no answer in float64"):
        subject.reference.run_exact([torch.ones(8, 8)])
    assert torch.equal(subject.reference.run_exact(whole)[0], exact[0])
    assert subject.reference.exact


def test_float64_results_are_kept_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded to float32, as large results are, a right answer would err by 6e-8, where 1e-10 is allowed."""
    monkeypatch.setattr(copies, "EXACT_ELEMENTS", 1000)
    inputs = "torch.randn(64, 96, dtype=torch.float64), torch.randn(96, 64, dtype=torch.float64)"
    subject = Subject("a @ b", inputs, arguments="a, b")
    case = subject.cases.get(laws.OWN)
    assert case.expected[0].values.dtype is torch.float64
    a, b = case.given
    split = a[:, ::2] @ b[::2] + a[:, 1::2] @ b[1::2]
    assert largest(case.expected, [split]) < 1e-13
    assert Subject("a @ b", inputs.replace("float64", "float32"), arguments="a, b").cases.get(
        laws.OWN
    ).expected[0].values.dtype is torch.float32  # fmt: skip


@pytest.mark.parametrize("expression", [
    "(lambda y: (y.argmin(dim=1), y.relu_().sum(dim=1)))(x - 0.5)",
    "(lambda y: (y.argmin(dim=1), y.zero_()))(x.clone())[:1]",
])  # fmt: skip
def test_what_was_selected_from_and_then_changed_excuses_no_index(expression: str) -> None:
    """All values below zero are alike after ``relu_``, and so was each index of one."""
    subject = Subject(expression)
    case = subject.cases.get(laws.OWN)
    wrong = case.expected[0].values.roll(1)
    others = [item.values for item in case.expected[1:]]
    assert largest(case.expected, [wrong, *others]) == float("inf")
    assert largest(case.expected, [item.values for item in case.expected]) == 0.0


def test_no_answer_is_read_from_memory_that_nobody_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an allocation for a larger answer has failed, the next answer comes through new memory, not the last."""
    subject = Subject("x.cumsum(1)", "torch.rand(1024, 512)")
    link, device = subject.reference, subject.device
    small = link.draw(1)
    allocate = device.allocate

    def short(size: int) -> CpuArena:
        if size > 3 * 2**20:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return allocate(size)

    with monkeypatch.context() as patch:
        patch.setattr(device, "allocate", short)
        with pytest.raises(torch.OutOfMemoryError):
            link.run_exact(small)
        assert torch.equal(link.draw(1)[0], small[0]), "of memory that both have"
    assert nonzeros(link.run(small)[0]) > 0


def no_memory(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_a_map_that_fails_is_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    device = CpuJudgeDevice(threads=1, cache_bytes=2**18, memory_bytes=2**28)
    arena = device.allocate(2**16)
    descriptor = os.dup(arena.descriptors[0])
    monkeypatch.setattr(cpu_judge.mmap, "mmap", no_memory)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        device.allocate(2**16)
    assert out_of_memory(raised.value)
    with pytest.raises(OSError, match="Cannot allocate memory") as failed:
        cpu_memory.map_arena(arena.handle, [descriptor])
    assert out_of_memory(failed.value)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_lack_of_memory_to_share_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Subject("torch.softmax(x, dim=1)").served
    link = served.link
    given = link.draw(1)
    link.release_memory()
    mapped, failures = cpu_judge.mmap.mmap, [1]

    def once(*args: Any, **terms: Any) -> Any:
        return no_memory() if failures and failures.pop() else mapped(*args, **terms)

    monkeypatch.setattr(cpu_judge.mmap, "mmap", once)
    assert torch.equal(link.draw(1)[0], given[0])
    assert not failures


def test_lent_memory_is_given_back_where_the_file_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject("torch.softmax(x, dim=1)")
    slots = subject.slots()
    made: list[CpuArena] = []
    allocate = subject.device.allocate

    def kept(size: int) -> CpuArena:
        made.append(allocate(size))
        return made[-1]

    class Ended:
        def lend(self, *_: Any) -> NoReturn:
            raise RunnerLost("the file's process ended")

    monkeypatch.setattr(subject.device, "allocate", kept)
    monkeypatch.setattr(subject.device, "lends", True)
    with pytest.raises(RunnerLost):
        lend(subject.device, slots, subject.specs, Ended())  # type: ignore[arg-type]
    assert [arena.bytes.numel() for arena in made] == [0]


def test_an_answer_that_forward_rounds_to_16_bits_is_kept_in_float64() -> None:
    """Written ``.to(torch.bfloat16)``, it was bfloat16 there too, whose errors have no band: judging broke off."""

    def kernel(given: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        outputs[0].copy_((given[0] * given[0].exp() * (1 + 2**-20)).bfloat16())

    subject = Subject("(x * x.exp()).to(torch.bfloat16)", "torch.randn(64, 64) * 4")
    assert audit(subject, kernel) is None
    assert subject.reference.run_exact(subject.reference.draw(1))[0].dtype is torch.float64
