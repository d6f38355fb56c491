"""Taking turns on a card."""

from __future__ import annotations

import tempfile
import threading
import uuid
from pathlib import Path

import pytest

from cupilot.hardware import Device
from cupilot.problem import Target
from workers.devices import StepCancelled, alone_on, cpu_is_measured_on


def card(target: Target = Target.CUDA) -> Device:
    uid = f"GPU-{uuid.uuid4()}"
    return Device(target=target, uid=uid, name="test", arch="sm_90", units=1, memory_bytes=1, cache_bytes=1)


def never() -> bool:
    return False


def test_the_second_waits_until_the_first_is_done() -> None:
    gpu, order = card(), []
    waiting, done = threading.Event(), threading.Event()

    def wait() -> bool:
        waiting.set()
        return False

    def second() -> None:
        with alone_on(gpu, wait):
            order.append("second")
        done.set()

    with alone_on(gpu, never):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    assert done.wait(10)
    thread.join()
    assert order == ["first", "second"]


def test_waiting_can_be_cancelled() -> None:
    gpu = card()
    with alone_on(gpu, never), pytest.raises(StepCancelled), alone_on(gpu, lambda: True):
        pass


def test_other_cards_do_not_wait() -> None:
    with alone_on(card(), never), alone_on(card(), never):
        pass


def test_a_cpu_is_shared() -> None:
    cpu = card(Target.CPU)
    with alone_on(cpu, never), alone_on(cpu, lambda: True):
        pass


def test_background_work_sees_that_a_cpu_is_measured_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert not cpu_is_measured_on()
    with alone_on(card(Target.CPU), never), alone_on(card(Target.CPU), never):
        assert cpu_is_measured_on()
    with alone_on(card(), never):
        assert not cpu_is_measured_on()
