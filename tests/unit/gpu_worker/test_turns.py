"""Taking turns on a card."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from cupilot.domain.hardware import Device
from cupilot.domain.problem import Target
from gpu_worker.evaluator import Evaluator
from gpu_worker.turns import Cancelled, cpu_is_measured_on, exclusive_device


def card(target: Target = Target.CUDA) -> Device:
    uid = f"GPU-{uuid.uuid4()}"
    return Device(target=target, uid=uid, name="test", arch="sm_90", units=1, memory_bytes=1, cache_bytes=1)


def never_cancelled() -> bool:
    return False


def test_the_second_waits_until_the_first_is_done() -> None:
    gpu, order = card(), []
    waiting, done = threading.Event(), threading.Event()

    def wait() -> bool:
        waiting.set()
        return False

    def second() -> None:
        with exclusive_device(gpu, wait):
            order.append("second")
        done.set()

    with exclusive_device(gpu, never_cancelled):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    assert done.wait(10)
    thread.join()
    assert order == ["first", "second"]


def test_waiting_can_be_cancelled() -> None:
    gpu = card()
    with exclusive_device(gpu, never_cancelled), pytest.raises(Cancelled), exclusive_device(gpu, lambda: True):
        pass


def test_who_waits_says_what_holds_the_card(caplog: pytest.LogCaptureFixture) -> None:
    gpu, looks = card(), iter([False, False, True])
    with exclusive_device(gpu, never_cancelled), pytest.raises(Cancelled), exclusive_device(gpu, lambda: next(looks)):
        pass
    (said,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert said.startswith(f"waiting: card {gpu.uid} is held by process {os.getpid()} on ")


def test_a_lock_file_of_another_user_is_lock_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, opened = card(), os.open

    def open_as_another_user(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, mode)

    with exclusive_device(gpu, never_cancelled):
        pass
    monkeypatch.setattr(os, "open", open_as_another_user)
    with exclusive_device(gpu, never_cancelled), pytest.raises(Cancelled), exclusive_device(gpu, lambda: True):
        pass


def test_a_link_in_the_place_of_a_lock_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gpu, kept = card(), tmp_path / "kept"
    kept.write_text("somebody's file")
    (tmp_path / f"cupilot-{gpu.uid}.lock").symlink_to(kept)
    with pytest.raises(OSError, match="symbolic links"), exclusive_device(gpu, never_cancelled):
        pass
    assert kept.read_text() == "somebody's file"


class OnCard(Evaluator):
    """Would work on a card, if it got it."""

    device = card()


@pytest.mark.parametrize("call", ["prepare", "trace", "evaluate", "confirm"])
def test_whatever_measures_waits_for_the_card(call: str, tmp_path: Path) -> None:
    one_shape = SimpleNamespace(workloads=())
    nothing = [one_shape] * (1 if call in ("prepare", "trace") else 3)
    with (
        OnCard(Target.CPU, tmp_path) as evaluator,
        exclusive_device(evaluator.device, never_cancelled),
        pytest.raises(Cancelled),
    ):
        getattr(evaluator, call)(*nothing, cancelled=lambda: True)


def test_other_cards_do_not_wait() -> None:
    with exclusive_device(card(), never_cancelled), exclusive_device(card(), never_cancelled):
        pass


def test_a_cpu_is_shared() -> None:
    cpu = card(Target.CPU)
    with exclusive_device(cpu, never_cancelled), exclusive_device(cpu, lambda: True):
        pass


def test_background_work_sees_that_a_cpu_is_measured_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert not cpu_is_measured_on()
    with exclusive_device(card(Target.CPU), never_cancelled), exclusive_device(card(Target.CPU), never_cancelled):
        assert cpu_is_measured_on()
    with exclusive_device(card(), never_cancelled):
        assert not cpu_is_measured_on()
