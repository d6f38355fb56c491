"""Find CUDA's headers and disassembler on this machine: the wheels, else a toolkit. Loads no CUDA library."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

from cupilot.domain.errors import Unavailable

_WHEEL_HINT = "install the `gpu` extra: pip install 'cupilot[gpu]'"
DEVICES = Path("/dev")
_NVCC_HINT = "install a CUDA toolkit and set CUDA_HOME, or pip install nvidia-cuda-nvcc nvidia-nvvm; or use nvrtc"


@cache
def include_folders() -> tuple[Path, ...]:
    """Find ``cuda_fp16.h``, ``cooperative_groups.h`` and CCCL's ``cuda/std``; raises :class:`Unavailable`."""
    for root in (*_wheel_roots(), *_toolkits()):
        include = (root / "include").resolve()
        if (include / "cooperative_groups.h").exists() and (include / "cccl" / "cuda" / "std" / "cstdint").exists():
            return include, include / "cccl"
    raise Unavailable("no CUDA headers on this machine", hint=_WHEEL_HINT)


@cache
def disassembler() -> Path:
    """Return ``nvdisasm``; raises :class:`Unavailable`, because a kernel whose code nobody read cannot be trusted."""
    for root in (*_wheel_roots(), *_toolkits()):
        path = root / "bin" / "nvdisasm"
        if path.exists():
            return path.resolve()
    program = shutil.which("nvdisasm")
    if program is None:
        raise Unavailable("no nvdisasm on this machine", hint=_WHEEL_HINT)
    return Path(program).resolve()


@cache
def nvrtc() -> Path:
    """Return NVRTC's library; raises :class:`Unavailable`."""
    for root in (*_wheel_roots(), *_toolkits()):
        for path in sorted(root.glob("lib*/libnvrtc.so.[0-9]*"), reverse=True):
            return path.resolve()
    raise Unavailable("NVRTC is not installed", hint=_WHEEL_HINT)


@cache
def compiler_version() -> str:
    """Return NVRTC's version, e.g. ``nvrtc 13.0.88``; raises :class:`Unavailable`.

    Of a wheel by its metadata, else as far as the library's file says it: a toolkit's has the full version in its name.
    """
    library = nvrtc()
    if any(library.is_relative_to(root.resolve()) for root in _wheel_roots()):
        with suppress(importlib.metadata.PackageNotFoundError):
            return f"nvrtc {importlib.metadata.version('nvidia-cuda-nvrtc')}"
    return f"nvrtc {library.name.removeprefix('libnvrtc.so.')}"


@cache
def nvcc() -> Path:
    """Find nvcc with the parts that it needs; raises :class:`Unavailable` without them, or without a host compiler."""
    program = shutil.which("nvcc")
    on_path = [Path(program).resolve().parent.parent] if program else []
    for root in (*_toolkits(), *on_path, *_wheel_roots()):
        if (root / "bin" / "nvcc").exists() and (root / "nvvm" / "bin" / "cicc").exists():
            if shutil.which("g++") is None:
                raise Unavailable("nvcc needs a host compiler, and there is no g++", hint="install g++")
            return (root / "bin" / "nvcc").resolve()
    raise Unavailable("nvcc is not installed on this machine", hint=_NVCC_HINT)


@cache
def nvcc_version() -> str:
    """Return nvcc's full version, e.g. ``nvcc 13.0.88``; raises :class:`Unavailable`."""
    done = subprocess.run([nvcc(), "--version"], capture_output=True, text=True, timeout=30, check=False)
    version = re.search(r"\bV(\d+(?:\.\d+)+)", done.stdout)
    if done.returncode != 0 or version is None:
        raise Unavailable(f"the version of nvcc cannot be read: {(done.stderr or done.stdout).strip()[:200]}")
    return f"nvcc {version[1]}"


@cache
def c_compiler() -> Path | None:
    """Return the C compiler that Triton, and so torch.compile, builds its launchers with."""
    host_compiler = next((path for name in ("gcc", "cc", "clang") if (path := shutil.which(name))), None)
    return None if host_compiler is None else Path(host_compiler).resolve()


def library_path() -> str:
    """Return ``LD_LIBRARY_PATH`` for CUDA processes: our own, since a driver may live outside the system's path."""
    return os.environ.get("LD_LIBRARY_PATH", "")


def driver_folders() -> tuple[Path, ...]:
    """Return folders that the library path names."""
    paths = [Path(entry).resolve() for entry in library_path().split(":") if entry]
    return tuple(path for path in paths if path.is_dir())


def device_nodes(minor: int | None) -> tuple[Path, ...]:
    """Return the nodes that a CUDA process opens: the card's own, by its minor number, and those that all cards share.

    Who sees one card's node opens one card. Where the number is unknown or has no node, all cards' are given.
    """
    nodes = sorted(path for path in DEVICES.glob("nvidia*") if not path.is_dir())
    own = DEVICES / f"nvidia{minor}"
    if minor is None or own not in nodes:
        return tuple(nodes)
    return tuple(node for node in nodes if node == own or not node.name.removeprefix("nvidia").isdigit())


def _wheel_roots() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return [root for location in locations for root in sorted(Path(location).glob("cu[0-9]*"), reverse=True)]


def _toolkits() -> list[Path]:
    named = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    return [Path(path) for path in (*named, "/usr/local/cuda")]
