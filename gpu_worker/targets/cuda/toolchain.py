"""NVRTC as the compiler of the ``cuda`` target, and what the disassembly says about its cubins.

Describes programs for the build service; the compiling itself is :mod:`gpu_worker.targets.cuda.compiler`, sandboxed. No
fast-math: a kernel that wants approximations calls the intrinsics by name.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import weakref
from dataclasses import replace
from pathlib import Path

from cupilot.domain import device_headers as headers
from cupilot.domain.problem import ProblemFacts
from gpu_worker.sandbox import private_user
from gpu_worker.sandbox.files import SOURCE_ROOT, python_folders
from gpu_worker.sandbox.limits import Limits
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import Access, BuildFacts, Program
from gpu_worker.targets.cuda import compiler, installation, policy

_ACCELERATED_FROM = 90
"""From sm_90 on, the architecture-specific variant (``sm_90a``) is needed for wgmma and setmaxnreg."""

PRECOMPILE_SECONDS = 120.0


def architecture(arch: str) -> str:
    """Return the architecture to build for on a device of this one: ``sm_90`` -> ``sm_90a``."""
    return f"{arch}a" if int(arch.removeprefix("sm_")) >= _ACCELERATED_FROM else arch


def python_access(access: Access) -> Access:
    """Add what a Python process that uses CUDA libraries needs to ``access``; sandboxes show /usr anyway."""
    read_only = (*python_folders(), *installation.driver_folders(), *access.read_only)
    return replace(
        access,
        read_only=tuple(path for path in read_only if not path.is_relative_to("/usr")),
        environment={"LD_LIBRARY_PATH": installation.library_path(), **access.environment},
    )


def python_program(script: Path, *arguments: str, access: Access) -> Program:
    """Return a script of this package that takes the source root as its first argument; ``access`` as it stands."""
    return Program((sys.executable, "-I", str(script), str(SOURCE_ROOT), *arguments), access)


def compiler_program(*arguments: str, access: Access) -> Program:
    """Run :mod:`gpu_worker.targets.cuda.compiler` in an interpreter without packages: it needs none."""
    return Program((sys.executable, "-I", "-S", "-c", compiler.START, str(SOURCE_ROOT), *arguments), access)


class CubinReader:
    """Reads what machine code shows, whichever compiler made it."""

    suffix = ".cu"
    products: tuple[str, ...] = ("kernel.bin", "resources.txt")

    def __init__(self) -> None:
        """Find the disassembler; raises Unavailable if there is none."""
        self._disassembler = installation.disassembler()

    def inspect_program(self, folder: Path) -> Program | None:
        """Print ptxas's resources and the families of instructions in the disassembly, as JSON."""
        access = python_access(Access(read_only=(folder, self._disassembler.parent), subprocesses=True))
        return compiler_program("inspect", str(folder), str(self._disassembler), access=access)

    def facts(self, compile_log: str, inspection: str) -> BuildFacts:  # noqa: ARG002  the inspection says it all
        """Read what :meth:`inspect_program` printed; empty if it failed, which :meth:`refusal` then refuses."""
        try:
            shown = json.loads(inspection)
        except ValueError:
            return BuildFacts()
        return BuildFacts(shown["registers"], shown["spill_bytes"], shown["shared_bytes"], shown["instructions"])

    def refusal(self, kernel_source: str, facts: BuildFacts, problem: ProblemFacts) -> str | None:  # noqa: ARG002
        """Return the rule of the policy that the machine code breaks, if any."""
        if not facts.instructions.get("instructions"):
            return "the machine code could not be disassembled"
        return policy.breach(facts.instructions, problem.policy, {spec.dtype for spec in problem.tensors})


class CudaToolchain(CubinReader):
    """Builds cubins for one architecture; needs neither GPU nor driver."""

    def __init__(self, arch: str, *, line_info: bool = False) -> None:
        """Make a compiler for ``arch``, e.g. ``sm_90``; ``line_info`` is for profilers."""
        super().__init__()
        self._includes = installation.include_folders()
        self._nvrtc = installation.nvrtc()
        self._readable: tuple[Path, ...] = (self._includes[0], self._nvrtc.parent)
        self.compiler = installation.compiler_version()
        self.flags = (
            f"--gpu-architecture={architecture(arch)}",
            "--std=c++17",
            "--device-as-default-execution-space",
            "--ptxas-options=-v",
            *(("-lineinfo",) if line_info else ()),
        )
        self._precompiled: Path | None = None
        self._lock = threading.Lock()
        self._folder = Path(tempfile.mkdtemp(prefix="cupilot-nvrtc-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def compile_program(self, folder: Path) -> Program:
        """Run NVRTC on ``kernel.cu``; see :class:`gpu_worker.targets.base.Toolchain`."""
        pch = ""
        readable = self._readable
        if headers.wants_precompiled((folder / f"kernel{self.suffix}").read_text(encoding="utf-8")):
            precompiled = self._precompile()
            pch = str(precompiled)
            readable = (*readable, precompiled)
        access = python_access(Access(read_only=readable, writable=(folder,)))
        return compiler_program("build", str(folder), str(self._nvrtc), pch, *self._options(), access=access)

    def _precompile(self) -> Path:
        """Return the slow headers in precompiled form, made once, and again where somebody has tidied them away; an
        empty file where this machine cannot make them.
        """
        with self._lock:
            if self._precompiled is None or not self._precompiled.exists():
                path = self._folder / "headers.pch"
                path.parent.mkdir(mode=0o700, exist_ok=True)
                access = python_access(Access(read_only=self._readable, writable=(self._folder,)))
                making = compiler_program("precompile", str(path), str(self._nvrtc), *self._options(), access=access)
                if Sandbox().run(making, Limits(), PRECOMPILE_SECONDS).code != 0:
                    path.write_bytes(b"")
                private_user.share(path)
                self._precompiled = path
        return self._precompiled

    def _options(self) -> list[str]:
        return [*self.flags, *(f"--include-path={folder}" for folder in self._includes)]
