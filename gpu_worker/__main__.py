"""``python -m gpu_worker``: prepare a problem, judge, evaluate or confirm a kernel, show the device, judge a batch.

Prints a summary, or with ``--json`` the whole record, to stdout. Exit codes: 0 the kernel counts as a result (or the
command did what it was asked), 1 the kernel failed, 2 the arguments or the problem cannot be used, 3 this machine is at
fault.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

if __name__ == "__main__":
    try:
        importlib.import_module("pydantic")
    except ImportError as error:  # before the imports below end with a traceback
        sys.stderr.write(
            f"error: {sys.executable} cannot import pydantic: {error}\n"
            "hint: pip install pydantic; without a network: pip install --no-index --find-links WHEELS pydantic\n"
        )
        sys.exit(3)

from pydantic import ValidationError

from cupilot.domain.errors import CupilotError, InvalidInput, Unavailable
from cupilot.domain.evaluation import Evaluation, FailureKind, Preparation, PreparationResult
from cupilot.domain.imported import EXPORTS, ImportedKernel, check_import, is_extension, with_function
from cupilot.domain.kernel import Kernel, LaunchPlan
from cupilot.domain.problem import NumericsPolicy, Problem, Target, check_source
from cupilot.domain.value import Value
from cupilot.reports import tables
from gpu_worker import summary
from gpu_worker.batch import command
from gpu_worker.evaluator import Evaluator
from gpu_worker.work_dir import default_work_dir, own_work_dir

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
        sys.stderr.write(f"{summary.entry(f'error: {error}')}\n")
        return UNUSABLE if error.filename else MACHINE_FAILED


def _run(options: argparse.Namespace) -> int:
    if options.command == "batch":
        return command.run(options)
    target = Target(options.target)
    work_dir = own_work_dir(Path(options.work_dir))
    with Evaluator(
        target,
        work_dir,
        device=options.device,
        threads=options.threads,
        sweep=options.sweep,
        builder=options.builder,
        autotune=options.max_autotune,
    ) as evaluator:
        if options.command == "device":
            _print(evaluator.device, summary.device(evaluator.device), options)
            return COUNTS
        problem = _problem(options)
        kernel = None if options.command == "prepare" else _kernel(options, target)
        result = _prepared(evaluator, problem, options)
        if result.preparation is None:
            return _report_unprepared(result, options)
        if kernel is None:
            _print(result, summary.preparation(result.preparation), options)
            return COUNTS
        call = evaluator.confirm if options.command == "confirm" or options.confirm else evaluator.evaluate
        evaluation = call(problem, result.preparation, kernel, timeout=options.timeout)
        table = f"\n\n{tables.pull_request(evaluation, problem.name)}" if options.command == "judge" else ""
        _print(evaluation, summary.evaluation(evaluation) + table, options)
        return _exit_code(evaluation)


def _prepared(evaluator: Evaluator, problem: Problem, options: argparse.Namespace) -> PreparationResult:
    if options.preparation is None:
        return evaluator.prepare(problem, timeout=options.timeout)
    try:
        data = json.loads(Path(options.preparation).read_text())
        preparation = Preparation.model_validate(data.get("preparation") or data)
    except (ValueError, ValidationError, AttributeError) as error:
        raise InvalidInput(f"{options.preparation} is not a preparation: {str(error)[:500]}") from error
    if preparation.facts.problem_hash != problem.content_hash():
        raise InvalidInput(f"{options.preparation} belongs to another problem or policy")
    return PreparationResult(preparation=preparation)


def _problem(options: argparse.Namespace) -> Problem:
    path = Path(options.problem)
    source = path.read_text(errors="replace")
    check_source(source)
    return Problem(name=path.stem, source=source, policy=NumericsPolicy(options.policy))


def _kernel(options: argparse.Namespace, target: Target) -> Kernel | ImportedKernel:
    source = Path(options.kernel).read_text(errors="replace")
    if Path(options.kernel).suffix == ".py" or (options.plan is None and is_extension(source)):
        return _imported(options, source, target)
    if options.plan is None:
        hint = f"give --plan L.json, or a ModelNew file (.py), or the source of a torch extension ({EXPORTS})"
        raise InvalidInput(f"{options.kernel} needs a launch plan", hint=hint)
    if options.function is not None:
        raise InvalidInput("--function is for torch extensions", hint="a launch plan names its functions itself")
    try:
        plan = LaunchPlan.model_validate_json(Path(options.plan).read_text())
        return Kernel(target=target, source=source, plan=plan)
    except ValidationError as error:
        raise InvalidInput(f"the launch plan or the kernel is not valid: {error}") from error


def _imported(options: argparse.Namespace, source: str, target: Target) -> ImportedKernel:
    if options.plan is not None:
        raise InvalidInput(f"{options.kernel} is a ModelNew file, which has no launch plan", hint="leave --plan out")
    check_import(source)
    try:
        return ImportedKernel(target=target, source=with_function(source, options.function))
    except ValidationError as error:
        raise InvalidInput(f"the file is not valid: {error}") from error


def _report_unprepared(result: PreparationResult, options: argparse.Namespace) -> int:
    assert result.failure is not None
    reason = f"{result.failure.kind.value}: {result.failure.message}"
    _print(result, summary.entry(f"problem cannot be used: {reason}"), options)
    return MACHINE_FAILED if result.failure.kind is FailureKind.INFRASTRUCTURE else UNUSABLE


def _exit_code(evaluation: Evaluation) -> int:
    if evaluation.verdict.counts:
        return COUNTS
    infrastructure = evaluation.failure is not None and evaluation.failure.kind is FailureKind.INFRASTRUCTURE
    return MACHINE_FAILED if infrastructure else KERNEL_FAILED


def _print(value: Value, text: str, options: argparse.Namespace) -> None:
    sys.stdout.write(f"{value.model_dump_json(indent=2) if options.json else summary.printable(text)}\n")


def _complain(error: CupilotError, code: int) -> int:
    sys.stderr.write(f"{summary.entry(f'error: {error.message}')}\n")
    if error.hint:
        sys.stderr.write(f"{summary.entry(f'hint: {error.hint}')}\n")
    return code


_JUDGING = """\
Judge a kernel that you already have against PyTorch, by the same input distributions, roofline bounds and clocks as
ours.

