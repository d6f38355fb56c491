"""``python -m gpu_worker batch``: its arguments, and what its exit codes mean."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from cupilot.domain.batches.files import BatchFile
from cupilot.domain.counted import counted
from cupilot.domain.errors import InvalidInput, Unavailable
from cupilot.domain.problem import Target
from gpu_worker.batch.card import CardOptions
from gpu_worker.batch.result_file import ResultFile
from gpu_worker.batch.run import GRACE_SECONDS, BatchRun, card_options, to_stderr
from gpu_worker.work_dir import default_work_dir, own_work_dir

ALL_DONE, STEPS_LEFT = 0, 4

_PACKAGES: Mapping[Target, Mapping[str, str]] = {
    Target.CPU: {"torch": "torch", "numpy": "numpy"},
    Target.CUDA: {
        "torch": "torch",
        "numpy": "numpy",
        "pynvml": "nvidia-ml-py",
        "cuda.bindings": "cuda-bindings",
    },
}
"""Modules that judging needs beside pydantic, and the packages that hold them."""

_DESCRIPTION = """\
Judge the steps of a batch on this machine: no network, no database; this package, torch, numpy and pydantic, for cuda
also nvidia-ml-py and cuda-bindings.

  on the service   cupilot batch export --target cuda --arch sm_90 -o night.batch
  here             python -m gpu_worker batch run night.batch --devices all --minutes 55
  on the service   cupilot batch import night.batch.results

Every step is judged by the same supervisor as on a GPU worker, one supervisor a card; the steps of a problem go one
after the other, so that its judge stays open, and waiting kernels are built on idle cores meanwhile. Each result is
written to the disk as soon as it is there. A run that is killed loses only what it was judging: the same command goes
on with the rest."""

_EPILOG = """\
exit codes: 0 every step has a result; 2 the file or an argument cannot be used; 3 no card could be used, or a package
is missing; 4 time was up, or the run was stopped, and some steps are left: run it again"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to those of ``python -m gpu_worker``."""
    batch = commands.add_parser("batch", help="judge steps that a service exported, without a network")
    verbs = batch.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    run = verbs.add_parser(
        "run",
        help="judge the steps of a batch file, or go on with it",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("file", metavar="FILE", help="what `cupilot batch export` wrote")
    run.add_argument("--output", metavar="RESULT", help="where results are added (default: FILE.results)")
    run.add_argument(
        "--devices",
        default="all",
        metavar="all|UUID,...",
        help="cards, by UUID or index (default: all that are visible)",
    )
    run.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help=f"begin nothing later than this; what still runs {GRACE_SECONDS:.0f} s later is stopped, and left",
    )
    run.add_argument("--threads", type=int, help="threads of kernel and baseline on cpu; all cores by default")
    run.add_argument("--builder", choices=("nvrtc", "nvcc"), help="what compiles on cuda: nvrtc (default), or nvcc")
    run.add_argument(
        "--work-dir",
        default=default_work_dir(),
        help="builds, measured peaks and known evaluations, worth keeping between runs (default %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if options.minutes is not None and not options.minutes > 0:
        raise InvalidInput("--minutes must be more than 0")
    deadline = None if options.minutes is None else time.monotonic() + options.minutes * 60
    path = Path(options.file)
    output = Path(options.output) if options.output else path.with_name(f"{path.name}.results")
    work_dir = own_work_dir(Path(options.work_dir))
    template = CardOptions(path.resolve(), work_dir, threads=options.threads, builder=options.builder)
    with BatchFile(path) as batch:
        _check_packages(batch.manifest.target)
        _check_lease(batch)
        batch.check()
        cards = card_options(batch, template, options.devices)
        with ResultFile(output, batch) as result:
            return _run(BatchRun(batch, result, cards, deadline=deadline, tell=to_stderr), batch, result)


def _check_packages(target: Target) -> None:
    """Say what this Python lacks, before a process of the judge ends for want of it."""
    missing = sorted(package for name, package in _PACKAGES[target].items() if not _has(name))
    if missing:
        raise Unavailable(
            f"{sys.executable} has no {', no '.join(missing)}",
            hint=f"pip install {' '.join(missing)}; without a network: pip install --no-index --find-links WHEELS ...",
        )


def _has(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def _check_lease(batch: BatchFile) -> None:
    ends, now = batch.manifest.expires_at, datetime.now(UTC)
    if now >= ends:
        raise InvalidInput(
            f"the batch's lease ended at {ends:%Y-%m-%d %H:%M} UTC: its results would be refused",
            hint=f"export its steps again; by this machine's clock it is {now:%Y-%m-%d %H:%M} UTC",
        )


def _run(run: BatchRun, batch: BatchFile, result: ResultFile) -> int:
    manifest = batch.manifest
    known = f", {len(result.done)} of them judged before" if result.done else ""
    to_stderr(f"batch {manifest.batch}: {counted(len(manifest.steps), 'step')} for {manifest.device_class}{known}")
    to_stderr(f"its lease ends at {manifest.expires_at:%Y-%m-%d %H:%M} UTC")
    before = {name: signal.signal(name, lambda *_: run.stop()) for name in (signal.SIGTERM, signal.SIGINT)}
    try:
        run.run()
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
    sys.stdout.write(f"{len(result.done)} of {counted(len(manifest.steps), 'step')} have a result, in {result.path}\n")
    if run.left:
        sys.stdout.write(f"{run.left} are left: the same command goes on with them\n")
    sys.stdout.write(f"bring it back: cupilot batch import {result.path.name}{' --release' if run.left else ''}\n")
    return STEPS_LEFT if run.left else ALL_DONE
