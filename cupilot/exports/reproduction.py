"""Export everything that was measured, with a script that measures it again by ``python -m gpu_worker``, offline."""

from __future__ import annotations

from cupilot.exports import texts
from cupilot.exports.winner import Winner
from cupilot.reports.job import markdown


def files(winner: Winner) -> dict[str, str]:
    """Return problem, kernel, plan, strategy, evaluation, environment, report and script."""
    environment = winner.evaluation.environment or winner.preparation.environment
    strategy = winner.strategy.model_dump(mode="json") if winner.strategy else None
    return {
        "README.md": texts.template(
            "bundle_readme.md.txt",
            title=texts.one_line(winner.report.problem.name),
            headline=texts.headline(winner),
            evidence=texts.evidence(winner),
        ),
        "reproduce.py": texts.runtime("reproduce.py"),
        "problem.py": winner.report.problem.source,
        "problem.h": winner.header,
        winner.source_file: winner.kernel.source,
        "plan.json": texts.as_json(winner.plan.model_dump(mode="json")),
        "strategy.json": texts.as_json(strategy),
        "evaluation.json": winner.evaluation.model_dump_json(indent=2) + "\n",
        "preparation.json": winner.preparation.model_dump_json(indent=2) + "\n",
        "environment.json": environment.model_dump_json(indent=2) + "\n",
        "report.json": winner.report.model_dump_json(indent=2) + "\n",
        "REPORT.md": markdown(winner.report),
    }
