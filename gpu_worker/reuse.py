"""The recall stage: earlier evaluations on disk, under a hash of all that decides them, so that none is made twice.

The key covers the machine code and how it is launched, the problem with its policy and laws, the judge's own code, the
device and the software around it. Not the source: kernels that differ in words only are one. Failures of the machine,
and those that another run might not have, are never kept; compile errors are the build cache's. The folder stays below
a size: the evaluation that was not used for longest goes first.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

from pydantic import JsonValue

import cupilot
from cupilot.domain.evaluation import BuildReport, Evaluation, FailureKind, Phase
from cupilot.domain.hardware import Environment
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel
from cupilot.domain.value import digest
from gpu_worker.build import BuiltKernel
from gpu_worker.profiling import Build, Profiling
from gpu_worker.stages import Call, EvaluationInput, Recalled
from gpu_worker.sweep import Sweep, can_vary

_UNSETTLED = frozenset(
    {
        FailureKind.INFRASTRUCTURE, FailureKind.TIMEOUT, FailureKind.OUT_OF_MEMORY, FailureKind.CLOCK_MISMATCH,
        FailureKind.BELOW_FLOOR,
    }
)  # fmt: skip
"""Failures that may be the machine's, or that new peaks may take back."""


MOST_BYTES = 256 * 2**20
"""Some ten thousand evaluations: more than a card makes in a week."""
PRUNED_TO = 0.8
"""Share of :data:`MOST_BYTES` that pruning leaves, so that it is seldom done."""
LOOK_EVERY = 200
"""Evaluations that a process keeps between two looks at the folder's size, the first of which is looked at too."""


class EvaluationStore:
    """Evaluations under one folder of at most ``most_bytes``, or little more; several processes may use it."""

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES, look_every: int = LOOK_EVERY) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._look_every = look_every
        self._kept = 0

    def get(self, key: str) -> Evaluation | None:
        """Return the evaluation that was kept under this key; None where there is none that can be read."""
        path = self._path(key)
        try:
            evaluation = Evaluation.model_validate_json(path.read_bytes())
            os.utime(path)
        except (OSError, ValueError):
            return None
        return evaluation

    def put(self, key: str, evaluation: Evaluation) -> None:
        """Keep an evaluation, unless another run might end otherwise."""
        if evaluation.failure is not None and evaluation.failure.kind in _UNSETTLED:
            return
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_text(evaluation.model_dump_json())
        scratch.replace(path)
        if self._kept % self._look_every == 0:
            self._prune()
        self._kept += 1

    def _prune(self) -> None:
        """Remove the files that were not used for longest, if the folder is too large; others may do so meanwhile."""
        files = []
        for path in self._folder.glob("??/*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                files.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in files)
        if total <= self._most_bytes:
            return
        for _, size, path in sorted(files):
            if total <= PRUNED_TO * self._most_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


class Recall:
    """Looks kernels up among the evaluations that were made on one device."""

    def __init__(self, sweep: Sweep, profiling: Profiling, build: Build) -> None:
        self._sweep = sweep
        self._profiling = profiling
        self._build = build

    def look_up(
        self,
        store: EvaluationStore,
        subject: EvaluationInput,
        built: BuiltKernel,
        environment: Environment,
        call: Call,
    ) -> Recalled:
        """Return the evaluation of the same machine code, with counters if the kernel is promoted by now.

        None of a fresh call, which is kept in its place.
        """
        points = self._sweep.limit if can_vary(subject.kernel) else 0
        key = key_of(subject, built, environment, points)
        known, report = None if call.fresh else store.get(key), built.build.report
        if known is None:
            return Recalled(key, None, report)
        if not of_this_source(known, subject.kernel) and isinstance(subject.kernel, Kernel):
            chosen = self._sweep.chosen_build(known, subject.kernel, subject.preparation.facts, points)
            if chosen is None:
                return Recalled(key, None, report)
            report = chosen.build.report
        if self._profiling.needs_counters(known, subject.kernel, call):
            call.phases.enter("profile")
            with suppress(OSError):  # the evaluation is known without counters too
                known = self._profiling.add_counters(known, subject, self._build)
                store.put(key, known)
        return Recalled(key, known, report)


def key_of(subject: EvaluationInput, built: BuiltKernel, environment: Environment, sweep: int = 0) -> str:
    """Return the key of a built kernel's evaluation; ``sweep`` is how many points of tunables may be tried.

    Where they are, the tunables decide too, and the machine code at hand is that of one point only: an evaluation that
    rests on others is recalled for another source only where :meth:`gpu_worker.sweep.Sweep.chosen_build` allows it.
    """
    preparation = subject.preparation
    return digest(
        [
            built.build.report.binary_hash,
            built.plan.model_dump(mode="json"),
            subject.problem.content_hash(),
            list(preparation.laws),
            preparation.environment.torch,
            environment.device.uid,
            [environment.driver, environment.cuda, environment.compiler, environment.sandbox, environment.threads],
            judge_version(),
            [sweep, _tunables(subject.kernel)] if sweep else None,
        ]
    )


def _tunables(kernel: Kernel | ImportedKernel) -> dict[str, JsonValue]:
    if isinstance(kernel, ImportedKernel):
        return {}
    return {name: tunable.model_dump(mode="json") for name, tunable in kernel.plan.tunables.items()}


def of_this_source(known: Evaluation, kernel: Kernel | ImportedKernel) -> bool:
    """Return whether a known evaluation rests on this source, or on no tunable values but the given ones."""
    return not known.sweep or known.kernel_hash == kernel.content_hash()


def reused(
    known: Evaluation, report: BuildReport, kernel: Kernel | ImportedKernel, phases: tuple[Phase, ...], seconds: float
) -> Evaluation:
    """Return a known evaluation as this kernel's; its ``measurement`` says which run of the judge it rests on."""
    whole = known.sweep and of_this_source(known, kernel)
    return known.model_copy(
        update={
            "kernel_hash": kernel.content_hash(),
            "build": known.build if whole else report,
            "tunables": known.tunables if known.sweep else kernel.tunable_values(),
            "seconds": seconds,
            "phases": phases,
            "reused": True,
        }
    )


@cache
def judge_version() -> str:
    """Return a digest of the judge's own code: another version of it might judge otherwise."""
    return digest([[path.name, path.read_text(encoding="utf-8")] for path in judge_sources()])


def judge_sources() -> list[Path]:
    """Return the source files that decide how a kernel is judged: the domain's values and rules, and the GPU worker."""
    domain = Path(cupilot.__file__).parent / "domain"
    return sorted([*domain.glob("*.py"), *Path(__file__).parent.rglob("*.py")])
