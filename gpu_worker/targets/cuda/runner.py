"""The cuda half of the runner process: maps the judge's arena, loads a cubin, launches a resolved plan, times blocks.

Standard library and cuda-bindings only. Decides nothing: a driver error is reported as the kind of failure it means.
After an illegal access or a trap the context is unusable, and the judge replaces the whole process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from gpu_worker.targets.base import RunnerError
from gpu_worker.targets.cuda import driver, tensor_maps
from gpu_worker.targets.cuda.head_start import FLUSHES_TIMED, RUNNER_SECONDS, HeadStart
from gpu_worker.targets.elf import Image

_P = ParamSpec("_P")
_R = TypeVar("_R")

_KINDS = {
    "ILLEGAL_ADDRESS": "illegal_access",
    "MISALIGNED_ADDRESS": "illegal_access",
    "INVALID_ADDRESS_SPACE": "illegal_access",
    "INVALID_PC": "illegal_access",
    "HARDWARE_STACK_ERROR": "illegal_access",
    "ILLEGAL_INSTRUCTION": "crash",
    "LAUNCH_FAILED": "crash",
    "ASSERT": "crash",
    "OUT_OF_MEMORY": "out_of_memory",
    "LAUNCH_TIMEOUT": "timeout",
    "DEINITIALIZED": "infrastructure",
    "NO_DEVICE": "infrastructure",
    "DEVICE_UNAVAILABLE": "infrastructure",
    "ECC_UNCORRECTABLE": "infrastructure",
    "NVLINK_UNCORRECTABLE": "infrastructure",
    "SYSTEM_NOT_READY": "infrastructure",
    "SYSTEM_DRIVER_MISMATCH": "infrastructure",
    "OPERATING_SYSTEM": "infrastructure",
    "UNKNOWN": "infrastructure",
}
"""Driver error to ``FailureKind``; an error that is not named here is the plan's: ``launch_error``."""

LACKS_MEMORY = "lacks_memory"
"""As in :mod:`cupilot.domain.evaluation`, which a runner does not import."""

_FULL = "the card has no room for the kernel's process; run fewer workers on it, or use a larger one"
_FAULTY = "the card, its driver or this machine is at fault; nvidia-smi and the kernel log (Xid errors) say more"

_DEFAULT_SHARED_BYTES = 48 * 1024
_PORTABLE_CLUSTER = 8


