"""Compare the cost model's predictions with measurements that records hold: ``python -m benchmarks.cost_model``.

Predicts every strategy of the playbook whose time a record, a winner or a champion holds, and writes
``benchmarks/results/cost_model.json``: by target and family the rank correlation within problems, how far predictions
are off, and what trying the predicted best first loses; and the worst misses. What an earlier version of the model came
to on the same points stays in the record. ``--measure SECONDS`` first times more strategies on this machine's CPU, a
few problems at their small sizes, as far as the time allows; needs torch and g++, no card.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from agents.interface import Briefing
from agents.playbook import cost
from agents.playbook.cost.rates import rates
from agents.playbook.ladders import ladder
from agents.playbook.operators import Launches
from agents.playbook.search import Space
from agents.playbook.translator import PlaybookTranslator, operator_of, with_defaults
from benchmarks import records
from benchmarks.cost_points import CPU_RUNS, Point, points, text_of
from benchmarks.judge_run import say
from benchmarks.retrieval_statistics import rank_correlation
from cupilot.domain import problems
from cupilot.domain.evaluation import Baseline, Preparation
from cupilot.domain.problem import Problem, Target
from gpu_worker.evaluator import Evaluator

OUT = records.RESULTS / "cost_model.json"
MISSES = 12
FEWEST = 3
"""Strategies of a problem from which on their order says something."""
PROBLEMS = (
    "gelu", "softmax", "layer_norm", "matmul", "sum_reduction", "sigmoid", "matmul_transposed_b", "log_softmax",
    "l1_norm", "swish", "batched_matmul", "max_reduction", "rms_norm", "tanh", "matvec", "argmax", "relu",
    "frobenius_norm", "matmul_irregular_shapes", "instance_norm",
)  # fmt: skip
"""Those that ``--measure`` times, in this order: the families in turn."""


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 when the record was written."""
    options = _options(argv)
    if options.measure:
        measure(options.measure, options.work_dir)
    before = records.load(options.out) if options.out.exists() else {}
    found = [_row(point) for point in points()]
    model = model_hash()
    earlier = [version for version in before.get("versions", []) if version["model"] != model]
    record = {
        **records.stamp(),
        "versions": [*earlier, {"model": model, "points": len(found), "families": summary(found)}],
        "misses": sorted(found, key=lambda row: -row["off"])[:MISSES],
        "problems": problems_of(found),
    }
    records.write(options.out, record, tables=True)
    say(json.dumps(record["versions"][-1], indent=1))
    return 0


def model_hash() -> str:
    """Return the digest of the cost model's sources, by which versions in the record are told apart."""
    folder = Path(cost.__file__).parent
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("*.py"))))
    return digest.hexdigest()[:12]


def _row(point: Point) -> dict[str, Any]:
    brief = point.briefing
    predicted = cost.predicted(
        point.operator, point.strategy, brief.facts, rates(brief.device, brief.peaks, brief.facts.policy)
    )
    predicted_us = predicted.seconds * 1e6
    ratio = predicted_us / point.measured_us
    return {
        "target": point.target,
        "family": point.family,
        "problem": f"{point.problem} {brief.facts.policy.value}",
        "source": point.source,
        "strategy": text_of(point.strategy),
        "rung": point.rung,
        "measured_us": point.measured_us,
        "predicted_us": predicted_us,
        "off": max(ratio, 1 / ratio),
    }


def _by(rows: Iterable[dict[str, Any]], *keys: str) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    found: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[tuple(row[key] for key in keys)].append(row)
    return dict(sorted(found.items()))


def problems_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each problem with enough strategies, how well they are ordered and what the first one loses."""
    table = []
    for (target, family, source, problem), group in _by(rows, "target", "family", "source", "problem").items():
        if len(group) < FEWEST:
            continue
        best = min(row["measured_us"] for row in group)
        first = _tried_first(group)
        rungs = [row for row in group if row["rung"] is not None]
        ladder_first = min(rungs, key=lambda row: row["rung"]) if rungs else None
        table.append(
            {
                "target": target,
                "family": family,
                "source": source,
                "problem": problem,
                "strategies": len(group),
                "rank": rank_correlation([row["predicted_us"] for row in group], [row["measured_us"] for row in group]),
                "first": first["measured_us"] / best,
                "ladder_first": None if ladder_first is None else ladder_first["measured_us"] / best,
            }
        )
    return table


def _tried_first(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the strategy that a job would try first: of the best class, the one that the ladder has first."""
    classes = cost.ranks([row["predicted_us"] for row in group])
    places = [len(group) if row["rung"] is None else row["rung"] for row in group]
    return group[min(range(len(group)), key=lambda at: (classes[at], places[at]))]


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the figures of each target and family."""
    ordered = _by(problems_of(rows), "target", "family")
    table = []
    for (target, family), group in _by(rows, "target", "family").items():
        tried = ordered.get((target, family), [])
        table.append(
            {
                "target": target,
                "family": family,
                "points": len(group),
                "off": median(row["off"] for row in group),
                "problems": len(tried),
                "rank": _mean(item["rank"] for item in tried if item["rank"] is not None),
                "first": _mean(item["first"] for item in tried),
                "ladder_first": _mean(item["ladder_first"] for item in tried if item["ladder_first"] is not None),
            }
        )
    return table


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


def measure(seconds: float, work_dir: Path) -> None:
    """Time ladders' strategies on this machine's CPU; problems that the record holds are not timed again."""
    record = json.loads(CPU_RUNS.read_text(encoding="utf-8")) if CPU_RUNS.exists() else {"problems": {}}
    end = time.monotonic() + seconds
    with Evaluator(Target.CPU, work_dir) as evaluator:
        for name in PROBLEMS:
            if name in record["problems"] or name not in problems.names() or time.monotonic() > end:
                continue
            problem = problems.load(name)
            prepared = evaluator.prepare(problem).preparation
            if prepared is None:
                continue
            record["problems"][name] = _times(evaluator, problem, prepared)
            record |= {**records.stamp(), "device": prepared.environment.device.model_dump(mode="json")}
            record["peaks"] = prepared.peaks.model_dump(mode="json")
            records.write(CPU_RUNS, record)
            say(f"{name}: {record['problems'][name]}")


def _times(evaluator: Evaluator, problem: Problem, prepared: Preparation) -> dict[str, float]:
    """Return the time of each different strategy of the ladder whose kernel counts, in microseconds."""
    brief = Briefing(
        problem=problem,
        facts=prepared.facts,
        target=Target.CPU,
        device=prepared.environment.device,
        placement=prepared.placement,
        peaks=prepared.peaks,
    )
    operator = operator_of(brief)
    if isinstance(operator, Launches):
        return {}
    space = Space(brief, operator)
    times: dict[str, float] = {}
    for rung in ladder(operator, Target.CPU):
        strategy = with_defaults(space.fitted(rung)[0])
        if text_of(strategy) in times:
            continue
        kernel = PlaybookTranslator().translate(brief, strategy, (), 0)
        evaluation = evaluator.evaluate(problem, prepared, kernel)
        eager = evaluation.comparison(Baseline.EAGER)
        if evaluation.verdict.counts and eager is not None:
            times[text_of(strategy)] = eager.kernel_us.median
    return times


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost_model", description=(__doc__ or "")[:80])
    parser.add_argument("--measure", type=float, default=0.0, metavar="SECONDS", help="first time more on the CPU")
    parser.add_argument("--work-dir", type=Path, default=Path(".cupilot/cost"), help="builds and measured peaks")
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
