"""Export a result as files, or as a bundle with all measurements and a script that repeats them.

The script runs ``python -m gpu_worker``, offline.
"""

from __future__ import annotations

from cupilot.domain.evaluation import Evaluation
from cupilot.domain.header import render
from cupilot.domain.imported import file_name
from cupilot.domain.problem import ProblemFacts
from cupilot.exports import texts
from cupilot.exports.winner import Winner
from cupilot.reports.job import SOURCE_FILES, markdown
from cupilot.schemas import KernelView, Report


def result_files(report: Report) -> dict[str, str]:
    """Return kernel, plan, header, problem and report; the plan carries the tunable values that were measured.

    Of an imported file, the file takes the place of kernel, plan and header.
    """
    kernel, evaluation = report.candidate.kernel, report.candidate.evaluation
    assert kernel is not None
    assert evaluation is not None
    return {
        **_code(kernel, evaluation, report.preparation.facts),
        "problem.py": report.problem.source,
        "report.json": report.model_dump_json(indent=2) + "\n",
        "REPORT.md": markdown(report),
    }


def files(winner: Winner) -> dict[str, str]:
    """Return the result's files, strategy, evaluation, environment and script."""
    environment = winner.evaluation.environment or winner.preparation.environment
    strategy = winner.strategy.model_dump(mode="json") if winner.strategy else None
    whole = winner.report.candidate.evaluation or winner.evaluation
    return {
        **result_files(winner.report),
        "README.md": texts.template(
            "bundle_readme.md.txt",
            title=texts.one_line(winner.report.problem.name),
            headline=texts.headline(winner),
            evidence=texts.evidence(winner),
        ),
        "reproduce.py": texts.runtime("reproduce.py"),
        "strategy.json": texts.as_json(strategy),
        "evaluation.json": whole.model_dump_json(indent=2) + "\n",
        "preparation.json": winner.preparation.model_dump_json(indent=2) + "\n",
        "environment.json": environment.model_dump_json(indent=2) + "\n",
    }


def _code(kernel: KernelView, evaluation: Evaluation, facts: ProblemFacts) -> dict[str, str]:
    if kernel.plan is None:
        return {file_name(kernel.source, kernel.target): kernel.source}
    plan = kernel.plan.with_values(evaluation.tunables)
    return {
        SOURCE_FILES[kernel.target]: kernel.source,
        "plan.json": texts.as_json(plan.model_dump(mode="json")),
        "problem.h": render(facts, plan.values()),
    }