A ModelNew file (KernelBench's format) may use plain torch, torch.utils.cpp_extension.load_inline with C++ or CUDA
sources, or Triton. It defines class ModelNew(nn.Module): constructed with what the problem's get_init_inputs() gives,
called with what its forward takes, with parameters of the reference's names, whose values it is given. It runs in a
sandbox without network and without the reference; extensions are compiled there, which counts towards --timeout.

The source of a torch extension (.cu, .cpp with PYBIND11_MODULE or TORCH_LIBRARY) is taken as it is, without --plan. Its
only function is the kernel, or the one called forward, or --function NAME. It is called with the problem's inputs; then
with the reference's parameters and buffers in state_dict order, or the parameters only, or neither; then with those
arguments of Model's constructor that it names, or, where it names none of its own, with all or none of them.

Its evaluation is marked `imported`, with the checks that its host code does not allow. On a GPU results are read where
the file left them. Where that cannot be (on a CPU; a buffer that every call returns), they are copied inside the timed
region: the speedup is a lower bound, and `handover` says what the copy takes.

The table at the end is Markdown, to be pasted into a pull request.

Failures have codes in failure.details.code: no_model_new, import_failed, constructor_arguments, constructor_failed,
parameters_differ, compile_error, forward_failed, wrong_output_count, wrong_output_type, wrong_shape, wrong_dtype,
wrong_device, result_reused, out_of_memory, no_ninja, not_installed, not_portable; lacks_memory where the judge itself
has too little for the problem; of extensions also no_function, no_such_function, several_functions,
arguments_do_not_fit."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_worker",
        description="Build, judge, time and profile kernels for PyTorch operators, in sandboxes, on this machine.",
        epilog="exit codes: 0 counts as a result, 1 kernel failed, 2 arguments or problem unusable, 3 machine at fault;"
        " those of a batch are in `batch run --help`",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    prepare = commands.add_parser("prepare", help="check a problem, time PyTorch on it, place it on the roofline")
    evaluate = commands.add_parser("evaluate", help="build, check and time a kernel against PyTorch eager")
    confirm = commands.add_parser("confirm", help="the same in fresh processes, longer, also against torch.compile")
    judge = commands.add_parser(
        "judge",
        help="judge a file that you have: prepare the problem, then evaluate or confirm the kernel",
        description=_JUDGING,
        epilog="example: python -m gpu_worker judge softmax.py softmax_modelnew.py --target cuda --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    device = commands.add_parser("device", help="show the device")
    command.add_parser(commands)
    judge.add_argument("problem", metavar="PROBLEM.py", help="reference in KernelBench's format")
    judge.add_argument(
        "kernel", metavar="FILE", help="ModelNew file (.py), torch extension, or device code with --plan"
    )
    judge.add_argument("--confirm", action="store_true", help="also time it again in fresh processes")
    for verb in (evaluate, confirm):
        verb.set_defaults(confirm=False)
    for verb in (prepare, evaluate, confirm):
        verb.add_argument("--problem", required=True, metavar="P.py", help="reference in KernelBench's format")
    for verb in (prepare, evaluate, confirm, judge):
        policies = [policy.value for policy in NumericsPolicy]
        verb.add_argument("--policy", choices=policies, default="fp32", help="what arithmetic is allowed")
        verb.add_argument("--timeout", type=float, default=300.0, metavar="S", help="seconds for each of the steps")
    for verb in (evaluate, confirm):
        verb.add_argument(
            "--kernel", required=True, metavar="K", help="device code (.cu, .cpp), ModelNew file (.py), torch extension"
        )
    for verb in (evaluate, confirm, judge):
        verb.add_argument("--plan", metavar="L.json", help="launch plan; imported files have none")
        verb.add_argument("--function", metavar="NAME", help="of a torch extension, where it exports several")
    for verb in (confirm, judge):
        verb.add_argument(
            "--max-autotune",
            action=argparse.BooleanOptionalAction,
            help="whether a confirmation also compares with torch.compile max-autotune (by default on cuda)",
        )
    evaluate.add_argument(
        "--sweep", type=int, metavar="N", help="tunable values to try (12 on cuda, 3 on cpu by default; 0 for none)"
    )
    for verb in (prepare, evaluate, confirm, judge):
        verb.add_argument("--preparation", metavar="F", help="output of `prepare --json`, to skip preparing again")
    for verb in (prepare, evaluate, confirm, judge, device):
        verb.add_argument("--target", choices=[target.value for target in Target], default="cpu")
        verb.add_argument("--device", help="GPU UUID or index; the first by default")
        verb.add_argument("--threads", type=int, help="threads of kernel and baseline on cpu; all cores by default")
        verb.add_argument(
            "--builder",
            choices=("nvrtc", "nvcc"),
            help="what compiles on cuda: nvrtc (default), or a toolkit's nvcc",
        )
        verb.add_argument(
            "--work-dir", default=default_work_dir(), help="build cache and measured peaks (default %(default)s)"
        )
        verb.add_argument("--json", action="store_true", help="print the whole record as JSON")
    parser.set_defaults(sweep=None, max_autotune=None)
    return parser


if __name__ == "__main__":
    sys.exit(main())
