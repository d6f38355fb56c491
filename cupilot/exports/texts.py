"""Write texts that the exports share: literals that survive any content, and the evidence in words."""

from __future__ import annotations

import ast
import json
import unicodedata
from importlib import resources
from string import Template
from typing import Any

from cupilot.domain.evaluation import Baseline
from cupilot.exports.winner import Winner
from cupilot.reports.job import comparison_words, technique_lines

_HERE = resources.files("cupilot.exports")


def runtime(name: str) -> str:
    """Return a file of ``runtime/`` as it is."""
    return _HERE.joinpath("runtime", name).read_text(encoding="utf-8")


def template(name: str, **values: str) -> str:
    """Return a file of ``templates/`` with its ``$names`` filled in."""
    return Template(_HERE.joinpath("templates", name).read_text(encoding="utf-8")).substitute(values)


def literal(text: str) -> str:
    """Return a Python expression for a text.

    A raw block where that says exactly the same, else escaped line by line.
    """
    block = f'r"""{text}"""'
    try:
        if "\r" not in text and text.isprintable() | ("\n" in text) and ast.literal_eval(block) == text:
            return block
    except (SyntaxError, ValueError):
        pass
    lines = text.split("\n")
    parts = [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    return "(\n" + "".join(f"    {part!a}\n" for part in parts or [""]) + ")"


def one_line(text: str, limit: int = 200) -> str:
    """Return text of others made harmless for a heading or a comment."""
    kept = "".join(
        " " if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") else character for character in text
    )
    return " ".join(kept.split())[:limit]


def as_json(data: Any) -> str:
    """Return indented JSON with a newline at the end."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def headline(winner: Winner) -> str:
    """Return what was measured, in one line."""
    eager = winner.evaluation.comparison()
    assert eager is not None
    words = comparison_words(eager.speedup, "PyTorch eager", decided=eager.decided)
    place = f", at workload {one_line(winner.workload.name)}" if winner.workload else ""
    return f"{words} on {one_line(winner.device_name())}{place}"


def evidence(winner: Winner) -> str:
    """Return the proof as Markdown."""
    evaluation, report = winner.evaluation, winner.report
    environment = evaluation.environment or winner.preparation.environment
    rows = [
        f"| verdict | {evaluation.verdict.value} |",
        f"| device | {one_line(environment.device.name)} ({environment.device.arch}) |",
        f"| driver, CUDA, torch | {environment.driver}, {environment.cuda or 'none'}, {environment.torch} |",
        f"| compiler | {environment.compiler or (evaluation.build.compiler if evaluation.build else 'unknown')} |",
        f"| numerics policy | {winner.facts.policy.value} |",
    ]
    if winner.workload is not None:
        values = one_line(f"{winner.workload.name}: {winner.workload.text}")
        rows.append(f"| workload | {values}; the heaviest of several, and the one that this is for |")
    for baseline in Baseline:
        item = evaluation.comparison(baseline)
        rows.append(
            f"| against {baseline.value} | not measured |"
            if item is None
            else f"| against {baseline.value} | {comparison_words(item.speedup, baseline.value, decided=item.decided)};"
            f" {item.kernel_us.median:.1f} us against {item.baseline_us.median:.1f} us, {item.pairs} pairs |"
        )
    laws = [
        f"| `{law.law}` | {law.error:.3g} | {law.tolerance:.3g} | {law.reference_error:.3g} |"
        for law in evaluation.laws
    ]
    shapes = [
        f"- `{item.name}` ({item.role.value}): {item.dtype.value} {list(item.shape)}, strides {list(item.strides)}"
        for item in winner.facts.tensors
    ]
    techniques = technique_lines(winner.strategy) if winner.strategy else []
    return "\n".join([
        "| | |", "|---|---|", *rows, "",
        "Errors are relative to the output's own spread, against a float64 reference:", "",
        "| inputs | error | accepted | PyTorch's own |", "|---|---|---|---|", *laws, "",
        "Proven for", "", *shapes, "",
        *(["Techniques:", "", *(f"- {one_line(line)}" for line in techniques), ""] if techniques else []),
        f"Job `{report.job.id}`, candidate {report.candidate.ordinal}, kernel `{winner.evaluation.kernel_hash[:16]}`.",
    ])  # fmt: skip
