"""Evaluations that were made before, on disk by what decides them, so that nothing is measured twice.

The key covers the machine code and how it is launched, the problem with its policy and laws, the judge's own code, the
device and the software around it. Not the source: kernels that differ in words only are one. What the machine did
wrong, or another time might do otherwise, is never kept; compile errors are the build cache's. The folder stays below a
size: what was not used for longest goes first.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

from pydantic import JsonValue

import cupilot
from cupilot.domain.evaluation import Evaluation, FailureKind
from cupilot.domain.hardware import Environment
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel, ResolvedPlan
from cupilot.domain.value import digest
from gpu_worker.verdict import Measured

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
"""Share of that which is left by pruning, so that it is seldom done."""
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
        """The evaluation that was kept under this key; None where there is none that can be read."""
        path = self._path(key)
        try:
            found = Evaluation.model_validate_json(path.read_bytes())
            os.utime(path)
        except (OSError, ValueError):
            return None
        return found

    def put(self, key: str, evaluation: Evaluation) -> None:
        """Keep an evaluation, if another run could not come to another end."""
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
        """Remove what was not used for longest, where the folder has become too large; others may do so meanwhile."""
        found = []
        for path in self._folder.glob("??/*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in found)
        if total <= self._most_bytes:
            return
        for _, size, path in sorted(found):
            if total <= PRUNED_TO * self._most_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


def key_of(measured: Measured, plan: ResolvedPlan, environment: Environment, sweep: int = 0) -> str:
    """What decides an evaluation of a kernel that was built; ``sweep`` is how many points of tunables may be tried.

    Where they are, the tunables decide too, and the machine code at hand is that of one point only: an evaluation that
    rests on others is given again for another source by :meth:`gpu_worker.sweep.Sweep.retraced` alone.
    """
    assert measured.build is not None
    preparation = measured.preparation
    return digest(
        [
            measured.build.binary_hash,
            plan.model_dump(mode="json"),
            measured.problem.content_hash(),
            list(preparation.laws),
            preparation.environment.torch,
            environment.device.uid,
            [environment.driver, environment.cuda, environment.compiler, environment.sandbox, environment.threads],
            judge_version(),
            [sweep, _tunables(measured.kernel)] if sweep else None,
        ]
    )


def _tunables(kernel: Kernel | ImportedKernel) -> dict[str, JsonValue]:
    if isinstance(kernel, ImportedKernel):
        return {}
    return {name: tunable.model_dump(mode="json") for name, tunable in kernel.plan.tunables.items()}


def of_this_source(known: Evaluation, measured: Measured) -> bool:
    """Whether a known evaluation rests on this source, or on no tunable values but the given ones."""
    return not known.sweep or known.kernel_hash == measured.kernel.content_hash()


def reused(known: Evaluation, measured: Measured) -> Evaluation:
    """A known evaluation as one of this kernel; its ``measurement`` says which run of the judge it rests on."""
    whole = known.sweep and of_this_source(known, measured)
    return known.model_copy(
        update={
            "kernel_hash": measured.kernel.content_hash(),
            "build": known.build if whole else measured.build,
            "tunables": known.tunables if known.sweep else measured.kernel.tunable_values(),
            "seconds": measured.seconds,
            "phases": measured.phases,
            "reused": True,
        }
    )


@cache
def judge_version() -> str:
    """Digest of the judge's own code: another version of it might judge otherwise."""
    domain = Path(cupilot.__file__).parent
    sources = [*domain.glob("*.py"), *Path(__file__).parent.rglob("*.py")]
    return digest([[path.name, path.read_text(encoding="utf-8")] for path in sorted(sources)])
