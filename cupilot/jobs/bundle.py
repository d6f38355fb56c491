"""The winner as a zip that stands on its own."""

from __future__ import annotations

import json

from cupilot.domain.evaluation import Evaluation
from cupilot.domain.header import render
from cupilot.domain.imported import file_name
from cupilot.domain.problem import ProblemFacts
from cupilot.reports.job import SOURCE_FILES, markdown
from cupilot.reports.packing import packed
from cupilot.schemas import KernelView, Report


def bundle(report: Report) -> bytes:
    """Kernel, plan, header, problem and report; the plan carries the tunable values that were measured.

    Of an imported file, the file instead of kernel, plan and header.
    """
    kernel, evaluation = report.candidate.kernel, report.candidate.evaluation
    assert kernel is not None
    assert evaluation is not None
    files = {
        **_code(kernel, evaluation, report.preparation.facts),
        "problem.py": report.problem.source,
        "report.json": report.model_dump_json(indent=2) + "\n",
        "REPORT.md": markdown(report),
    }
    return packed(files)


def _code(kernel: KernelView, evaluation: Evaluation, facts: ProblemFacts) -> dict[str, str]:
    if kernel.plan is None:
        return {file_name(kernel.source, kernel.target): kernel.source}
    plan = kernel.plan.with_values(evaluation.tunables)
    return {
        SOURCE_FILES[kernel.target]: kernel.source,
        "plan.json": json.dumps(plan.model_dump(mode="json"), indent=2) + "\n",
        "problem.h": render(facts, plan.values()),
    }
