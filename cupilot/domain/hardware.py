"""Devices that kernels run on, their measured peaks, and the environment and conditions of a measurement. Pure data."""

from __future__ import annotations

from pydantic import model_validator

from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.value import Value


class Device(Value):
    """One GPU, or the CPU of one machine."""

    target: Target
    uid: str
    """GPU UUID, or a stable id of the machine's CPU."""
    name: str
    """Model name, e.g. ``NVIDIA H200``."""
    arch: str
    """``sm_90``, or the CPU's best vector extension, e.g. ``x86-64-avx512``."""
    units: int
    """Streaming multiprocessors, or cores that may be used."""
    memory_bytes: int
    cache_bytes: int
    """Last-level cache: L2 of a GPU; L3 (or L2) of a CPU, of all the processors that may be used together."""
    shared_bytes_per_block: int = 0
    registers_per_unit: int = 0
    threads_per_unit: int = 0

    @property
    def device_class(self) -> str:
        """Name of the device's queue: all devices of one class can stand in for each other."""
        return "cpu" if self.target is Target.CPU else self.arch


class Peaks(Value):
    """Rates that were measured on a device, not read from a data sheet."""

    device_uid: str
    bandwidth: float
    """Bytes a second of main memory, reads plus writes."""
    scalar_flops: float
    """fp32 operations a second without matrix units (a fused multiply-add counts two)."""
    tensor_flops: dict[NumericsPolicy, float] = {}
    """Matrix-unit operations a second, by policy; absent where the device or policy has none."""
    launch_seconds: float = 0.0
    """Shortest time that an empty launch takes."""
    measured_at: str
    """ISO 8601, UTC."""

    def matrix_flops(self, policy: NumericsPolicy) -> float:
        """Return the best rate for a matrix product under the policy."""
        return max(self.scalar_flops, self.tensor_flops.get(policy, 0.0))

    def best_of(self, other: Peaks) -> Peaks:
        """Return the higher of each rate, and the shorter launch."""
        policies = set(self.tensor_flops) | set(other.tensor_flops)
        return Peaks(
            device_uid=self.device_uid,
            bandwidth=max(self.bandwidth, other.bandwidth),
            scalar_flops=max(self.scalar_flops, other.scalar_flops),
            tensor_flops={
                policy: max(self.tensor_flops.get(policy, 0.0), other.tensor_flops.get(policy, 0.0))
                for policy in policies
            },
            launch_seconds=min(self.launch_seconds, other.launch_seconds),
            measured_at=max(self.measured_at, other.measured_at),
        )


class Environment(Value):
    """Device and software of a measurement."""

    device: Device
    driver: str | None = None
    cuda: str | None = None
    torch: str | None = None
    compiler: str | None = None
    sandbox: str | None = None
    """Which isolation was in force, e.g. ``bwrap+seccomp``."""
    threads: int | None = None
    """Threads the kernel and the baseline were given; ``cpu`` target."""
    clocks_mhz: dict[str, float] = {}
    temperature_c: float | None = None
    power_w: float | None = None
    throttled: bool | None = None
    load_average: float | None = None
    code_version: str = ""
    """Commit of the code that measured; the package's version where the commit is unknown."""
    host: str = ""


class Span(Value):
    """The least and the largest of some readings."""

    low: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Span:
        if not self.low <= self.high:
            raise ValueError(f"span is not ordered: {self.low}, {self.high}")
        return self


class Conditions(Value):
    """Readings of the device after each timed block of a comparison, kernel's and baseline's alike."""

    blocks: int
    """Blocks that the ranges are over: those that the comparison rests on."""
    clocks_mhz: dict[str, Span] = {}
    """``sm`` and ``memory``."""
    temperature_c: Span | None = None
    power_w: Span | None = None
    slowed_by: dict[str, int] = {}
    """In how many blocks clocks were held down, by NVML's reason; ``software_power_cap`` alone is not throttling."""
    throttled_blocks: int = 0
    """Blocks slowed by heat or the supply. Their pairs were dropped, and are in no time."""


def generation(arch: str) -> int:
    """Return the number in a GPU architecture's name; 0 for a CPU's."""
    digits = arch.removeprefix("sm_")
    return int(digits) if digits.isdigit() else 0
