"""The crossover study on a judge that reads sources: what counts as success, for the playbook and for a scripted model.

A scripted model shows that each kind of child is classed as what it is; how often a model makes which kind, it cannot.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agents.interface import AgentError, Agents, Attempt, Briefing
from agents.playbook import agents as playbook
from benchmarks.crossover_pairs import Pair, Size, pairs
from benchmarks.crossover_report import draw, head, lines, summary
from benchmarks.crossover_study import _size
from benchmarks.crossover_trials import Arm, Outcome, Study, Trial, rows
from cupilot.domain.evaluation import (
    Baseline,
    BuildReport,
    Comparison,
    Evaluation,
    Failure,
    FailureKind,
    Interval,
    LawResult,
    Verdict,
)
from cupilot.domain.kernel import Kernel
from cupilot.domain.pool import Lesson
from cupilot.domain.problem import Problem, Target
from cupilot.domain.strategy import Strategy
from cupilot.reports.canvas import Format
from tests.unit.agents.playbook.briefings import briefing as brief
from tests.unit.agents.playbook.references import trace

ONE = Interval(low=1, median=1, high=1)
TRACES = {
    "special_function": "exp",
    "vector_load_128": "float4",
    "shuffle": "__shfl",
    "shared_memory": "__shared__",
    "async_copy": "cp.async",
    "tensor_core": "mma",
    "streaming": "__stcs",
    "read_only_load": "__ldg",
    "cluster_barrier": "barrier.cluster",
}


@pytest.fixture(scope="module", name="briefing")
def _briefing() -> Briefing:
    facts, _ = trace(lambda x: torch.softmax(x, 1), {"x": torch.rand(512, 4096)}, op_class="softmax")
    return brief(facts, Target.CUDA)


class ReadingJudge:
    """Finds what a source says: ``broken`` does not compile, ``wrong`` is wrong, all else counts."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def evaluate(self, problem: Problem, preparation: Any, kernel: Kernel) -> Evaluation:  # noqa: ARG002
        self.seen.append(kernel.content_hash())
        base: dict[str, Any] = {"kernel_hash": kernel.content_hash(), "problem_hash": problem.content_hash()}
        for word, kind in (("broken", FailureKind.COMPILE_ERROR), ("wrong", FailureKind.WRONG_VALUE)):
            if word in kernel.source:
                return Evaluation(**base, verdict=Verdict.REJECTED, failure=Failure(kind=kind, message=word))
        seen = {family: kernel.source.count(word) for family, word in TRACES.items()}
        return Evaluation(
            **base,
            verdict=Verdict.AUDITED,
            build=BuildReport(ok=True, compiler="test", seconds=0, instructions=seen),
            laws=(LawResult(law="own", passed=True, error=0, tolerance=1, reference_error=0),),
            comparisons=(
                Comparison(baseline=Baseline.EAGER, kernel_us=ONE, baseline_us=ONE, speedup=ONE, pairs=9, launches=9),
            ),
        )


class ScriptedTranslator:
    """A model's stand-in: does to the playbook's kernel what it is told."""

    def __init__(self, script: str) -> None:
        self.script = script

    def translate(
        self,
        briefing: Briefing,
        strategy: Strategy,
        parents: Sequence[Attempt],
        seed: int,
        *,
        lessons: Sequence[Lesson] = (),
    ) -> Kernel:
        return playbook().translator.translate(briefing, strategy, parents, seed, lessons=lessons)

    def merge(self, briefing: Briefing, first: Attempt, second: Attempt, seed: int) -> Kernel:
        whole = Strategy(techniques=(*first.strategy.techniques, *second.strategy.techniques))
        kernel = playbook().translator.translate(briefing, whole, (), seed)
        if self.script == "refuses":
            raise AgentError("I cannot help with that")
        if self.script == "forgets":
            assert second.kernel is not None
            return first.kernel or kernel
        marks = {"competent": "", "sloppy": "\nbroken", "careless": "\nwrong"}
        return kernel.model_copy(update={"source": kernel.source + marks[self.script]})


def study(briefing: Briefing, players: Agents) -> Study:
    return Study(briefing.problem, SimpleNamespace(), briefing, ReadingJudge(), players, playbook())  # type: ignore[arg-type]


def with_translator(translator: ScriptedTranslator) -> Agents:
    rules = playbook()
    return Agents(**{**{name: getattr(rules, name) for name in rules.__dataclass_fields__}, "translator": translator})


