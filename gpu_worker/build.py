"""Builds kernels: a sandboxed compiler behind a content-addressed cache on disk that remembers failures too.

The cache key covers everything that decides the binary: source, generated header, compiler, flags, architecture. What a
busy machine may have done (a tool that was killed, or waited for too long) is nobody's compile error and is not kept.
Two processes that ask for one build at once make it once. Knows no target's compiler; that is :class:`Toolchain`.
"""

from __future__ import annotations

import hashlib
import re
import signal
import tempfile
import time
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, JsonValue

from cupilot.domain.evaluation import MAX_LOG_CHARACTERS, BuildReport, Failure, FailureKind
from cupilot.domain.header import render
from cupilot.domain.kernel import Kernel, ResolvedPlan, resolve
from cupilot.domain.problem import ProblemFacts
from cupilot.domain.value import digest
from gpu_worker.build_cache import SCRATCH, BuildCache
from gpu_worker.sandbox import private_user
from gpu_worker.sandbox.child import Finished
from gpu_worker.sandbox.leftovers import remove_tree, take_file
from gpu_worker.sandbox.limits import COMPILER_PROCESSES, Limits
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.sandbox.watch import Excess
from gpu_worker.targets.base import BuildFacts, Toolchain

COMPILE_SECONDS = 60.0
"""Of processor time. A kernel builds in 0.1 to 3 s; more than a minute is a template bomb."""

COMPILE_MEMORY_BYTES = 4 * 2**30
COMPILE_FILE_BYTES = 256 * 2**20
INSPECT_SECONDS = 20.0
BUSY = 3.0
"""A tool is waited for this many times its processor time: what has not used that up by then, the machine held back."""

TOOL_FAULT = 3
"""Exit code of our compiler processes where a tool failed for a reason that is not the source."""

_KILLED = re.compile(
    r"^\S+: fatal error: Killed signal terminated program \S+\ncompilation terminated\.\s*\Z", re.MULTILINE
)
"""Last words of a compiler's driver where the machine killed one of its processes, mostly for memory. A source
can print such a line, but not the last one."""

_ERROR_LINE = re.compile(r"^kernel\.\w+[:(](\d+).*?error:? ?(.*)$", re.MULTILINE)
_MAX_ERROR_LINES = 8


@dataclass(frozen=True)
class Build:
    """A finished build."""

    report: BuildReport
    facts: BuildFacts
    binary: Path | None
    failure: Failure | None


@dataclass(frozen=True)
class BuiltKernel:
    """A kernel as a problem's machine code and launches; ``failure`` says why it may not run."""

    plan: ResolvedPlan
    build: Build
    failure: Failure | None

    @property
    def binary(self) -> Path:
        """The machine code; only where there is no failure."""
        assert self.build.binary is not None
        return self.build.binary

    @property
    def identity(self) -> str:
        """Equal for kernels of one machine code and one way to launch it."""
        return digest([self.build.report.binary_hash, self.plan.model_dump(mode="json")])

    def made_ahead(self) -> BuiltKernel:
        """Return the same, with a report that says that it was made before the kernel's turn."""
        report = self.build.report.model_copy(update={"ahead": True})
        return replace(self, build=replace(self.build, report=report))


class _Unsettled(Exception):
    """Another run of the same tools may come to another end."""

    def __init__(self, failure: Failure, log: str = "") -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.log = log


class _Record(BaseModel):
    """Record that the cache keeps beside the binary."""

    report: BuildReport
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    instructions: dict[str, int] = {}
    failure: Failure | None = None


