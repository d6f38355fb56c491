"""The ``cpu`` target in the supervisor: which machine this is, and which programs measure, judge and run on it."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cupilot.domain.errors import InvalidInput
from cupilot.domain.hardware import Device, Environment
from cupilot.domain.kernel import ResolvedPlan
from cupilot.domain.problem import Target, TensorSpec
from cupilot.domain.roofline import Zone
from gpu_worker.sandbox.files import python_folders
from gpu_worker.targets import cpu_peaks
from gpu_worker.targets.base import Access, BuildFacts, Counters, MemoryWatch, Program
from gpu_worker.targets.cpu_toolchain import CpuToolchain

SPIN_COUNT = "30000"
"""Rounds (about 0.1 to 0.5 ms) that idle OpenMP threads spin before they sleep: long enough for back-to-back launches,
short enough that the threads of one side do not disturb the other's next block. The same for kernel and baseline."""

_COMPILING = {
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
"""Let ``torch.compile`` prepare only for the one or two C++ kernels that a problem needs. By default it first builds a
program for each vector width (6 s of a core), precompiles headers for kernels to come (4 s) and starts a process that
imports torch once more (2 s). What it compiles is the same."""

CACHE_VARIABLE = "CUPILOT_CPU_CACHE_MIB"
"""Names the last-level cache to count on, in MiB: a virtual machine with a few cores of a large host is shown all of
the host's, and evicting that takes longer than timing most kernels."""

_ARCH_FLAGS = (("avx512f", "avx512"), ("avx2", "avx2"), ("avx", "avx"), ("asimd", "neon"))


class CpuHost:
    """The CPU of this machine, or ``threads`` of its cores."""

    target = Target.CPU
    judge_device = "gpu_worker.targets.cpu_judge:CpuJudgeDevice"
    runner_device = "gpu_worker.targets.cpu_runner:CpuRunner"
    trusts_runner = False
    sweep_points = 3  # a build takes a second or two, on the cores that kernels run on
    autotunes = False  # on a CPU it only tries ways to multiply matrices, and takes minutes
    starts_ahead = False

    def __init__(self, device: str | None = None, threads: int | None = None, builder: str | None = None) -> None:
        if builder is not None:
            raise InvalidInput("there is one builder for the cpu target, g++; nvrtc and nvcc are for cuda")
        available = sorted(os.sched_getaffinity(0))
        self.threads: int | None = threads or len(available)
        if not 1 <= self.threads <= len(available):
            raise InvalidInput(f"{threads} threads requested, but only {len(available)} cores are available")
        self.cpus: tuple[int, ...] | None = tuple(available[: self.threads])
        self.toolchain = CpuToolchain()
        self.device = _device(self.threads)
        if device not in (None, self.device.uid):
            raise InvalidInput(f"this machine's CPU is {self.device.uid}, not {device}")

    def judge_options(self) -> dict[str, Any]:
        """See :class:`gpu_worker.targets.base.HostTarget`."""
        return {
            "threads": self.threads,
            "cache_bytes": self.device.cache_bytes,
            "memory_bytes": self.device.memory_bytes // 3,
        }

    def judge_access(self) -> Access:
        """Return torch and the packages of this project; the one OpenMP team size that kernels get too.

        A compiler that knew too few vector widths would leave the job without the torch.compile baseline; each that
        PyTorch's headers need knows them all.
        """
        return Access(read_only=python_folders(), environment={**self._openmp(), **_COMPILING})

    def runner_access(self) -> Access:
        """Return the interpreter, without site-packages being used."""
        return Access(read_only=python_folders(), environment=self._openmp())

    def runner_python_flags(self) -> tuple[str, ...]:
        """Return flags that isolate it, without site-packages."""
        return ("-I", "-S")

    def peaks_program(self) -> Program:
        """Run :mod:`gpu_worker.targets.cpu_peaks`, which compiles and runs its own loops."""
        argv = (sys.executable, "-I", "-S", cpu_peaks.__file__, str(self.device.cache_bytes))
        return Program(argv, Access(read_only=python_folders(), environment=self._openmp(), subprocesses=True))

    def environment(self) -> Environment:
        """Load, clock and name of the machine now."""
        clocks = [float(value) for value in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", _cpuinfo(), re.MULTILINE)]
        return Environment(
            device=self.device,
            driver=platform.release(),
            threads=self.threads,
            clocks_mhz={"cpu": sum(clocks) / len(clocks)} if clocks else {},
            load_average=os.getloadavg()[0],
            host=socket.gethostname(),
        )

    def profile_metrics(self, facts: BuildFacts) -> dict[str, float]:
        """Share of vector instructions that use the widest registers, in percent."""
        families = ("simd_512", "simd_256", "simd_128")
        total = sum(facts.instructions.get(name, 0) for name in families)
        if not total:
            return {}
        return {f"{name}_pct": 100.0 * facts.instructions.get(name, 0) / total for name in families}

    def measured_profile(self, binary: Path, plan: ResolvedPlan, tensors: Sequence[TensorSpec], zone: Zone) -> Counters:  # noqa: ARG002
        """Return nothing: virtual machines and containers seldom lend the counters of a CPU."""
        return Counters()

    def watched_memory(self, binary: Path, plan: ResolvedPlan, tensors: Sequence[TensorSpec]) -> MemoryWatch:  # noqa: ARG002
        """Return nothing: guard zones and the runner's own death show bad accesses here."""
        return MemoryWatch()

    def healthy(self) -> bool:
        """Return True: a CPU survives its kernels."""
        return True

    def _openmp(self) -> dict[str, str]:
        count = str(self.threads)
        return {
            "OMP_NUM_THREADS": count,
            "MKL_NUM_THREADS": count,
            "OMP_DYNAMIC": "false",
            "GOMP_SPINCOUNT": SPIN_COUNT,
        }


def _device(threads: int) -> Device:
    text = _cpuinfo()
    name = _field(text, "model name") or platform.processor() or platform.machine()
    flags = set((_field(text, "flags") or _field(text, "Features") or "").split())
    extension = next((label for flag, label in _ARCH_FLAGS if flag in flags), "base")
    identity = hashlib.sha256(f"{_machine_id()}|{name}|{' '.join(sorted(flags))}".encode()).hexdigest()[:16]
    return Device(
        target=Target.CPU,
        uid=f"cpu-{identity}",
        name=name,
        arch=f"{platform.machine().replace('_', '-')}-{extension}",
        units=threads,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        cache_bytes=_chosen_cache() or last_level_cache(),
    )


def _chosen_cache() -> int | None:
    chosen = os.environ.get(CACHE_VARIABLE, "")
    if chosen and not re.fullmatch(r"[1-9]\d{0,5}", chosen, re.ASCII):
        raise InvalidInput(f"{CACHE_VARIABLE} is a number of MiB from 1 to 999999, not {chosen[:40]!r}")
    return int(chosen) * 2**20 if chosen else None


def last_level_cache(processors: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the bytes of all last-level caches of the processors that this process may use; a guess where unknown."""
    sizes: dict[tuple[int, str], int] = {}
    for number in os.sched_getaffinity(0):
        for folder in (processors / f"cpu{number}/cache").glob("index*"):
            level, size, shared = (_line(folder / name) for name in ("level", "size", "shared_cpu_list"))
            match = re.fullmatch(r"(\d+)([KMG]?)", size)
            if match and level.isdigit():
                sizes[int(level), shared] = int(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]]
    last = max((level for level, _ in sizes), default=0)
    return sum(size for (level, _), size in sizes.items() if level == last) or 32 * 2**20


def _line(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _machine_id() -> str:
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        if path.exists():
            return path.read_text().strip()
    return socket.gethostname()


def _cpuinfo() -> str:
    return Path("/proc/cpuinfo").read_text()


def _field(text: str, name: str) -> str | None:
    match = re.search(rf"^{re.escape(name)}\s*:\s*(.*)$", text, re.MULTILINE)
    return match[1].strip() if match else None