@pytest.mark.parametrize("text", ["1x1", "1x2", "1x3", "1x4", "2x2"])
def test_parents_are_disjoint_valid_and_together_renderable(briefing: Briefing, text: str) -> None:
    size = Size.parse(text)
    found = list(islice(pairs(briefing, size, 3, believe=False), 10))
    assert len(found) == 10
    assert found == list(islice(pairs(briefing, size, 3, believe=False), 10))
    for pair in found:
        first, second = set(pair.first.ids()), set(pair.second.ids())
        assert (len(first), len(second)) == (size.first, size.second)
        assert not first & second
        assert set(pair.union.ids()) == first | second


def test_an_impossible_size_has_no_pairs(briefing: Briefing) -> None:
    assert not list(pairs(briefing, Size(6, 6), 0, believe=False))
    options = SimpleNamespace(seed=0, believe=False, trials=3, target="cuda")
    trials, notes = _size(study(briefing, playbook()), Size(6, 6), options)  # type: ignore[arg-type]
    assert not trials
    assert "there are no such parents with checkable techniques" in notes[0]


def test_templates_keep_every_technique_of_any_number_of_them(briefing: Briefing) -> None:
    options = SimpleNamespace(seed=0, believe=False, trials=4, target="cuda")
    for text in ("1x1", "1x4"):
        trials, _ = _size(study(briefing, playbook()), Size.parse(text), options)  # type: ignore[arg-type]
        strategy = [trial for trial in trials if trial.arm is Arm.STRATEGY]
        assert len(strategy) == 4
        assert {item.outcome for item in strategy} == {Outcome.SUCCESS}


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("competent", Outcome.SUCCESS),
        ("sloppy", Outcome.SYNTAX),
        ("careless", Outcome.FUNCTION),
        ("forgets", Outcome.LOST),
        ("refuses", Outcome.REFUSED),
    ],
)
def test_each_kind_of_child_is_classed_as_what_it_is(briefing: Briefing, script: str, outcome: Outcome) -> None:
    options = SimpleNamespace(seed=0, believe=False, trials=3, target="cuda")
    made = study(briefing, with_translator(ScriptedTranslator(script)))
    trials, _ = _size(made, Size(1, 2), options)  # type: ignore[arg-type]
    assert [trial.outcome for trial in trials if trial.arm is Arm.CODE] == [outcome] * 3
    assert {trial.outcome for trial in trials if trial.arm is Arm.STRATEGY} == {Outcome.SUCCESS}
    if outcome is Outcome.LOST:
        assert all(trial.absent for trial in trials if trial.arm is Arm.CODE)
    judge: Any = made.judge
    assert len(judge.seen) == len(set(judge.seen)), "a kernel is judged once"


def test_shares_have_intervals_and_the_figure_every_bar(briefing: Briefing) -> None:
    pair = next(pairs(briefing, Size(1, 1), 0, believe=False))

    def some(arm: Arm, **counts: int) -> list[Trial]:
        return [
            Trial("softmax", Size(1, 1), arm, pair, Outcome[name])
            for name, count in counts.items()
            for _ in range(count)
        ]

    shares = summary([*some(Arm.STRATEGY, SUCCESS=20), *some(Arm.CODE, SUCCESS=0, SYNTAX=15, FUNCTION=5)])
    assert [(row["arm"], row["success"]) for row in shares] == [("strategy", 1.0), ("code", 0.0)]
    assert shares[1]["ci_high"] == pytest.approx(0.1611, abs=1e-4)
    assert "does not build 15" in lines(shares)[1]
    svg = draw(shares, "playbook", Format.SVG)
    root = ET.fromstring(svg)
    ids = {element.get("id") for element in root.iter()}
    assert {f"part-{place}-{part}" for place in range(2) for part in range(5)} <= ids
    assert svg == draw(shares, "playbook", Format.SVG)
    assert "no model is used" in head("playbook")
    assert isinstance(pair, Pair)


def test_the_record_has_a_row_a_pair(briefing: Briefing) -> None:
    pair, other = islice(pairs(briefing, Size(1, 1), 0, believe=False), 2)
    trials = [
        Trial("softmax", Size(1, 1), Arm.STRATEGY, pair, Outcome.SUCCESS),
        Trial("softmax", Size(1, 1), Arm.CODE, pair, Outcome.LOST, absent={"vector_loads": "none in the binary"}),
        Trial("softmax", Size(1, 1), Arm.CODE, other, Outcome.SYNTAX),
    ]
    first, second = rows(trials)
    assert first["parents"] == [list(pair.first.ids()), list(pair.second.ids())]
    assert first["strategy"] == {"outcome": "success"}
    assert first["code"] == {"outcome": "correct, techniques lost", "absent": ["vector_loads"]}
    assert set(second) == {"problem", "size", "parents", "code"}
