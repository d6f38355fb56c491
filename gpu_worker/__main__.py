"""``python -m gpu_worker``: prepare a problem, evaluate or confirm a kernel, show the device. For people and scripts.

Prints a summary, or with ``--json`` the whole record, to stdout. Exit codes: 0 the kernel counts as a result (or the
command did what it was asked), 1 the kernel failed, 2 the arguments or the problem cannot be used, 3 this machine is at
fault.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from pydantic import ValidationError

from cupilot.errors import CupilotError, InvalidInput, Unavailable
from cupilot.evaluation import Evaluation, FailureKind, Preparation, PreparationResult
from cupilot.kernel import Kernel, LaunchPlan
from cupilot.problem import NumericsPolicy, Problem, Target, check_source
from cupilot.value import Value
from gpu_worker import summary
from gpu_worker.evaluator import Evaluator

COUNTS, KERNEL_FAILED, UNUSABLE, MACHINE_FAILED = 0, 1, 2, 3


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except Unavailable as error:
        return _complain(error, MACHINE_FAILED)
    except CupilotError as error:
        return _complain(error, UNUSABLE)
    except OSError as error:
        sys.stderr.write(f"error: {error}\n")
        return UNUSABLE if error.filename else MACHINE_FAILED


def _run(options: argparse.Namespace) -> int:
    target = Target(options.target)
    work_dir = Path(options.work_dir)
    with Evaluator(target, work_dir, device=options.device, threads=options.threads, sweep=options.sweep) as evaluator:
        if options.command == "device":
            _print(evaluator.device, summary.device(evaluator.device), options)
            return COUNTS
        problem = _problem(options)
        result = _prepared(evaluator, problem, options)
        if result.preparation is None:
            return _report_unprepared(result, options)
        if options.command == "prepare":
            _print(result, summary.preparation(result.preparation), options)
            return COUNTS
        kernel = _kernel(options, target)
        call = evaluator.evaluate if options.command == "evaluate" else evaluator.confirm
        evaluation = call(problem, result.preparation, kernel, timeout=options.timeout)
        _print(evaluation, summary.evaluation(evaluation), options)
        return _exit_code(evaluation)


def _prepared(evaluator: Evaluator, problem: Problem, options: argparse.Namespace) -> PreparationResult:
    if options.preparation is None:
        return evaluator.prepare(problem, timeout=options.timeout)
    try:
        data = json.loads(Path(options.preparation).read_text())
        preparation = Preparation.model_validate(data.get("preparation") or data)
    except (ValueError, ValidationError, AttributeError) as error:
        raise InvalidInput(f"{options.preparation} is no preparation: {str(error)[:500]}") from error
    if preparation.facts.problem_hash != problem.content_hash():
        raise InvalidInput(f"{options.preparation} belongs to another problem or policy")
    return PreparationResult(preparation=preparation)


def _problem(options: argparse.Namespace) -> Problem:
    path = Path(options.problem)
    source = path.read_text(errors="replace")
    check_source(source)
    return Problem(name=path.stem, source=source, policy=NumericsPolicy(options.policy))


def _kernel(options: argparse.Namespace, target: Target) -> Kernel:
    try:
        plan = LaunchPlan.model_validate_json(Path(options.plan).read_text())
        return Kernel(target=target, source=Path(options.kernel).read_text(errors="replace"), plan=plan)
    except ValidationError as error:
        raise InvalidInput(f"the launch plan or the kernel is not valid: {error}") from error


def _report_unprepared(result: PreparationResult, options: argparse.Namespace) -> int:
    assert result.failure is not None
    _print(result, f"problem cannot be used: {result.failure.kind.value}: {result.failure.message}", options)
    return MACHINE_FAILED if result.failure.kind is FailureKind.INFRASTRUCTURE else UNUSABLE


def _exit_code(evaluation: Evaluation) -> int:
    if evaluation.verdict.counts:
        return COUNTS
    infrastructure = evaluation.failure is not None and evaluation.failure.kind is FailureKind.INFRASTRUCTURE
    return MACHINE_FAILED if infrastructure else KERNEL_FAILED


def _print(value: Value, text: str, options: argparse.Namespace) -> None:
    sys.stdout.write(f"{value.model_dump_json(indent=2) if options.json else text}\n")


def _complain(error: CupilotError, code: int) -> int:
    sys.stderr.write(f"error: {error.message}\n")
    if error.hint:
        sys.stderr.write(f"hint: {error.hint}\n")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_worker",
        description="Build, judge, time and profile kernels for PyTorch operators, in sandboxes, on this machine.",
        epilog="exit codes: 0 counts as a result, 1 kernel failed, 2 arguments or problem unusable, 3 machine at fault",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    prepare = commands.add_parser("prepare", help="check a problem, time PyTorch on it, place it on the roofline")
    evaluate = commands.add_parser("evaluate", help="build, check and time a kernel against PyTorch eager")
    confirm = commands.add_parser("confirm", help="the same in fresh processes, longer, also against torch.compile")
    device = commands.add_parser("device", help="show the device")
    for command in (prepare, evaluate, confirm):
        command.add_argument("--problem", required=True, metavar="P.py", help="reference in KernelBench's format")
        policies = [policy.value for policy in NumericsPolicy]
        command.add_argument("--policy", choices=policies, default="fp32", help="what arithmetic is allowed")
        command.add_argument("--timeout", type=float, default=300.0, metavar="S", help="seconds for each of the steps")
    for command in (evaluate, confirm):
        command.add_argument("--kernel", required=True, metavar="K", help="device code (.cu) or C++ (.cpp)")
        command.add_argument("--plan", required=True, metavar="L.json", help="launch plan")
    evaluate.add_argument(
        "--sweep", type=int, metavar="N", help="tunable values to try (12 on cuda, 3 on cpu by default; 0 for none)"
    )
    for command in (prepare, evaluate, confirm):
        command.add_argument("--preparation", metavar="F", help="output of `prepare --json`, to skip preparing again")
    for command in (prepare, evaluate, confirm, device):
        command.add_argument("--target", choices=[target.value for target in Target], default="cpu")
        command.add_argument("--device", help="GPU UUID or index; the first by default")
        command.add_argument("--threads", type=int, help="threads of kernel and baseline on cpu; all cores by default")
        default = str(Path(tempfile.gettempdir()) / "cupilot-gpu-worker")
        command.add_argument("--work-dir", default=default, help="build cache and measured peaks (default %(default)s)")
        command.add_argument("--json", action="store_true", help="print the whole record as JSON")
    parser.set_defaults(sweep=None)
    return parser


if __name__ == "__main__":
    sys.exit(main())
