"""Write solutions and traces of flashinfer-bench's schema, so that its tools can use and show what was judged here."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from keyword import iskeyword
from typing import Any

from cupilot.domain.evaluation import Baseline, Evaluation, Failure, FailureKind, LawResult, Verdict, WorkloadResult
from cupilot.domain.flashinfer_bench.schema import (
    BuildSpec,
    Definition,
    InvalidRecord,
    Solution,
    SourceFile,
    Workload,
)
from cupilot.domain.syntax import parse

AUTHOR = "cupilot"

_STATUS = {
    FailureKind.COMPILE_ERROR: "COMPILE_ERROR",
    FailureKind.INVALID_PLAN: "COMPILE_ERROR",
    FailureKind.TIMEOUT: "TIMEOUT",
    FailureKind.WRONG_VALUE: "INCORRECT_NUMERICAL",
    FailureKind.UNWRITTEN_OUTPUT: "INCORRECT_NUMERICAL",
    FailureKind.NON_DETERMINISTIC: "INCORRECT_NUMERICAL",
    FailureKind.INSENSITIVE: "INCORRECT_NUMERICAL",
}
"""The schema's status of a failure; any other is ``RUNTIME_ERROR``."""

_CODES = {"wrong_shape": "INCORRECT_SHAPE", "wrong_dtype": "INCORRECT_DTYPE"}
"""The schema's status by ``failure.details.code`` of an imported file."""


def solution(definition: Definition, name: str, modelnew: str, *, target_hardware: Sequence[str]) -> Solution:
    """Return the solution that a file with ``ModelNew`` is; it returns its outputs, and language is ``python``.

    ``modelnew`` may be an export in KernelBench's form. Its ``ModelNew`` takes no constructor arguments, as problems
    made from definitions have none.
    """
    try:
        defined = {node.name for node in parse(modelnew).body if isinstance(node, ast.ClassDef)}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidRecord(f"the file is not valid Python: {error}", where="FILE") from error
    if "ModelNew" not in defined:
        raise InvalidRecord(
            "the file defines no class ModelNew", hint="cupilot export --format kernelbench", where="FILE"
        )
    unfit = next((item for item in definition.inputs if not item.isidentifier() or iskeyword(item)), None)
    if unfit is not None:
        raise InvalidRecord(f"the input {unfit!r} is no name of Python", where="definition.inputs")
    # Runners give inputs by position or by name.
    inputs = ", ".join(definition.inputs)
    tail = f"\n\n\n_model = ModelNew()\n\n\ndef run({inputs}):\n    return _model({inputs})\n"
    spec = BuildSpec(
        language="python",
        target_hardware=tuple(target_hardware),
        entry_point="main.py::run",
        destination_passing_style=False,
    )
    source = SourceFile(path="main.py", content=modelnew.rstrip() + tail)
    return Solution(name=name, definition=definition.name, author=AUTHOR, spec=spec, sources=(source,))


def traces(
    definition: Definition,
    workloads: Sequence[Workload],
    solution_name: str,
    evaluation: Evaluation,
    *,
    when: datetime | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a trace of each workload that was judged, as JSON-compatible data."""
    results = {part.workload.name: part for part in evaluation.workloads}
    moment = (when or datetime.now(UTC)).isoformat()
    for workload in workloads:
        part = results.get(workload.uuid[:100])
        if part is None or part.verdict is None:
            continue
        yield {
            "definition": definition.name,
            "workload": workload.model_dump(mode="json", exclude_unset=True),
            "solution": solution_name,
            "evaluation": _evaluation(part, part.verdict, evaluation, moment),
        }


def _evaluation(part: WorkloadResult, verdict: Verdict, whole: Evaluation, moment: str) -> dict[str, Any]:
    environment = whole.environment
    libraries = {"torch": environment.torch} if environment is not None and environment.torch else {}
    status = "PASSED" if verdict.counts else _status(part.failure)
    return {
        "status": status,
        "environment": {
            "hardware": environment.device.name if environment is not None else "unknown",
            "libs": libraries,
        },
        "timestamp": moment,
        "log": f"{part.failure.kind.value}: {part.failure.message}" if part.failure is not None else "",
        "correctness": _correctness(part.laws, verdict) if status in ("PASSED", "INCORRECT_NUMERICAL") else None,
        "performance": _performance(part) if status == "PASSED" else None,
    }


def _status(failure: Failure | None) -> str:
    if failure is None:
        return "RUNTIME_ERROR"
    by_code = _CODES.get(str(failure.details.get("code", "")))
    return by_code or _STATUS.get(failure.kind, "RUNTIME_ERROR")


def _correctness(laws: Sequence[LawResult], verdict: Verdict) -> dict[str, Any]:
    """Return the largest error by the judge's own measure: relative to the output's spread, not to each element."""
    errors = {law.law: law.error for law in laws}
    relative = max((law.error for law in laws if law.law != "integers"), default=0.0)
    judged = {
        "verdict": verdict.value,
        "error_by_spread": errors,
        "tolerance": {law.law: law.tolerance for law in laws},
    }
    return {"max_relative_error": relative, "max_absolute_error": "NaN", "extra": {"cupilot": judged}}


def _performance(part: WorkloadResult) -> dict[str, float]:
    eager = next(item for item in part.comparisons if item.baseline is Baseline.EAGER)
    return {
        "latency_ms": eager.kernel_us.median / 1e3,
        "reference_latency_ms": eager.baseline_us.median / 1e3,
        "speedup_factor": eager.speedup.median,
    }
