"""What a replay under a tool is told to run: no GPU needed."""

from __future__ import annotations

from pathlib import Path

from cupilot.kernel import ResolvedLaunch, ResolvedPlan
from cupilot.problem import DType, Role, TensorSpec
from gpu_worker.targets.cuda import replays
from gpu_worker.targets.cuda.replay import Replay


def test_a_replay_has_every_buffer_and_fills_only_what_a_kernel_is_given() -> None:
    tensors = (
        TensorSpec(name="x", role=Role.INPUT, dtype=DType.FLOAT32, shape=(4, 8), strides=(8, 1)),
        TensorSpec(name="index", role=Role.BUFFER, dtype=DType.INT64, shape=(3,), strides=(1,)),
        TensorSpec(name="out", role=Role.OUTPUT, dtype=DType.FLOAT32, shape=(4,), strides=(1,)),
    )
    launch = ResolvedLaunch(kernel="k", args=("x", "index", "out", "scratch"), grid=(4, 1, 1), block=(32, 1, 1))
    watched = replays.Watched(
        Path("/b/kernel.bin"), ResolvedPlan(launches=(launch,), workspace={"scratch": 64}), tensors
    )
    replay = Replay(**replays._specification(watched, times=3))  # type: ignore[arg-type]
    assert replay.buffers == {"x": 128, "index": 24, "out": 16, "scratch": 64}
    assert list(replay.floats) == ["x"]
    assert list(replay.zeros) == ["index"]
    assert replay.launches[0]["args"] == ["x", "index", "out", "scratch"]
    assert replay.times == 3
