"""A run over a batch with scripted cards, each in a real process: what fails, what is left, what is written."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from cupilot.domain.batches import results
from cupilot.domain.batches.files import BatchFile
from cupilot.domain.batches.results import BatchRecord, ResultHeader, read_header, read_record
from cupilot.domain.errors import InvalidInput, Unavailable
from cupilot.domain.problem import Target
from gpu_worker.__main__ import main
from gpu_worker.batch import command, probe, result_file
from gpu_worker.batch import run as running
from gpu_worker.batch.card import CardOptions
from gpu_worker.batch.probe import fault
from gpu_worker.batch.result_file import ResultFile
from gpu_worker.batch.run import BatchRun, card_options
from gpu_worker.evaluator import Evaluator
from gpu_worker.sandbox.files import SOURCE_ROOT
from gpu_worker.targets.cuda import nvml
from tests.unit.cupilot.batches.batch_of import NOW, batch_file, entry, manifest, problem, question
from tests.unit.gpu_worker import scripted_card

HOUR = 3_600.0


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "serve", scripted_card.serve)


class Clock:
    """Stands for the module ``time``: hours can pass."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.passed

    def pass_two_hours(self) -> None:
        self.passed = 2 * HOUR


class Box:
    """A batch of steps with these keys, of so many problems in turn, and its result file."""

    def __init__(
        self,
        folder: Path,
        keys: Sequence[str],
        cards: Sequence[str] = ("card-0",),
        problems: int = 1,
        avoids: str | None = None,
    ) -> None:
        asked = [question(of=problem(f"relu_{number}")) for number in range(problems)]
        entries = [entry(asked[number % problems][0], key=key, avoids=avoids) for number, key in enumerate(keys)]
        objects = {name: text for _, more in asked for name, text in more.items()}
        self.path = batch_file(folder, manifest(*entries), objects)
        self.batch = BatchFile(self.path)
        self.output = folder / "results"
        self.cards = [CardOptions(self.path, folder, device=card) for card in cards]
        self.told: list[str] = []

    def run(self, deadline: float | None = None, once_begun: Callable[[], None] | None = None) -> int:
        """Run, and call ``once_begun`` when a card is at a step that waits; the number of steps that are left."""
        with ResultFile(self.output, self.batch) as result, ThreadPoolExecutor() as threads:
            self.current = BatchRun(self.batch, result, self.cards, deadline=deadline, tell=self.told.append)
            if once_begun is not None:
                threads.submit(self.call_once_begun, once_begun)
            self.current.run()
            return self.current.left

    def call_once_begun(self, action: Callable[[], None]) -> None:
        while not scripted_card.begun(self.path.parent).exists():
            time.sleep(0.01)
        action()

    def stop(self) -> None:
        self.current.stop()

    def records(self) -> list[BatchRecord]:
        lines = self.output.read_text().split("\n")
        return [read_record(read_header(lines[0]), line) for line in lines[1:-1]]


def test_every_step_gets_a_record_and_cards_share_the_work(tmp_path: Path) -> None:
    box = Box(tmp_path, [f"step {number}" for number in range(6)], cards=["card-0", "card-1"])
    assert box.run() == 0
    assert {record.step for record in box.records()} == {step.step for step in box.batch.manifest.steps}
    assert box.told[-1].startswith("[6/6] ")
    assert box.run() == 0
    assert len(box.records()) == 6


def test_a_process_that_dies_is_replaced_and_its_step_blamed_on_the_machine(tmp_path: Path) -> None:
    box = Box(tmp_path, ["dies", "fine"])
    assert box.run() == 0
    failures = [record.failure.message for record in box.records() if record.failure]
    assert failures == ["the supervisor: its process ended with exit code 9"]


def test_a_card_that_fails_again_and_again_gets_no_more_steps(tmp_path: Path) -> None:
    box = Box(tmp_path, [f"fails {number}" for number in range(8)], cards=["broken"])
    with pytest.raises(Unavailable, match=r"3 steps in a row, .*: it is broken"):
        box.run()
    assert len(box.records()) < 6


def test_steps_that_fail_wherever_they_are_tried_take_no_card_out(tmp_path: Path) -> None:
    box = Box(tmp_path, [f"fails {number}" for number in range(8)] + ["fine"], problems=9)
    assert box.run() == 0
    assert sum(record.failure is None for record in box.records()) == 1


@pytest.mark.slow
def test_a_card_that_works_passes_what_it_is_tried_on(evaluator: Evaluator) -> None:
    assert fault(evaluator, threading.Event()) is None