class Builder:
    """Builds for one target, with one cache folder."""

    def __init__(self, toolchain: Toolchain, sandbox: Sandbox, folder: Path, built_for: str) -> None:
        self._toolchain = toolchain
        self.sandbox = sandbox
        self._cache = BuildCache(folder)
        self._built_for = built_for

    def within(self, sandbox: Sandbox) -> Builder:
        """Return the same builder, with the same cache, whose compilers run in another sandbox."""
        builder = copy(self)
        builder.sandbox = sandbox
        return builder

    def build_kernel(self, kernel: Kernel, facts: ProblemFacts, *, cores: tuple[int, ...] | None = None) -> BuiltKernel:
        """Build a kernel for a problem and hold it to the policy; raises InvalidPlan where the two do not fit."""
        plan = resolve(kernel, facts)
        build = self.build(kernel.source, render(facts, kernel.plan.values()), cores=cores)
        failure = build.failure
        if build.binary is not None:
            refusal = self._toolchain.refusal(kernel.source, build.facts, facts)
            failure = None if refusal is None else Failure(kind=FailureKind.POLICY_BREACH, message=refusal)
        return BuiltKernel(plan, build, failure)

    def build(self, source: str, header: str, *, cores: tuple[int, ...] | None = None) -> Build:
        """Return the binary of a source with its ``problem.h``, from the cache where it was built before.

        ``cores`` are those that a compiler may run on, by default all.
        """
        tools = self._toolchain
        key = digest([source, header, tools.compiler, list(tools.flags), tools.suffix, self._built_for])
        with self._cache.locked(key) as place:
            cached = self._read(place)
            if cached is not None:
                return cached
            try:
                self._make(place, source, header, cores)
            except _Unsettled as end:
                report = BuildReport(ok=False, compiler=tools.compiler, flags=tools.flags, seconds=0.0, log=end.log)
                return Build(report, BuildFacts(), None, end.failure)
            made = self._read(place, cached=False)
        self._cache.made()
        assert made is not None
        return made

    def _read(self, place: Path, *, cached: bool = True) -> Build | None:
        try:
            record = _Record.model_validate_json((place / "record.json").read_bytes())
        except (OSError, ValueError):
            return None
        binary = place / "kernel.bin" if record.report.ok else None
        if binary is not None and not binary.exists():
            return None
        facts = BuildFacts(record.registers, record.spill_bytes, record.shared_bytes, record.instructions)
        report = record.report.model_copy(update={"cached": cached})
        return Build(report, facts, binary, record.failure)

    def _make(self, place: Path, source: str, header: str, cores: tuple[int, ...] | None) -> None:
        scratch, ours = (Path(tempfile.mkdtemp(prefix=prefix, dir=self._cache.folder)) for prefix in SCRATCH)
        try:
            for folder in (scratch, ours):
                (folder / "problem.h").write_text(header)
                (folder / f"kernel{self._toolchain.suffix}").write_text(source)
            record = self._compile(scratch, ours, cores)
            (ours / "record.json").write_text(record.model_dump_json())
            remove_tree(place)
            ours.replace(place)
        finally:
            remove_tree(scratch)
            remove_tree(ours)

    def _compile(self, folder: Path, ours: Path, cores: tuple[int, ...] | None) -> _Record:
        """Compile in ``folder``, which holds whatever the compiler leaves there, and take its products to ``ours``."""
        limits = Limits(
            cpu_seconds=int(COMPILE_SECONDS),
            memory_bytes=COMPILE_MEMORY_BYTES,
            file_bytes=COMPILE_FILE_BYTES,
            processes=COMPILER_PROCESSES,
            cpus=cores,
        )
        started = time.monotonic()
        done = self.sandbox.run(self._toolchain.compile_program(folder), limits, BUSY * COMPILE_SECONDS)
        seconds = time.monotonic() - started
        log = done.stderr.replace(f"{folder}/", "").replace(str(folder), "")[:MAX_LOG_CHARACTERS]
        if held_back(done):
            raise _Unsettled(_machine("the compiler", done), log)
        if done.code == TOOL_FAULT:
            raise _Unsettled(compile_failure(done, log), log)
        taken = [take_file(folder / name, ours / name, COMPILE_FILE_BYTES) for name in self._toolchain.products]
        ok = done.code == 0 and all(taken)
        private_user.share(ours)
        facts = self._facts(ours, log, cores) if ok else BuildFacts()
        report = BuildReport(
            ok=ok,
            compiler=self._toolchain.compiler,
            flags=self._toolchain.flags,
            seconds=seconds,
            log=log,
            binary_hash=hashlib.sha256((ours / "kernel.bin").read_bytes()).hexdigest() if ok else None,
            registers=facts.registers,
            spill_bytes=facts.spill_bytes,
            shared_bytes=facts.shared_bytes,
            instructions=dict(facts.instructions),
        )
        return _Record(
            report=report,
            registers=facts.registers,
            spill_bytes=facts.spill_bytes,
            shared_bytes=facts.shared_bytes,
            instructions=dict(facts.instructions),
            failure=None if ok else compile_failure(done, log),
        )

    def _facts(self, folder: Path, log: str, cores: tuple[int, ...] | None) -> BuildFacts:
        program = self._toolchain.inspect_program(folder)
        inspection = ""
        if program is not None:
            memory = COMPILE_MEMORY_BYTES
            limits = Limits(
                cpu_seconds=int(INSPECT_SECONDS),
                memory_bytes=memory,
                file_bytes=0,
                processes=COMPILER_PROCESSES,
                cpus=cores,
            )
            done = self.sandbox.run(program, limits, BUSY * INSPECT_SECONDS)
            if held_back(done):
                raise _Unsettled(_machine("the disassembler", done), log)
            inspection = done.stdout
        return self._toolchain.facts(log, inspection)