def _reported(otherwise: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Turn driver errors into what the judge understands; those that :data:`_KINDS` does not name are ``otherwise``."""

    def decorate(method: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(method)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return method(*args, **kwargs)
            except driver.DriverError as error:
                if otherwise == "infrastructure" and error.code == "OUT_OF_MEMORY":
                    raise RunnerError(otherwise, f"{error}: {_FULL}", code=LACKS_MEMORY) from error
                kind = _KINDS.get(error.code, otherwise)
                what = f"{error}: {_FAULTY}" if kind == "infrastructure" else str(error)
                raise RunnerError(kind, what, code=error.code) from error

        return call

    return decorate


_reported_as_plan = _reported("launch_error")
_reported_as_machine = _reported("infrastructure")


class _Gpu:
    """The context, what is timed with, and memory to evict the L2 cache with."""

    @_reported_as_machine
    def __init__(self) -> None:
        self.context = driver.Context()
        self.stream = driver.Stream()
        self.flush_bytes = 2 * self.context.attribute("L2_CACHE_SIZE")
        self.flush = driver.allocate(self.flush_bytes)
        self.start, self.end = driver.Event(), driver.Event()
        self.head_start = HeadStart(self._flush_seconds(), RUNNER_SECONDS)

    def flush_cache(self, times: int) -> None:
        """Evict the L2 cache by writing twice its size, so many times."""
        for _ in range(times):
            self.stream.fill(self.flush, self.flush_bytes)

    def seconds(self) -> float:
        """Return device time between start and end, waited for."""
        self.stream.synchronize()
        return self.end.microseconds_since(self.start) * 1e-6

    def _flush_seconds(self) -> float:
        self.flush_cache(1)
        self.start.record(self.stream)
        self.flush_cache(FLUSHES_TIMED)
        self.end.record(self.stream)
        return self.seconds() / FLUSHES_TIMED


class CudaRunner:
    """A :class:`gpu_worker.targets.base.RunnerDevice` on the only visible GPU."""

    def __init__(self) -> None:
        """Start the driver, which takes longer than all else and touches no card; whether it works shows later."""
        with suppress(driver.DriverError, RuntimeError):  # cuda-bindings raise the latter without a driver
            driver.start()
        self._opened: _Gpu | None = None
        self._shared: driver.SharedMemory | None = None
        self._arena: int | None = None
        self._module: driver.Module | None = None
        self._functions: dict[str, driver.Function] = {}
        self._launches: tuple[Mapping[str, Any], ...] = ()
        self._slots: list[list[driver.PreparedLaunch]] = []
        self._graph: driver.Graph | None = None
        self._cubin = b""
        self._places: tuple[Mapping[str, int], ...] = ()

    def _open(self) -> _Gpu:
        """Return the GPU, opened by the first command, so that a failure to do so is an answer."""
        if self._opened is None:
            self._opened = _Gpu()
        return self._opened

    @_reported_as_machine
    def attach(self, handle: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Map the judge's arena; replaces an earlier one."""
        if len(descriptors) != 1:
            raise RunnerError("infrastructure", "a cuda arena comes with one descriptor")
        self._open()
        self._forget_graph()
        self._slots = []
        if self._shared is not None:
            self._shared.close()
            self._shared = self._arena = None
        self._shared = driver.SharedMemory.attach(descriptors[0], int(handle["bytes"]))
        self._arena = self._shared.pointer
        os.close(descriptors[0])

    def adopt(self, pointer: int) -> None:
        """Use this process's own memory as the arena, where there is no judge (profiling)."""
        self._arena = pointer

    @_reported_as_plan
    def load(self, binary: str, launches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Load the cubin in its initial state and check that every launch fits its kernel."""
        self._open()
        self._forget_graph()
        self._slots, self._launches, self._functions = [], (), {}
        self._cubin = Path(binary).read_bytes()
        self._places = ()
        kernels = self._load(launches)
        occupancies = [kernel["occupancy_pct"] for kernel in kernels if "occupancy_pct" in kernel]
        return {"kernels": kernels, **({"occupancy_pct": min(occupancies)} if occupancies else {})}

    def _load(self, launches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        if self._module is not None:
            self._module.unload()
        self._functions = {}
        self._module = driver.Module(self._cubin)
        shared: dict[str, int] = {}  # the most that any launch of a kernel asks for: it is allowed once for all of them
        for launch in launches:
            shared[launch["kernel"]] = max(launch["shared_bytes"], shared.get(launch["kernel"], 0))
        kernels = [self._prepare(self._module, launch, shared[launch["kernel"]]) for launch in launches]
        self._launches = tuple(launches)
        return kernels

    @_reported_as_plan
    def reset(self) -> None:
        """Load a cubin that has static variables anew: they are initialised again."""
        if not Image.read(self._cubin).device_variables():
            return
        self._forget_graph()
        self._load(self._launches)
        self.bind(self._places)

    def _prepare(self, module: driver.Module, launch: Mapping[str, Any], shared_bytes: int) -> dict[str, Any]:
        name = launch["kernel"]
        function = self._functions.setdefault(name, module.function(name))
        self._check_parameters(function, launch)
        if shared_bytes + function.attribute("SHARED_SIZE_BYTES") > _DEFAULT_SHARED_BYTES:
            function.allow_shared_bytes(shared_bytes)
        cluster = launch["cluster"]
        if cluster[0] * cluster[1] * cluster[2] > _PORTABLE_CLUSTER:
            function.allow_large_clusters()
        return self._facts(function, launch)

    def _check_parameters(self, function: driver.Function, launch: Mapping[str, Any]) -> None:
        planned, sizes = _sizes(launch), function.parameter_sizes()
        if sizes != planned:
            maps = len(launch["tensor_maps"])
            what = f"{len(planned) - maps} pointers" + (f" and {maps} tensor maps (of sizes {planned})" if maps else "")
            message = f"the plan gives {launch['kernel']!r} {what}, but its parameters have sizes {sizes}"
            raise RunnerError("invalid_plan", message)
        if launch["tensor_maps"] and self._open().context.compute_capability[0] < tensor_maps.FIRST_CAPABILITY:
            raise RunnerError("invalid_plan", "this device has no tensor maps: they need sm_90 or newer")

    def _facts(self, function: driver.Function, launch: Mapping[str, Any]) -> dict[str, Any]:
        x, y, z = launch["block"]
        threads = x * y * z
        facts: dict[str, Any] = {
            "kernel": launch["kernel"],
            "registers": function.attribute("NUM_REGS"),
            "local_bytes": function.attribute("LOCAL_SIZE_BYTES"),
            "static_shared_bytes": function.attribute("SHARED_SIZE_BYTES"),
            "dynamic_shared_bytes": launch["shared_bytes"],
        }
        if threads <= function.attribute("MAX_THREADS_PER_BLOCK"):
            blocks = function.blocks_per_unit(threads, launch["shared_bytes"])
            limit = self._open().context.attribute("MAX_THREADS_PER_MULTIPROCESSOR")
            facts["occupancy_pct"] = 100.0 * blocks * threads / limit
        return facts

    @_reported_as_plan
    def bind(self, slots: Sequence[Mapping[str, int]]) -> None:
        """Encode each launch's arguments for each slot."""
        if self._arena is None or not self._launches:
            raise RunnerError("infrastructure", "bind before attach and load")
        self._forget_graph()
        self._places = tuple(slots)
        self._slots = [[self._bound(launch, slot) for launch in self._launches] for slot in slots]

    def _bound(self, launch: Mapping[str, Any], slot: Mapping[str, int]) -> driver.PreparedLaunch:
        assert self._arena is not None
        geometry = driver.Geometry(
            grid=tuple(launch["grid"]),
            block=tuple(launch["block"]),
            shared_bytes=launch["shared_bytes"],
            cluster=tuple(launch["cluster"]),
            cooperative=launch["cooperative"],
        )
        arguments = [self._argument(launch, slot, name) for name in launch["args"]]
        return driver.PreparedLaunch(self._functions[launch["kernel"]], self._open().stream, arguments, geometry)

    def _argument(self, launch: Mapping[str, Any], slot: Mapping[str, int], name: str) -> int | tensor_maps.Encoded:
        assert self._arena is not None
        tensor_map = launch["tensor_maps"].get(name)
        if tensor_map is None:
            return self._arena + slot[name]
        try:
            return tensor_maps.encode(tensor_map, self._arena + slot[tensor_map["tensor"]])
        except tensor_maps.EncodingRefused as error:
            raise RunnerError("invalid_plan", f"tensor map {name!r}: {error}") from error

    @_reported_as_plan
    def run(self, order: Sequence[int]) -> float:
        """Execute the plan on the slots in ``order``, back to back; device seconds from first launch to last end."""
        launches = [launch for slot in order for launch in self._slots[slot]]
        return self._timed(lambda: _submit(launches))

    @_reported_as_plan
    def capture(self, order: Sequence[int]) -> str | None:
        """Make the launches for the slots in ``order`` one graph; says why where they cannot be captured."""
        self._forget_graph()
        launches = [launch for slot in order for launch in self._slots[slot]]
        try:
            self._graph = driver.Graph(self._open().stream, lambda: _submit(launches))
        except driver.DriverError as error:
            return str(error)
        return None

    @_reported_as_plan
    def replay(self) -> float:
        """Run the plan as :meth:`run` does, through the graph that was captured last."""
        if self._graph is None:
            raise RunnerError("infrastructure", "replay before capture")
        return self._timed(self._graph.launch)

    def _timed(self, submit: Callable[[], None]) -> float:
        gpu = self._open()
        driver.reset_persisting_cache()
        gpu.flush_cache(gpu.head_start.flushes())
        gpu.start.record(gpu.stream)
        submitting = time.perf_counter()
        submit()
        gpu.end.record(gpu.stream)
        gpu.head_start.record(time.perf_counter() - submitting)
        seconds = gpu.seconds()
        driver.reset_persisting_cache()  # lines that the kernel asked to keep would be missing in PyTorch's next block
        return seconds

    def _forget_graph(self) -> None:
        if self._graph is not None:
            self._graph.close()
        self._graph = None


def _sizes(launch: Mapping[str, Any]) -> list[int]:
    """Return bytes of each argument: pointers, and tensor maps by value."""
    return [tensor_maps.BYTES if name in launch["tensor_maps"] else 8 for name in launch["args"]]


def _submit(launches: Sequence[driver.PreparedLaunch]) -> None:
    for launch in launches:
        launch.submit()
