"""The parts of a target, as the supervisor, the judge and the runner see them.

A target has three halves because three processes meet it:

``HostTarget``      in the supervisor; describes programs to run in sandboxes. Imports neither torch nor CUDA.
``JudgeDevice``     in the judge process; owns torch's side of the device, the shared arena and the judge's clock.
``RunnerDevice``    in the runner process; maps the arena, loads the binary, launches. On ``cpu`` standard library only.

How they meet: the judge allocates one *arena* (all buffers of all slots, with guard zones between them) and sends its
handle to the runner; a *slot* says at which byte offset of the arena each named tensor and workspace of the plan lies.
One launch sequence (the whole plan, once) works on one slot. Nothing here knows laws, tolerances or verdicts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:  # the runner has no pydantic, and only the judge has torch
    import torch

    from cupilot.domain.evaluation import Failure
    from cupilot.domain.hardware import Device, Environment
    from cupilot.domain.kernel import ResolvedPlan
    from cupilot.domain.problem import NumericsPolicy, ProblemFacts, Target, TensorSpec
    from cupilot.domain.roofline import Zone

ALIGNMENT = 256
"""Bytes; every buffer in the arena starts on a multiple of it (what cudaMalloc gives)."""


@dataclass(frozen=True)
class Access:
    """Things that a sandboxed program may use beyond the read-only system folders (/usr, /lib*, the Python prefix)."""

    read_only: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    devices: tuple[Path, ...] = ()
    """Device nodes, bound with device access (GPU nodes)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The whole environment besides PATH, HOME and LANG, which the sandbox sets."""
    subprocesses: bool = False
    """True if it may fork and execute (a compiler driver does); refused by seccomp otherwise."""
    memory_files: bool = False
    """True if it may have shared memory of its own (memfd_create), which no limit counts; the judge's arena is such."""
    file_locks: bool = False
    """True if it may lock parts of files, which is memory that no limit counts; ``ncu`` must."""
    accountable: bool = False
    """True if it runs code of users, who are told how it ended: it may not end as if the system had killed it."""
    bounded_address_space: bool = True
    """False for CUDA processes, whose driver reserves more address space than the machine has memory."""


@dataclass(frozen=True)
class Program:
    """One program to run in a sandbox."""

    argv: tuple[str, ...]
    access: Access = Access()


@dataclass(frozen=True)
class BuildFacts:
    """Facts from a compiler's log and a disassembly; fields as in ``BuildReport``."""

    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    instructions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MemoryWatch:
    """Result of a kernel's replay under memory checkers."""

    failure: Failure | None = None
    notes: tuple[str, ...] = ()
    """Coverage of each checker that found nothing."""


@dataclass(frozen=True)
class DeviceState:
    """Readings of a device at one moment; empty where it has none."""

    clocks_mhz: Mapping[str, float] = field(default_factory=dict)
    temperature_c: float | None = None
    power_w: float | None = None
    slowed_by: tuple[str, ...] = ()
    """Reasons why clocks are held down now."""
    throttled: bool | None = None
    """True if heat or a failing supply is among the reasons."""


@dataclass(frozen=True)
class Counters:
    """Hardware counters of a kernel; empty where the machine has none, or lends none."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    """Metrics that were asked for and that the profiler does not know on this device; empty without ``metrics``."""


class Toolchain(Protocol):
    """A compiler as the build service drives it. ``folder`` is the one writable folder of the sandbox.

    The folder holds ``problem.h`` and ``kernel<suffix>``; the compile program leaves ``products`` there, exits with 0
    when it did, and prints its diagnostics to stderr (absolute paths are fine; the build service shortens them).
    """

    products: tuple[str, ...]
    """Files that the compile program leaves: ``kernel.bin``, and what the inspection needs beside it."""

    compiler: str
    """Name and version, e.g. ``g++ 12.2.0``; part of the cache key."""
    flags: tuple[str, ...]
    """Part of the cache key, with the target's arch."""
    suffix: str

    def compile_program(self, folder: Path) -> Program:
        """Return the program that builds ``folder/kernel<suffix>`` to ``folder/kernel.bin``."""
        ...

    def inspect_program(self, folder: Path) -> Program | None:
        """Return the program that prints facts about ``folder/kernel.bin``; None if no such tool is installed."""
        ...

    def facts(self, compile_log: str, inspection: str) -> BuildFacts:
        """Read the outputs of the two programs."""
        ...

    def refusal(self, kernel_source: str, facts: BuildFacts, problem: ProblemFacts) -> str | None:
        """Return why the binary breaks the policy or the rules of the target (POLICY_BREACH); None when it does not."""
        ...


