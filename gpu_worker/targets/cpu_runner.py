"""The ``cpu`` target in the runner: loads a shared object with ctypes, calls its functions. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_worker.sandbox import seccomp
from gpu_worker.targets.base import RunnerError
from gpu_worker.targets.elf import Image, InvalidElf

_SYSTEM_LIBRARIES = ("libm.so.6", "libmvec.so.1", "libgcc_s.so.1", "libstdc++.so.6", "libgomp.so.1")

Call = tuple[Callable[..., None], tuple[ctypes.c_void_p, ...]]


class CpuRunner:
    """Runs one kernel; see :class:`gpu_worker.targets.base.RunnerDevice`."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._base = 0
        self._launches: list[tuple[Callable[..., None], tuple[str, ...]]] = []
        self._slots: list[list[Call]] = []
        self._statics: list[tuple[int, bytes]] = []
        """Address and first contents of the library's writable memory."""

    def attach(self, handle: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Map the judge's memory file. Populated at once: first touches are not the kernel's cost."""
        size = int(handle["size"])
        self._slots = []
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self._memory = mmap.mmap(descriptors[0], size, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        os.close(descriptors[0])
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def load(self, binary: str, launches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Load the library, look its functions up, then give up every right that computing does not need.

        The library's constructors run while it is loaded, so rights are given up in two steps. No memory may be written
        and then executed: what the disassembly showed is all that runs.
        """
        _load_system_libraries()
        image = _checked(Path(binary))
        seccomp.install(seccomp.loading_filter(image.code_maps()))
        try:
            library = ctypes.CDLL(binary)
        except OSError as error:
            raise RunnerError("launch_error", f"the binary cannot be loaded: {error}") from error
        self._launches = [(_function(library, launch["kernel"]), tuple(launch["args"])) for launch in launches]
        base = _base_address(self._launches[0][0])
        self._statics = [
            (base + start, ctypes.string_at(base + start, size)) for start, size in image.writable_places()
        ]
        seccomp.install(seccomp.kernel_filter())
        return {}

    def reset(self) -> None:
        """Write the library's first contents back: static variables are what they were after its constructors ran."""
        for address, contents in self._statics:
            ctypes.memmove(address, contents, len(contents))

    def bind(self, slots: Sequence[Mapping[str, int]]) -> None:
        """Turn offsets into argument lists."""
        self._slots = [
            [(function, self._arguments(slot, names)) for function, names in self._launches] for slot in slots
        ]

    def _arguments(self, slot: Mapping[str, int], names: Sequence[str]) -> tuple[ctypes.c_void_p, ...]:
        return tuple(ctypes.c_void_p(self._base + slot[name]) for name in names)

    def run(self, order: Sequence[int]) -> float:
        """Call every launch of the plan for each slot of ``order``."""
        sequence = [self._slots[index] for index in order]
        started = time.perf_counter()
        for calls in sequence:
            for function, arguments in calls:
                function(*arguments)
        return time.perf_counter() - started


def _checked(binary: Path) -> Image:
    """Return a library's image; refuse one that could run code that no disassembly shows."""
    try:
        image = Image.read(binary.read_bytes())
        reason = image.writable_code() or image.unnamed_code()
    except InvalidElf as error:
        raise RunnerError("launch_error", f"the binary cannot be loaded: {error}") from error
    if reason is not None:
        raise RunnerError("policy_breach", f"the binary may run code that is not in its disassembly: {reason}")
    return image


class _Symbol(ctypes.Structure):
    """``Dl_info`` of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _base_address(function: Callable[..., None]) -> int:
    """Return the address at which the function's library is mapped."""
    symbol = _Symbol()
    ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(symbol))  # type: ignore[arg-type]
    return int(symbol.base)


def _load_system_libraries() -> None:
    """Load what kernels may link, whose constructors are the system's: libgomp's reads more than a kernel's may."""
    for name in _SYSTEM_LIBRARIES:
        with contextlib.suppress(OSError):  # a kernel that needs it is refused when it is loaded
            ctypes.CDLL(name)


def _function(library: ctypes.CDLL, name: str) -> Callable[..., None]:
    try:
        function = library[name]
    except AttributeError as error:
        message = f'the binary has no function {name!r}; is it declared extern "C" and not static?'
        raise RunnerError("launch_error", message, kernel=name) from error
    function.restype = None
    return function
