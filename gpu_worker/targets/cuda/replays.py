"""Runs a built kernel under the tools that watch it, each in a sandbox of its own: counters and memory checkers.

What a machine does not have, it does not say: no ``ncu`` or ``compute-sanitizer``, or a driver that keeps counters for
administrators, gives empty answers.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from cupilot.domain.kernel import ResolvedPlan
from cupilot.domain.problem import DType, Role, TensorSpec
from cupilot.domain.roofline import Zone
from gpu_worker.sandbox import private_user
from gpu_worker.sandbox.child import Finished
from gpu_worker.sandbox.limits import TORCH_THREADS, Limits
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.base import Access, Counters, MemoryWatch, Program
from gpu_worker.targets.cuda import counters, sanitizer
from gpu_worker.targets.cuda.toolchain import python_program

WATCHED_SECONDS = 30.0
"""Starting takes 2 s. The race checker needs minutes for a large matrix product; what it would find later is not known,
and the evaluation says so. No smaller problem is watched instead: docs/decisions/0010."""

WARM_UP_REPLAYS = 2


@dataclass(frozen=True)
class ReplayedKernel:
    """A kernel to be watched."""

    binary: Path
    plan: ResolvedPlan
    tensors: Sequence[TensorSpec]


def profile(watched: ReplayedKernel, access: Access, zone: Zone) -> Counters:
    """Return the zone's metrics from hardware counters; see :func:`gpu_worker.targets.cuda.counters.of_zone`.

    An ``ncu`` that gives no table for them, and was neither forbidden to nor too slow, is asked for those that every
    zone has, so that one name which it refuses to know does not cost the profile.
    """
    ncu = counters.profiler()
    if ncu is None:
        return Counters()
    names = [launch.kernel for launch in watched.plan.launches]
    wanted = counters.of_zone(zone)
    with _replay(watched, access, ncu, WARM_UP_REPLAYS + 1) as run:
        for asked in (wanted, counters.COMMON):
            report = run(
                lambda argv, asked=asked: counters.command(ncu, names, len(names), WARM_UP_REPLAYS, argv, asked=asked)  # type: ignore[misc]
            )
            counted = counters.read(report.stdout, wanted)
            if counted.metrics or report.timed_out or counters.forbidden(report.stdout + report.stderr):
                break
    return counted


def watched_memory(watched: ReplayedKernel, access: Access) -> MemoryWatch:
    """Return the failure that the first of compute-sanitizer's tools finds, if one does."""
    checker = sanitizer.checker()
    if checker is None:
        return MemoryWatch()
    notes: list[str] = []
    with _replay(watched, access, checker, 1) as run:
        for tool in sanitizer.TOOLS:
            doubt = sanitizer.discount_reason(tool, watched.plan)
            if doubt is not None:
                notes.append(f"compute-sanitizer, {tool}: not run: {doubt}")
                continue
            report = run(lambda argv, tool=tool: sanitizer.command(checker, tool, argv))  # type: ignore[misc]
            finding = sanitizer.read(report.stdout)
            if finding is not None:
                return MemoryWatch(sanitizer.failure(tool, finding), tuple(notes))
            notes.append(f"compute-sanitizer, {tool}: {_silence(report)}")
    return MemoryWatch(notes=tuple(notes))


def _silence(report: Finished) -> str:
    """Describe how far a tool got that found nothing."""
    if report.code == 0 and sanitizer.finished(report.stdout):
        return "found nothing"
    if report.timed_out:
        return f"stopped after {WATCHED_SECONDS:.0f} s, had found nothing until then"
    return f"did not run: {(report.stderr.strip() or report.stdout.strip())[-200:] or 'it printed nothing'}"


_Wrap = Callable[[Sequence[str]], tuple[str, ...]]


@contextmanager
def _replay(watched: ReplayedKernel, access: Access, tool: Path, times: int) -> Iterator[Callable[[_Wrap], Finished]]:
    with tempfile.TemporaryDirectory(prefix="cupilot-replay-") as folder:
        specification = Path(folder) / "replay.json"
        specification.write_text(json.dumps(_specification(watched, times)), encoding="utf-8")
        for private in (Path(folder), watched.binary.parent):
            private_user.share(private)
        tools = tuple(path for path in (Path("/opt/nvidia"), tool.resolve().parent) if path.exists())
        shown = (*access.read_only, Path(folder), watched.binary.parent, *tools)
        readable = tuple(path for path in shown if not path.is_relative_to("/usr"))
        # ncu does not work without a lock of its own; of the kernel only its device code runs here
        access = replace(access, read_only=readable, subprocesses=True, file_locks=True)
        argv = python_program(Path(__file__).with_name("replay.py"), str(specification), access=access).argv
        yield lambda wrap: Sandbox().run(Program(wrap(argv), access), Limits(processes=TORCH_THREADS), WATCHED_SECONDS)


def _specification(watched: ReplayedKernel, times: int) -> dict[str, object]:
    inputs = [spec for spec in watched.tensors if spec.role is not Role.OUTPUT]
    sizes = {spec.name: spec.storage_elements * spec.dtype.itemsize for spec in watched.tensors}
    return {
        "binary": str(watched.binary),
        "launches": [launch.model_dump(mode="json") for launch in watched.plan.launches],
        "buffers": sizes | watched.plan.workspace,
        "floats": [spec.name for spec in inputs if spec.dtype is DType.FLOAT32],
        "zeros": [spec.name for spec in inputs if spec.dtype is not DType.FLOAT32],
        "times": times,
    }