class RunnerHost(Protocol):
    """The part of a target that starts runners."""

    cpus: tuple[int, ...] | None
    """CPUs that judge and runner may use; None for all."""
    runner_device: str
    """``module:callable`` that makes the :class:`RunnerDevice`; called without arguments."""
    trusts_runner: bool
    """True where no code of the kernel runs in the runner's process on the host (``cuda``)."""

    def runner_access(self) -> Access:
        """Return the access that the runner process needs; site-packages only if it cannot do without."""
        ...

    def runner_python_flags(self) -> tuple[str, ...]:
        """Return interpreter flags of the runner, e.g. ``("-I", "-S")``."""
        ...


class HostTarget(RunnerHost, Protocol):
    """A target in the supervisor."""

    target: Target
    device: Device
    threads: int | None
    """Threads that kernel and baseline are given; None on ``cuda``."""
    toolchain: Toolchain
    judge_device: str
    """``module:callable`` that makes the :class:`JudgeDevice`; called with :meth:`judge_options` as keywords."""
    sweep_points: int
    """Values of a kernel's tunables that are tried by default."""
    autotunes: bool
    """True if ``torch.compile max-autotune`` is a baseline by default."""
    starts_ahead: bool
    """True if processes that wait for a kernel or a problem take nothing away from a kernel that is timed."""

    def judge_options(self) -> dict[str, Any]:
        """Return JSON-compatible keywords of the judge device's constructor (device id, threads, cache size)."""
        ...

    def judge_access(self) -> Access:
        """Return the access that the judge process needs: torch, device nodes."""
        ...

    def peaks_program(self) -> Program:
        """Return the program that measures the device and prints :class:`MeasuredPeaks` as one JSON object."""
        ...

    def environment(self) -> Environment:
        """Return the machine's present state; the supervisor fills in sandbox, compiler and code version."""
        ...

    def profile_metrics(self, facts: BuildFacts) -> dict[str, float]:
        """Return further inferred metrics (e.g. occupancy) for the profile; empty where there are none."""
        ...

    def measured_profile(self, binary: Path, plan: ResolvedPlan, tensors: Sequence[TensorSpec], zone: Zone) -> Counters:
        """Read the zone's metrics from hardware counters, over a replay of the kernel; empty where there are none."""
        ...

    def watched_memory(self, binary: Path, plan: ResolvedPlan, tensors: Sequence[TensorSpec]) -> MemoryWatch:
        """Replay the kernel under memory checkers, and return their findings; empty where there is no checker."""
        ...

    def healthy(self) -> bool:
        """Return whether a fresh process can use the device; asked after a kernel's fault."""
        ...


@dataclass(frozen=True)
class MeasuredPeaks:
    """Output of :meth:`HostTarget.peaks_program`, as JSON with these keys."""

    bandwidth: tuple[tuple[int, float], ...]
    """(working set in bytes, bytes a second), ascending: caches first, main memory last."""
    scalar_flops: float
    tensor_flops: Mapping[str, float] = field(default_factory=dict)
    """By numerics policy value."""
    launch_seconds: float = 0.0


class Arena(Protocol):
    """Memory that judge and runner share."""

    bytes: torch.Tensor
    """The judge's view: uint8, one dimension, on the judge's torch device."""
    handle: dict[str, Any]
    """JSON-compatible; sent to the runner's ``attach``."""
    descriptors: tuple[int, ...]
    """File descriptors sent along (SCM_RIGHTS)."""

    def close(self) -> None:
        """Release the memory."""
        ...


class AttachedArena(Protocol):
    """Memory that another process of ours owns."""

    bytes: torch.Tensor
    """uint8, one dimension, on this process's torch device."""

    def close(self) -> None:
        """Forget the mapping; it goes with its last tensor where the target cannot unmap it earlier."""
        ...


