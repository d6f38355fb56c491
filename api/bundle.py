"""The winner as a zip that stands on its own."""

from __future__ import annotations

import io
import json
import zipfile

from cupilot.header import render
from cupilot.report import SOURCE_FILES, markdown
from cupilot.schemas import Report

EPOCH = (1980, 1, 1, 0, 0, 0)
"""Zip's earliest date: equal reports make equal bytes."""


def bundle(report: Report) -> bytes:
    """Kernel, plan, header, problem and report; the plan carries the tunable values that were measured."""
    kernel, evaluation = report.candidate.kernel, report.candidate.evaluation
    assert kernel is not None
    assert evaluation is not None
    plan = kernel.plan.with_values(evaluation.tunables)
    files = {
        SOURCE_FILES[kernel.target]: kernel.source,
        "plan.json": json.dumps(plan.model_dump(mode="json"), indent=2) + "\n",
        "problem.h": render(report.preparation.facts, plan.values()),
        "problem.py": report.problem.source,
        "report.json": report.model_dump_json(indent=2) + "\n",
        "REPORT.md": markdown(report),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), text.encode(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
