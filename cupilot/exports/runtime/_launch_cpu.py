"""Compile the kernel with g++ on first use, keep the library in the user's cache folder, and call it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ._buffers import places, prepare


class Launcher:
    """One kernel with its launch plan: tensors in, tensors out."""

    def __init__(self, spec: dict[str, Any], source: str, headers: dict[str, str]) -> None:
        """Take the texts that the source may include, by name, as ``headers``."""
        self.spec = spec
        self._source = source
        self._headers = headers
        self._functions: list[Any] | None = None
        self._lock = threading.Lock()
        self._places = places(spec)

    def trouble(self, device: torch.device) -> str | None:
        """Return why the kernel cannot run on this device; None where it can (it is compiled and loaded then)."""
        if device.type != "cpu":
            return f"the kernel is for the CPU, not for {device.type}"
        try:
            self._load()
        except (RuntimeError, OSError) as error:
            return f"the kernel cannot be prepared: {error}"
        return None

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the outputs."""
        functions = self._load() if self._functions is None else self._functions
        buffers, outputs = prepare(self.spec, tensors)
        addresses = [tensor.data_ptr() for tensor in buffers]
        for function, wanted in zip(functions, self._places, strict=True):
            function(*[addresses[place] for place in wanted])
        return outputs

    def _load(self) -> list[Any]:
        with self._lock:
            if self._functions is None:
                library = ctypes.CDLL(str(compile_source(self._source, self._headers, self.spec["options"])))
                self._functions = [_function(library, launch) for launch in self.spec["launches"]]
            return self._functions


def compile_source(source: str, headers: dict[str, str], options: Sequence[str]) -> Path:
    """Return the shared library; RuntimeError with the compiler's messages where it does not compile."""
    # The library is for this machine's processor: a home folder may be shared between machines.
    parts = [source, *headers.values(), *options, platform.machine(), _processor()]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cupilot-exports"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    place = base / f"{key}.so"
    if place.exists():
        return place
    with tempfile.TemporaryDirectory(dir=base) as name:
        folder = Path(name)
        for header, text in headers.items():
            (folder / header).write_bytes(text.encode())
        (folder / "kernel.cpp").write_bytes(source.encode())
        command = ["g++", *options, "-I", name, "-o", str(folder / "kernel.so"), str(folder / "kernel.cpp")]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the kernel does not compile: {done.stderr[:4000]}")
        (folder / "kernel.so").replace(place)
    return place


def _function(library: ctypes.CDLL, launch: dict[str, Any]) -> Any:
    name = launch["kernel"]
    try:
        function = library[name]
    except AttributeError as error:
        raise RuntimeError(f'the library has no function {name}; is it declared extern "C"?') from error
    function.restype, function.argtypes = None, [ctypes.c_void_p] * len(launch["args"])
    return function


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