class JudgeDevice(Protocol):
    """A target where PyTorch runs: in the judge and in the reference process. Its calls come from one thread."""

    torch_device: torch.device
    cache_bytes: int
    """Last-level cache: rotated buffers must exceed it."""
    memory_bytes: int
    """Device memory that the judge may use for cases, slots and references."""
    precision: float
    """Relative half width of a speedup's interval at which an evaluation stops measuring."""
    block_seconds: float
    """Length of a timed block for which the clock and the message around it are negligible."""
    cold_start_seconds: float
    """Seconds that starting a block may add to its first launches: messages, cold instructions, cache write-back."""
    lends: bool
    """True if results of imported files can stay where they are, in memory of the judge's."""
    graph_below_seconds: float
    """Shorter launches are timed through graphs, kernel and baseline alike; 0 where the device has none."""

    def allocate(self, size: int) -> Arena:
        """Return a new arena of ``size`` bytes."""
        ...

    def attach(self, handle: dict[str, Any], descriptors: Sequence[int]) -> AttachedArena:
        """Map an arena of another process from its handle and descriptors, which are closed."""
        ...

    def release_unused(self) -> None:
        """Return memory that PyTorch keeps unused to the device, for other processes."""
        ...

    def free_bytes(self) -> float:
        """Return how much of the device's memory is free for other processes."""
        ...

    def policy(self, policy: NumericsPolicy) -> AbstractContextManager[None]:
        """Set PyTorch's numerics under a policy, for reference calls inside the context."""
        ...

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        ...

    def flush_cache(self) -> None:
        """Evict the last-level cache (called between blocks where the rotated buffers are too small to do so)."""
        ...

    def baseline_seconds(self, calls: Sequence[Callable[[], object]]) -> float:
        """Run the calls back to back, once each; the device's time for all of them, on the judge's clock."""
        ...

    def captured(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """Make the calls one graph that a single call replays. Raises :class:`GraphUnavailable` where that cannot be.

        The first call may be made once beforehand; what the captured calls return holds their results after a replay.
        """
        ...

    def distrusting(self) -> JudgeDevice:
        """Return the same device for a runner with host code of others: blocks are long enough for, and timed by, the
        judge's own clock, and no graphs.
        """
        ...

    def kernel_seconds(self, host: float, runner: float, launches: int, overhead: float = 0.0) -> float | None:
        """Return seconds a block took, from the judge's wall clock around it and the runner's own report.

        ``overhead`` is what an empty block takes. None where the two disagree by more than launch and message overhead:
        CLOCK_MISMATCH.
        """
        ...

    def baseline_time(self, host: float, reported: float) -> float | None:
        """Return the seconds of a baseline's block, from the judge's wall clock and the reference process's report.

        None where the report is not possible: longer than the judge waited.
        """
        ...

    def shared(self) -> bool:
        """Return whether the judge's own work waits for other processes'. Asked when clocks disagree; takes a while."""
        ...

    def state(self) -> DeviceState:
        """Return clocks, temperature, power and throttling now; asked between timed blocks, and cheap."""
        ...


class GraphUnavailable(Exception):
    """Launches cannot be captured as a graph."""


class RunnerError(Exception):
    """Something the kernel did wrong, as the runner reports it."""

    def __init__(self, kind: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.kind = kind
        """A :class:`cupilot.domain.evaluation.FailureKind` value: ``launch_error``, ``illegal_access``..."""
        self.details = details


class RunnerDevice(Protocol):
    """A target in the runner process. Any method may raise :class:`RunnerError`."""

    def attach(self, handle: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Map the judge's arena; replaces an earlier one. Slots bound before are forgotten."""
        ...

    def load(self, binary: str, launches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Load the binary (a path) and look up the entry points of the launches.

        ``launches`` are ``ResolvedLaunch`` as JSON. Returns facts worth recording, e.g. occupancy.
        """
        ...

    def bind(self, slots: Sequence[Mapping[str, int]]) -> None:
        """Take slots as {tensor or workspace name: byte offset in the arena}, and prepare argument lists."""
        ...

    def reset(self) -> None:
        """Make the binary's static memory what it was after loading."""
        ...

    def run(self, order: Sequence[int]) -> float:
        """Execute the whole plan once for each slot number in ``order``; return when all is done.

        The result is the runner's own clock over the launches, in seconds.
        """
        ...


@runtime_checkable
class GraphRunnerDevice(RunnerDevice, Protocol):
    """A runner whose device can go through many launches without waiting for the host."""

    def capture(self, order: Sequence[int]) -> str | None:
        """Make the whole plan, once for each slot number in ``order``, one graph; why that cannot be, or None."""
        ...

    def replay(self) -> float:
        """Run the plan as :meth:`run` does, through the graph that was captured last."""
        ...


def load_factory(path: str) -> Callable[..., Any]:
    """Return the callable that ``module:name`` means."""
    module, _, name = path.partition(":")
    factory = getattr(importlib.import_module(module), name)
    if not callable(factory):
        raise TypeError(f"{path} is not callable")
    return factory  # type: ignore[no-any-return]