def held_back(done: Finished) -> bool:
    """Return whether the machine, and not the source, may be why a tool did not finish."""
    if done.excess is not None:
        return False
    if done.timed_out:
        return not done.idle
    if not_started(done):
        return True
    return done.code == -signal.SIGKILL or (done.code != 0 and _KILLED.search(done.stderr) is not None)


_NO_SANDBOX = re.compile(r"bwrap: (?!.*:\d+:)[^\n]*\n?\Z")
"""All that bubblewrap says before it gives up. A source can take its name (``#line``), but its errors have a line."""


def not_started(done: Finished) -> bool:
    """Return whether the sandbox itself failed, so that the tool never ran."""
    return done.code != 0 and _NO_SANDBOX.match(done.stderr) is not None


_ROOM = "run fewer workers on this machine, or give it more memory and cores"


def _machine(tool: str, done: Finished) -> Failure:
    details: dict[str, JsonValue] = {"stderr": done.stderr[-2000:]}
    if not_started(done):
        message = f"the sandbox could not start {tool}: {done.stderr.splitlines()[0][:500]}"
        return Failure(kind=FailureKind.INFRASTRUCTURE, message=message, details=details)
    why = "had to wait for too long" if done.timed_out else "was killed, for memory or from outside"
    return Failure(kind=FailureKind.INFRASTRUCTURE, message=f"{tool} {why}: {_ROOM}", details=details)


def compile_failure(done: Finished, log: str) -> Failure:
    """Return why a compiler made no binary."""
    if done.excess is not None:
        limit = f"{COMPILE_MEMORY_BYTES >> 30} GiB of memory"
        allowed = limit if done.excess is Excess.MEMORY else f"{COMPILER_PROCESSES} processes and threads"
        message = f"the compiler was stopped because it used more than {allowed}"
        return Failure(kind=FailureKind.COMPILE_ERROR, message=message, details={"log": log[-2000:]})
    if done.timed_out:
        message = "the compiler waited for a file that has no end: include and embed plain files only"
        return Failure(kind=FailureKind.COMPILE_ERROR, message=message, details={"log": log[-2000:]})
    if done.code == -signal.SIGXCPU:
        message = f"the compiler did not finish within {COMPILE_SECONDS:.0f} s of processor time"
        return Failure(kind=FailureKind.COMPILE_ERROR, message=message, details={"log": log[-2000:]})
    errors = _ERROR_LINE.findall(log)[:_MAX_ERROR_LINES]
    lines: list[JsonValue] = [int(line) for line, _ in errors]
    if errors:
        message = "\n".join(f"line {line}: {text}" for line, text in errors)
    else:
        message = log[-4000:].strip() or f"the compiler ended with code {done.code} and printed nothing"
    return Failure(kind=FailureKind.COMPILE_ERROR, message=message, details={"lines": lines, "log": log[:4000]})