@pytest.mark.slow
def test_a_card_that_fails_at_kernels_alone_is_to_blame(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    """It still opens problems: only what was built for it does not run."""
    broken = 'extern "C" void run(const float* x, float* out) { __builtin_trap(); }'
    monkeypatch.setitem(probe._KERNELS, Target.CPU, (broken, {}))
    assert "SIGILL" in str(fault(evaluator, threading.Event()))


def test_a_problem_that_a_card_fails_at_costs_the_others_nothing(tmp_path: Path) -> None:
    box = Box(tmp_path, ["fails 0", "one", "fails 1", "two", "fails 2", "three"], problems=2)
    assert box.run() == 0
    assert sum(record.failure is None for record in box.records()) == 3


def test_a_run_goes_on_with_the_cards_that_there_are(tmp_path: Path) -> None:
    box = Box(tmp_path, ["one", "two"], cards=["absent", "card-1"])
    assert box.run() == 0
    assert {record.device.uid for record in box.records()} == {"card-1"}
    nobody = Box(tmp_path, ["one", "two"], cards=["absent"])
    nobody.output.unlink()
    with pytest.raises(Unavailable, match="no such card"):
        nobody.run()


def test_a_card_that_was_not_needed_stands_in_for_one_that_cannot_be_used(tmp_path: Path) -> None:
    box = Box(tmp_path, ["one"], cards=["absent", "card-1"])
    assert box.run() == 0
    assert [record.device.uid for record in box.records()] == ["card-1"]


def test_a_step_goes_to_a_card_that_it_does_not_avoid(tmp_path: Path) -> None:
    box = Box(tmp_path, ["one"], cards=["card-0", "card-1", "card-2"], avoids="card-0")
    assert box.run() == 0
    assert [record.device.uid for record in box.records()] == ["card-1"]


def test_a_step_that_a_card_failed_at_goes_to_one_that_was_not_needed(tmp_path: Path) -> None:
    box = Box(tmp_path, ["fails on card-0"], cards=["card-0", "card-1"])
    assert box.run() == 0
    assert [(record.device.uid, record.failure) for record in box.records()] == [("card-1", None)]


def test_started_cards_divide_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    started: list[tuple[int, ...]] = []

    class Noted(BatchRun):
        def _start(self, options: CardOptions) -> running._Card:
            started.append(options.cores)
            card = super()._start(replace(options, cores=()))
            card.options = options
            return card

    monkeypatch.setattr(sys.modules[__name__], "BatchRun", Noted)
    box = Box(tmp_path, ["one", "two"], cards=[f"card-{number}" for number in range(8)])
    assert box.run() == 0
    assert started == [tuple(range(8)), tuple(range(8, 16))]


def test_an_answer_that_is_too_large_is_told_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = results.write_record

    def too_long(header: ResultHeader, record: BatchRecord) -> str:
        if record.failure is None:
            raise results.Damaged("its result takes more than 900000 bytes")
        return written(header, record)

    monkeypatch.setattr(result_file, "write_record", too_long)
    box = Box(tmp_path, ["one"])
    assert box.run() == 0
    assert "the machine failed: its result takes more than 900000 bytes" in box.told[-1]


def test_too_few_cores_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    box = Box(tmp_path, ["one", "two"], cards=["card-0", "card-1"])
    assert box.run() == 0
    assert box.told[0].startswith("warning: 2 cards have 1 cores of this machine, and should have 4 each")


def test_devices_are_counted_among_those_that_the_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "visible_uuids", lambda: ["GPU-e", "GPU-f"])
    asked, objects = question()
    of = manifest(entry(asked)).model_copy(update={"target": Target.CUDA})
    path = batch_file(tmp_path, of, objects)
    with BatchFile(path) as batch:

        def chosen(devices: str) -> list[str | None]:
            return [options.device for options in card_options(batch, CardOptions(path, tmp_path), devices)]

        assert chosen("all") == chosen("0,1") == ["GPU-e", "GPU-f"]
        assert chosen("1, GPU-e") == ["GPU-f", "GPU-e"]
        for devices in ("0,0", "0,GPU-e"):
            with pytest.raises(InvalidInput, match="names a card twice"):
                chosen(devices)
        for devices in ("2", "GPU-a", "", "0,"):
            with pytest.raises(InvalidInput, match="no card that this process may use"):
                chosen(devices)


def test_nothing_begins_after_the_deadline(tmp_path: Path) -> None:
    box = Box(tmp_path, ["one", "two"])
    assert box.run(deadline=time.monotonic() - 1) == 2
    assert box.records() == []


def test_what_runs_long_after_the_deadline_is_stopped_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(running, "time", clock)
    box = Box(tmp_path, ["one", "waits", "three"])
    assert box.run(deadline=clock.monotonic() + HOUR, once_begun=clock.pass_two_hours) == 2
    assert len(box.records()) == 1


def test_a_card_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "STOP_SECONDS", 0.1)
    monkeypatch.setattr(running, "END_SECONDS", 0.1)
    box = Box(tmp_path, ["one", "hangs"])
    assert box.run(once_begun=box.stop) == 1
    assert len(box.records()) == 1


def test_a_failure_while_the_run_stops_is_not_the_machines(tmp_path: Path) -> None:
    box = Box(tmp_path, ["one", "waits and fails"])
    assert box.run(once_begun=box.stop) == 1
    assert [record.failure for record in box.records()] == [None]


def test_a_stopped_run_keeps_what_is_done_and_leaves_the_rest(tmp_path: Path) -> None:
    box = Box(tmp_path, ["one", "two", "waits", "three"])
    assert box.run(once_begun=box.stop) == 2
    assert len(box.records()) == 2


def test_a_batch_whose_lease_has_ended_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked, objects = question()
    late = manifest(entry(asked)).model_copy(update={"expires_at": NOW - timedelta(hours=1)})
    assert main(["batch", "run", str(batch_file(tmp_path, late, objects))]) == 2
    assert "its lease ended" in " ".join(capsys.readouterr().err.replace("the batch's", "its").split())


def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None if name == "torch" else object())
    assert main(["batch", "run", str(batch_file(tmp_path))]) == 3
    assert "has no torch" in capsys.readouterr().err


def test_a_machine_without_pydantic_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "pydantic.py").write_text("raise ImportError('No module named pydantic_core')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command_line = [sys.executable, "-m", "gpu_worker", "batch", "run", "night.batch"]
    done = subprocess.run(command_line, cwd=SOURCE_ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "cannot import pydantic: No module named pydantic_core" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_no_batch_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "letter.batch"
    path.write_text("dear judge")
    assert main(["batch", "run", str(path)]) == 2
    assert main(["batch", "run", str(tmp_path / "missing.batch")]) == 2
    assert main(["batch", "run", str(batch_file(tmp_path)), "--minutes", "-1"]) == 2
    assert capsys.readouterr().err.count("error: ") == 3
