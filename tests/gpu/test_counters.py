"""Hardware counters on a real GPU: each name of each zone is answered, and one that is unknown costs nothing else."""

from __future__ import annotations

import difflib
import os
import subprocess
from collections.abc import Callable

import pytest

from cupilot.domain.evaluation import Preparation
from cupilot.domain.problem import NumericsPolicy, Problem, Target
from cupilot.domain.roofline import Zone
from gpu_worker.build import Builder
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import Counters
from gpu_worker.targets.cuda import counters
from gpu_worker.targets.registry import open_host
from tests.gpu import kernels, problems

pytestmark = pytest.mark.gpu

Count = Callable[[Zone], Counters]


@pytest.fixture(scope="module")
def count(tmp_path_factory: pytest.TempPathFactory, prepare: Callable[[Problem], Preparation]) -> Count:
    """Counts a matrix product that uses shared memory and tensor cores."""
    if counters.profiler() is None:
        pytest.skip("ncu is not installed")
    host = open_host(Target.CUDA, device=os.environ.get("CUPILOT_TEST_GPU"))
    builder = Builder(host.toolchain, Sandbox(), tmp_path_factory.mktemp("builds"), host.device.arch)
    facts = prepare(problems.matmul(NumericsPolicy.TF32)).facts
    built = builder.build_kernel(kernels.matmul_tensor_cores(), facts)
    assert built.failure is None, built.failure
    return lambda zone: host.measured_profile(built.binary, built.plan, facts.tensors, zone)


def known_like(counter: str) -> list[str]:
    """Names that this ``ncu`` knows on this device and that look like the one it does not."""
    ncu = counters.profiler()
    assert ncu is not None
    listed = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, check=False, timeout=120)
    names = [line.split()[0] for line in listed.stdout.splitlines() if "__" in line.partition(" ")[0]]
    return difflib.get_close_matches(counter.partition(".")[0], names, n=5, cutoff=0.6)


def test_every_name_of_every_zone_is_answered(count: Count) -> None:
    unknown: dict[str, list[str]] = {}
    for zone in Zone:
        found = count(zone)
        print(f"\n{zone.value}: { ({name: round(value, 2) for name, value in found.metrics.items()}) }")
        assert found.metrics, f"no table at all in zone {zone.value}: may counters be read?"
        counter = counters.of_zone(zone)
        unknown |= {f"{name} = {counter[name]}": known_like(counter[name]) for name in found.missing}
    assert unknown == {}, "names that ncu does not know here, each with those that it knows and that look like it"


def test_an_unknown_name_is_told_and_loses_nothing_else(count: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**counters.BY_ZONE[Zone.COMPUTE], "of_nothing": "sm__of_nothing_at_all.sum"}
    monkeypatch.setitem(counters.BY_ZONE, Zone.COMPUTE, wrong)
    found = count(Zone.COMPUTE)
    print(f"\nmissing: {found.missing}")
    assert "of_nothing" in found.missing
    assert found.metrics.keys() >= {"dram_throughput_pct", "sm_throughput_pct", "achieved_occupancy_pct"}


def test_a_product_on_tensor_cores_shows_its_pipe_at_work(count: Count) -> None:
    found = count(Zone.COMPUTE).metrics
    assert found["tensor_active_pct"] > 0
    assert found["kernel_time_us"] > 0
