"""Compiled bytecode for judges: made once by a process that runs no user code, then only read.

A judge sees the installed packages read-only, so it could never keep the bytecode of torch where the installer did not
compile it, and would take 14 s instead of 2 s to import it, every time. A cache that judges may write would let one
user's reference plant code for the next one's.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gpu_worker.sandbox.files import SOURCE_ROOT
from gpu_worker.sandbox.limits import TORCH_THREADS, Limits
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import HostTarget, Program

WARM_SECONDS = 300.0

_JUDGING = """
import sys
sys.path.insert(0, sys.argv[1])
import gpu_worker.judge.main, gpu_worker.reference.main, torch
from gpu_worker.reference.trace import trace
layer = torch.nn.Linear(4, 4)
with torch.no_grad():
    x = torch.rand(2, 4)
    trace(lambda: [torch.softmax(layer(x), 1)], {"x": x, **dict(layer.named_parameters())})
"""

_COMPILING = """
import torch, torch._inductor.compile_fx, torch._inductor.codegen.cpp, torch._dynamo
"""

_INSTALLED_SAMPLE = "_inductor/codegen/cpp.py"
"""If this module of torch is compiled, so is all that judges import: by the installer, or by somebody's torch.compile.

``import torch`` alone leaves it out, and with it 5 of the 9 s that a judge takes to import what compiles.
"""


class Bytecode:
    """A bytecode folder for this interpreter and torch version; unused where the installer compiled the packages."""

    def __init__(self, folder: Path) -> None:
        key = hashlib.sha256(f"{sys.version}|{_torch_version()}|{sys.prefix}|{SOURCE_ROOT}".encode()).hexdigest()[:16]
        self.folder = folder / key
        self.needed = not _installed()
        self.folder.mkdir(parents=True, exist_ok=True)

    def ensure(self, target: HostTarget, sandbox: Sandbox, *, compiling: bool = False) -> None:
        """Fill the folder if that has not been done; ``compiling`` adds what torch.compile imports."""
        if not self.needed:
            return
        # beside the folder: a program may lock any file that it sees
        with self.folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._fill("judging", _JUDGING, target, sandbox)
            if compiling:
                self._fill("compiling", _COMPILING, target, sandbox)

    def _fill(self, name: str, imports: str, target: HostTarget, sandbox: Sandbox) -> None:
        done = self.folder / f"{name}.done"
        if done.exists():
            return
        access = target.judge_access()
        grown = replace(access, writable=(*access.writable, self.folder), subprocesses=True)
        argv = (sys.executable, "-I", *self.flags(), "-c", imports, str(SOURCE_ROOT))
        sandbox.run(Program(argv, grown), Limits(open_files=4096, processes=TORCH_THREADS), WARM_SECONDS)
        done.touch()  # even if an import failed: judges work without the cache, only slower

    def flags(self) -> tuple[str, ...]:
        """Return interpreter flags that make Python use the folder."""
        return ("-X", f"pycache_prefix={self.folder}") if self.needed else ()


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"


def _installed() -> bool:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    sample = Path(spec.origin).parent / _INSTALLED_SAMPLE
    return Path(importlib.util.cache_from_source(str(sample))).exists()
