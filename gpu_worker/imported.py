"""Imported files in the supervisor: where they run, with what rights, and what can be said of them before they run.

Their runner has torch, a compiler and a private folder, and is otherwise as confined as any: no network, no files but
the interpreter's, no process outside its own name space. It never has the reference, its memory or an expected output.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from cupilot.domain.errors import InvalidInput
from cupilot.domain.evaluation import BuildReport, Failure, FailureKind
from cupilot.domain.imported import ImportedKernel, check_import, is_extension
from cupilot.domain.kernel import ResolvedPlan
from cupilot.domain.problem import Target
from gpu_worker.build import Build, BuiltKernel
from gpu_worker.bytecode import Bytecode
from gpu_worker.sandbox.files import SOURCE_ROOT
from gpu_worker.sandbox.limits import TORCH_THREADS, Limits
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import Access, BuildFacts, HostTarget

NO_PLAN = ResolvedPlan(launches=(), workspace={})

MEMORY_BYTES = 8 * 2**30
"""Private memory of each process on ``cpu``: torch, what the file keeps, and a compiler."""

FILE_BYTES = 2**30
CPU_SECONDS = 1800

_DEVICES = {
    Target.CPU: "gpu_worker.targets.imported_runner:cpu",
    Target.CUDA: "gpu_worker.targets.imported_runner:cuda",
}
_TOOLKITS = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")


class ImportedHost:
    """Starts runners with torch; see :class:`gpu_worker.targets.base.RunnerHost`."""

    trusts_runner = False
    limits = Limits(
        cpu_seconds=CPU_SECONDS,
        memory_bytes=MEMORY_BYTES,
        total_bytes=2 * MEMORY_BYTES,
        file_bytes=FILE_BYTES,
        open_files=4096,
        processes=TORCH_THREADS,
    )

    def __init__(self, host: HostTarget, bytecode: Bytecode) -> None:
        self.cpus = host.cpus
        self.runner_device = _DEVICES[host.target]
        self._host = host
        self._bytecode = bytecode

    def runner_access(self) -> Access:
        """Return access to torch and a compiler, as the judge has it, without this project's problems and verdicts."""
        access = self._host.judge_access()
        toolkit = _toolkit() if self._host.target is Target.CUDA else None
        folders = [path for path in access.read_only if path != SOURCE_ROOT / "cupilot"]
        environment = {**access.environment, "PATH": _search_path(toolkit)}
        if toolkit is not None:
            environment["CUDA_HOME"] = str(toolkit)
            folders += [] if toolkit.is_relative_to("/usr") else [toolkit]
        return replace(
            access,
            read_only=(*folders, self._bytecode.folder),
            environment=environment,
            subprocesses=True,
        )

    def runner_python_flags(self) -> tuple[str, ...]:
        """Return flags that isolate it; site-packages stay, because torch is there."""
        return ("-I", *self._bytecode.flags())


def stage(kernel: ImportedKernel, folder: Path, sandbox: Sandbox) -> BuiltKernel:
    """Put the file where its runner finds it, and return it as a build; it is compiled by the runner."""
    report = BuildReport(ok=True, compiler="torch", seconds=0.0, binary_hash=_digest(kernel.source))
    try:
        check_import(kernel.source)
    except InvalidInput as error:
        failure = Failure(kind=FailureKind.COMPILE_ERROR, message=error.message, details={"code": error.code})
        return _built(report.model_copy(update={"ok": False}), None, failure)
    missing = _missing(kernel, sandbox)
    if missing is not None:
        failure = Failure(kind=FailureKind.INFRASTRUCTURE, message=missing, details={"code": "not_installed"})
        return _built(report, None, failure)
    path = folder / _digest(kernel.source) / kernel.file_name
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_text(kernel.source)
    scratch.replace(path)
    return _built(report, path, None)


def _built(report: BuildReport, path: Path | None, failure: Failure | None) -> BuiltKernel:
    return BuiltKernel(NO_PLAN, Build(report, BuildFacts(), path, failure), failure)


def with_runner_log(built: BuiltKernel, failure: Failure | None) -> BuiltKernel:
    """Return the build of a file with the compiler's log, where the runner found that it does not compile."""
    if failure is None or failure.kind is not FailureKind.COMPILE_ERROR:
        return built
    log = str(failure.details.get("log", ""))[:16_000]
    report = built.build.report.model_copy(update={"ok": False, "log": log})
    return replace(built, build=replace(built.build, report=report))


def _missing(kernel: ImportedKernel, sandbox: Sandbox) -> str | None:
    """Return what this machine lacks for the file, and how to install it."""
    if not sandbox.kind.startswith("bwrap"):
        return "imported files may start processes, so they need user namespaces (bubblewrap), which are barred here"
    compiles = is_extension(kernel.source)
    if (compiles or "cpp_extension" in kernel.source) and _find_program("ninja") is None:
        return "the file compiles an extension, which needs ninja: install ninja (pip install ninja)"
    if compiles and kernel.file_name.endswith(".cu") and _toolkit() is None:
        return "the file is compiled by nvcc, and there is no CUDA toolkit on this machine: install one, set CUDA_HOME"
    return None


def _find_program(program: str) -> str | None:
    return shutil.which(program, path=_search_path(None))


def _search_path(toolkit: Path | None) -> str:
    """Return programs of the interpreter's own installation (ninja), of the CUDA toolkit (nvcc), and the system's."""
    folders: Collection[Path] = [Path(sys.prefix) / "bin", *([toolkit / "bin"] if toolkit is not None else [])]
    return ":".join([*map(str, folders), "/usr/local/bin", "/usr/bin", "/bin"])


def _toolkit() -> Path | None:
    """Return a CUDA toolkit with nvcc."""
    on_path = shutil.which("nvcc")
    candidates = [*filter(None, _TOOLKITS), *([str(Path(on_path).resolve().parent.parent)] if on_path else [])]
    return next((Path(path) for path in candidates if (Path(path) / "bin" / "nvcc").exists()), None)


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()
