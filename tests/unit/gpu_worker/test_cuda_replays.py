"""Commands of a replay under a tool: no GPU needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from cupilot.domain.kernel import ResolvedLaunch, ResolvedPlan
from cupilot.domain.problem import DType, Role, TensorSpec
from gpu_worker.sandbox.child import Finished
from gpu_worker.targets.base import Access, MemoryWatch
from gpu_worker.targets.cuda import replays, sanitizer
from gpu_worker.targets.cuda.replay import Replay


def test_a_replay_has_every_buffer_and_fills_only_what_a_kernel_is_given() -> None:
    tensors = (
        TensorSpec(name="x", role=Role.INPUT, dtype=DType.FLOAT32, shape=(4, 8), strides=(8, 1)),
        TensorSpec(name="index", role=Role.BUFFER, dtype=DType.INT64, shape=(3,), strides=(1,)),
        TensorSpec(name="out", role=Role.OUTPUT, dtype=DType.FLOAT32, shape=(4,), strides=(1,)),
    )
    launch = ResolvedLaunch(kernel="k", args=("x", "index", "out", "scratch"), grid=(4, 1, 1), block=(32, 1, 1))
    watched = replays.ReplayedKernel(
        Path("/b/kernel.bin"), ResolvedPlan(launches=(launch,), workspace={"scratch": 64}), tensors
    )
    replay = Replay(**replays._specification(watched, times=3))  # type: ignore[arg-type]
    assert replay.buffers == {"x": 128, "index": 24, "out": 16, "scratch": 64}
    assert list(replay.floats) == ["x"]
    assert list(replay.zeros) == ["index"]
    assert replay.launches[0]["args"] == ["x", "index", "out", "scratch"]
    assert replay.times == 3


NO_LAUNCHES = ResolvedPlan(launches=(), workspace={})
CLEAN = "========= ERROR SUMMARY: 0 errors\n"
REPORTS = {
    "memcheck": Finished(0, CLEAN, ""),
    "racecheck": Finished(-9, "========= COMPUTE-SANITIZER\n", "", timed_out=True),
    "initcheck": Finished(1, "", "Target application is not supported\n"),
    "synccheck": Finished(0, CLEAN, ""),
}


def watched(monkeypatch: pytest.MonkeyPatch, plan: ResolvedPlan = NO_LAUNCHES, **reports: Finished) -> MemoryWatch:
    @contextmanager
    def replay(*_: object) -> Iterator[Callable[[Callable[[Sequence[str]], tuple[str, ...]]], Finished]]:
        yield lambda wrap: (REPORTS | reports)[wrap(())[2]]

    monkeypatch.setattr(replays, "_replay", replay)
    monkeypatch.setattr(sanitizer, "checker", lambda: Path("/compute-sanitizer"))
    return replays.watched_memory(replays.ReplayedKernel(Path("/k"), plan, ()), Access())


def test_what_a_checkers_silence_is_worth_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watched(monkeypatch)
    assert watch.failure is None
    assert [note.removeprefix("compute-sanitizer, ") for note in watch.notes] == [
        "memcheck: found nothing",
        "racecheck: stopped after 30 s, had found nothing until then",
        "initcheck: did not run: Target application is not supported",
        "synccheck: found nothing",
    ]


def test_a_replay_that_failed_says_nothing_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watched(monkeypatch, memcheck=Finished(1, f"========= Target application returned an error\n{CLEAN}", ""))
    assert watch.notes[0].startswith("compute-sanitizer, memcheck: did not run: ")


def test_the_first_finding_is_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Finished(-9, "========= Error: Race reported between Write access at k+0x90\n", "", timed_out=True)
    watch = watched(monkeypatch, racecheck=found)
    assert watch.failure is not None
    assert watch.failure.details["tool"] == "racecheck"
    assert len(watch.notes) == 1


@pytest.mark.parametrize("blocks", [8, 16])
def test_synccheck_is_not_asked_about_clusters_that_it_errs_about(monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    launch = ResolvedLaunch(kernel="k", args=(), grid=(64, 1, 1), block=(32, 1, 1), cluster=(blocks // 2, 2, 1))
    plan = ResolvedPlan(launches=(launch,), workspace={})
    accused = Finished(0, "========= Barrier error detected. Divergent thread(s) in warp.\n", "")
    watch = watched(monkeypatch, plan, synccheck=accused)
    if blocks == 8:
        assert watch.failure is not None
    else:
        assert watch.failure is None
        assert watch.notes[-1].startswith("compute-sanitizer, synccheck: not run: ")
        assert "(here 16)" in watch.notes[-1]
    raced = Finished(0, "========= Error: Race reported between Write access at k+0x90\n", "")
    assert watched(monkeypatch, plan, racecheck=raced).failure is not None, "the other tools count nonetheless"
