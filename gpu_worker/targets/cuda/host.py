"""The ``cuda`` target in the supervisor: which GPU this is, and which programs describe, measure, judge and run on it.

Loads neither torch nor CUDA: facts come from a probe in a process of its own and from NVML. A GPU is named by its UUID
everywhere, since indices change with the environment.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cupilot.domain.errors import InvalidInput, Unavailable
from cupilot.domain.hardware import Device, Environment
from cupilot.domain.kernel import ResolvedPlan
from cupilot.domain.problem import Target, TensorSpec
from cupilot.domain.roofline import Zone
from gpu_worker.sandbox.limits import Limits
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import Access, BuildFacts, Counters, MemoryWatch, Program
from gpu_worker.targets.cuda import installation, replays
from gpu_worker.targets.cuda.nvcc import toolchain
from gpu_worker.targets.cuda.nvml import Nvml, first_visible
from gpu_worker.targets.cuda.toolchain import python_access, python_program

_HERE = Path(__file__).parent
PROBE_SECONDS = 60.0
"""A context takes 0.1 s; a cold driver without persistence some seconds."""


class CudaHost:
    """One NVIDIA GPU; see :class:`gpu_worker.targets.base.HostTarget`."""

    target = Target.CUDA
    judge_device = "gpu_worker.targets.cuda.judge:CudaJudge"
    runner_device = "gpu_worker.targets.cuda.runner:CudaRunner"
    trusts_runner = True
    sweep_points = 12
    autotunes = True
    starts_ahead = True
    threads: int | None = None
    cpus: tuple[int, ...] | None = None

    def __init__(self, device: str | None = None, threads: int | None = None, builder: str | None = None) -> None:
        """Describe the GPU that ``device`` names by UUID or index, by default the first visible one.

        ``builder`` is what kernels are compiled by, one of :data:`gpu_worker.targets.cuda.nvcc.BUILDERS`.
        """
        if threads is not None:
            raise InvalidInput("--threads is for the cpu target only")
        self._nvml = Nvml(device or first_visible())
        self.device = _describe(self._probe_program())
        self.toolchain = toolchain(self.device.arch, builder)

    def judge_options(self) -> dict[str, Any]:
        """Return nothing: the judge reads its GPU's facts itself."""
        return {}

    def judge_access(self) -> Access:
        """Return torch, the packages of this project, the GPU, and a C compiler, which torch.compile needs."""
        access = self._access()
        environment = {
            **access.environment,
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",  # large references leave no room for fragments
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        compiler = installation.c_compiler()
        if compiler is None:
            return replace(access, environment=environment)
        folders = () if compiler.is_relative_to("/usr") else (compiler.parent.parent,)
        environment["CC"] = str(compiler)
        return replace(access, read_only=(*access.read_only, *folders), environment=environment)

    def runner_access(self) -> Access:
        """Return the interpreter with cuda-bindings, and the GPU, with one hardware queue: a runner has one stream.

        Making a context with one queue takes the driver half the time that eight take (``benchmarks.judge_open``).
        """
        access = self._access()
        return replace(access, environment={**access.environment, "CUDA_DEVICE_MAX_CONNECTIONS": "1"})

    def runner_python_flags(self) -> tuple[str, ...]:
        """Return flags that isolate it; site-packages stay, because cuda-bindings is there."""
        return ("-I",)

    def peaks_program(self) -> Program:
        """Run :mod:`gpu_worker.targets.cuda.peaks`."""
        library, includes = installation.nvrtc(), installation.include_folders()
        access = python_access(replace(self._access(), read_only=(library.parent, includes[0])))
        return python_program(_HERE / "peaks.py", str(library), *map(str, includes), access=access)

    def environment(self) -> Environment:
        """Return clocks, temperature, power and throttling now."""
        return Environment(
            device=self.device,
            driver=self._nvml.driver(),
            cuda=self._nvml.cuda(),
            clocks_mhz=self._nvml.clocks_mhz(),
            temperature_c=self._nvml.temperature_c(),
            power_w=self._nvml.power_w(),
            throttled=self._nvml.throttled(),
            load_average=os.getloadavg()[0],
            host=socket.gethostname(),
        )

    def profile_metrics(self, facts: BuildFacts) -> dict[str, float]:
        """Return highest occupancy that the registers allow, in percent; the plan's block may allow less."""
        if not facts.registers:
            return {}
        per_warp = -(-facts.registers * 32 // 256) * 256  # registers are given out in units of 256 a warp
        warps = min(self.device.registers_per_unit // per_warp, self.device.threads_per_unit // 32)
        return {"register_occupancy_pct": 100.0 * warps / (self.device.threads_per_unit // 32)}

    def measured_profile(self, binary: Path, plan: ResolvedPlan, tensors: Sequence[TensorSpec], zone: Zone) -> Counters:
        """Return the zone's metrics, over a replay in a process of its own; empty where the machine gives none."""
        return replays.profile(replays.ReplayedKernel(binary, plan, tensors), self._access(), zone)

    def watched_memory(self, binary: Path, plan: ResolvedPlan, tensors: Sequence[TensorSpec]) -> MemoryWatch:
        """Replay the kernel under compute-sanitizer, and return its findings."""
        return replays.watched_memory(replays.ReplayedKernel(binary, plan, tensors), self._access())

    def healthy(self) -> bool:
        """Return whether a fresh process can use the GPU; asked after a fault."""
        return Sandbox().run(self._probe_program(), Limits(), PROBE_SECONDS).code == 0

    def _probe_program(self) -> Program:
        return python_program(_HERE / "probe.py", access=self._access())

    def _access(self) -> Access:
        environment = {"CUDA_VISIBLE_DEVICES": self._nvml.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        devices = installation.device_nodes(self._nvml.minor())
        return python_access(Access(devices=devices, environment=environment, bounded_address_space=False))


def _describe(probe: Program) -> Device:
    done = Sandbox().run(probe, Limits(), PROBE_SECONDS)
    if done.code != 0:
        raise Unavailable(f"the GPU does not work in a sandbox: {done.stderr.strip()[-500:] or done.code}")
    return Device.model_validate(json.loads(done.stdout))
