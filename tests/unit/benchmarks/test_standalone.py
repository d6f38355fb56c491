"""The in-process driver runs on a bare GPU box: no service library is ever imported."""

from __future__ import annotations

from tests.unit.architecture.test_standalone import GPU_BOX, blocked, import_alone


def test_the_local_driver_imports_on_a_gpu_box() -> None:
    done = import_alone(
        ["benchmarks.evolve_local", "workers.local"], blocked(GPU_BOX, "agents", "gpu_worker", "workers")
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "False", "the supervising process loads torch"
