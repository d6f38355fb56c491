"""The scripts of the judge's own numbers run and write what they say, with a scripted judge; kernels they use build."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks import (
    exploit_matrix,
    exploit_results,
    judge_against_ncu,
    judge_cards,
    judge_report,
    judge_run,
    judge_self,
    judge_throughput,
    records,
)
from benchmarks.judge_kernels import kernels_of, problem_of
from cupilot.domain import problems
from cupilot.domain.device_headers import COMMON
from cupilot.domain.evaluation import (
    Baseline,
    BuildReport,
    Comparison,
    Evaluation,
    LawResult,
    Phase,
    Preparation,
    PreparationResult,
    Verdict,
)
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import NumericsPolicy, Problem, ProblemFacts, Target
from tests.gpu.exploits import EXPLOITS
from tests.gpu.honest import HONEST
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.evolution.populations import interval
from tests.unit.exports.winners import facts_of
from tests.unit.gpu_worker.records import preparation

Script = Callable[[list[str]], int]


class ScriptedJudge:
    """Prepares everything at once, and measures what it is told to."""

    speedups: ClassVar[list[float]] = [2.0, 2.01, 1.99, 2.0]

    def __init__(self, *_: Any, **__: Any) -> None:
        self._count = 0

    def __enter__(self) -> ScriptedJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is held."""

    def prepare(self, problem: Problem) -> PreparationResult:
        facts = facts_of(problem.source).model_copy(update={"problem_hash": problem.content_hash()})
        return PreparationResult(preparation=preparation().model_copy(update={"facts": facts}))

    def build_ahead(self, _: Preparation, kernels: Sequence[Kernel]) -> int:
        return len(kernels)

    def evaluate(self, problem: Problem, _: Preparation, kernel: Kernel) -> Evaluation:
        speedup = self.speedups[self._count % len(self.speedups)]
        self._count += 1
        return Evaluation(
            kernel_hash=kernel.content_hash(),
            problem_hash=problem.content_hash(),
            verdict=Verdict.AUDITED,
            build=BuildReport(
                ok=True, compiler="cc", flags=(), seconds=0.125, log="", binary_hash=kernel.content_hash()
            ),
            laws=(LawResult(law="own", passed=True, error=0.0, tolerance=1.0, reference_error=0.0),),
            comparisons=(
                Comparison(
                    baseline=Baseline.EAGER,
                    kernel_us=interval(100.0),
                    baseline_us=interval(100.0 * speedup),
                    speedup=interval(speedup),
                    pairs=6,
                    launches=60,
                ),
            ),
            phases=(Phase(name="build", start=0.0, seconds=0.25), Phase(name="time", start=0.25, seconds=0.75)),
        )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    monkeypatch.setattr(judge_run, "Evaluator", ScriptedJudge)

    def of(script: Script, *more: str, code: int = 0) -> dict[str, Any]:
        out = tmp_path / "record.json"
        common = ["--target", "cpu", "--work-dir", str(tmp_path / "work"), "--out", str(out)]
        assert script([*common, *more]) == code
        found = records.load(out)
        assert found["complete"]
        return found

    return of


@cache
def built_in(name: str) -> ProblemFacts:
    return facts_of(problems.load(name).source)


SMALL = ("--problems", "gelu:16x64", "softmax:16x64")


def test_throughput_counts_distinct_kernels_and_says_where_time_goes(
    run: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(judge_throughput.main, *SMALL, "--kernels", "3")
    assert found["summary"]["evaluations"] == found["summary"]["distinct_binaries"] == 6
    assert found["summary"]["verdicts"] == {"audited": 6}
    assert found["summary"]["build_seconds_median"] == 0.125
    assert {row["problem"] for row in found["kernels"]} == {"gelu_16x64", "softmax_16x64"}
    printed = capsys.readouterr().out
    assert "evaluations an hour" in printed
    assert "build " in printed


def test_a_point_of_a_sweep_costs_its_share_of_the_phase() -> None:
    phases = {"sweep_build": 0.05, "sweep": 0.1, "sweep_judge": 0.1}
    rows = [{"sweep_points": points, "phases": phases} for points in (4, 6, 0)]
    found = judge_throughput.swept(rows)
    assert (found["swept_kernels"], found["sweep_points"]) == (2, 10)
    assert (found["sweep_ms_a_point"], found["sweep_ms_screened"]) == pytest.approx((50.0, 20.0))
    assert judge_throughput.swept([])["sweep_ms_a_point"] is None


def test_no_time_left_begins_nothing(run: Callable[..., dict[str, Any]]) -> None:
    assert run(judge_throughput.main, *SMALL, "--seconds", "-1", code=1)["summary"] == {"evaluations": 0}


def test_a_kernel_against_itself(run: Callable[..., dict[str, Any]]) -> None:
    found = run(judge_self.main, "--problems", "gelu:16x64", "--repetitions", "3")
    assert found["kernels"][0]["ratios"] == pytest.approx([2.01 / 2, 1.99 / 2.01, 2 / 1.99])
    assert found["summary"]["repetitions"] == 3
    assert found["summary"]["p100"] == pytest.approx(1 - 1.99 / 2.01)
    assert found["summary"]["within_half_percent"] == pytest.approx(1 / 3)


def test_without_a_profiler_only_the_judge_is_shown(run: Callable[..., dict[str, Any]]) -> None:
    found = run(judge_against_ncu.main, "--problems", "gelu:16x64", code=1)
    assert found["kernels"][0]["judge_us"] == 100.0
    assert found["kernels"][0]["added_over_rotating"] is None


def test_a_profilers_table_is_read_by_launch_sequence() -> None:
    rows = ['"0","parts","1,000"', '"1","finish","500"', '"2","parts","1,200"', '"3","finish","500"']
    table = "\n".join(["==PROF== connected", '"ID","Kernel Name","gpu__time_duration.sum"', '"","","ns"', *rows])
    assert judge_against_ncu.sequence_us(table, 2) == pytest.approx(1.6)
    assert judge_against_ncu.sequence_us("nothing", 2) is None


def test_slots_exceed_the_cache_and_fit_the_memory() -> None:
    assert judge_against_ncu.slots_for(2**20, 50 * 2**20, 1e-3, 2**37) == 300
    assert judge_against_ncu.slots_for(2**28, 50 * 2**20, 1e-4, 2**37) == 20
    assert judge_against_ncu.slots_for(2**34, 50 * 2**20, 1.0, 2**37) == 3


def test_cards_are_compared_with_the_first_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(name: str, cards: list[str], _: Any) -> list[dict[str, Any]]:
        rate = 1000.0 if name == "alone" else 950.0
        return [
            {"card": card, "evaluations": 4, "per_hour": rate, "seconds_median": 2.0, "profile": []} for card in cards
        ]

    monkeypatch.setattr(judge_cards, "_run", found)
    out = tmp_path / "cards.json"
    assert judge_cards.main(["--cards", "0", "1", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["summary"]["ratio"] == pytest.approx(1.9)
    assert "2 cards against one: 1.90 times (95.0% of linear)" in capsys.readouterr().out


def test_the_page_says_what_the_records_say() -> None:
    text = judge_report.PAGE.read_text(encoding="utf-8")
    assert judge_report.page(text) == text, "run python -m benchmarks.judge_report --write"


def test_records_become_a_section(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    for name, record in (
        ("throughput", run(judge_throughput.main, *SMALL, "--kernels", "2")),
        ("self", run(judge_self.main, "--problems", "gelu:16x64", "--repetitions", "3")),
    ):
        (folder / f"h200_{name}.json").write_text(json.dumps(record), encoding="utf-8")
    text = judge_report.page("# Judge\n\n## What is not defended\n\n- much\n", folder)
    assert text.startswith("# Judge\n\n## What is not defended\n\n- much\n\n## Numbers\n")
    assert "4 kernels, 2 problems" in text
    assert "gelu_16x64: **1.00%** (3)" in text
    assert "| throughput of two cards against one | 95 % of linear | not measured yet |" in text
    assert "| a point of a sweep over tunables | milliseconds | not measured yet |" in text
    assert "| `time` | 0.75 |" in text
    assert judge_report.page(text, folder) == text
    assert judge_report.page(f"{text}\n## More\n\n- words\n", folder) == f"{text}\n## More\n\n- words\n"


def test_cards_side_by_side_are_compared_phase_by_phase(tmp_path: Path) -> None:
    def cards(*loads: float) -> dict[str, Any]:
        return {"cards": [{"profile": ["phase  mean s  median s  share", f"load {load} 0.1 5.0%"]} for load in loads]}

    summary = {"cards": 4, "ratio": 3.04, "of_linear": 0.76, "alone_per_hour": 2000, "together_per_hour": 6080}
    record = {"alone": cards(0.3), "together": cards(0.6, 0.8), "summary": summary}
    (tmp_path / "h200_cards_four.json").write_text(json.dumps(record), encoding="utf-8")
    text = judge_report.section(tmp_path)
    assert "| 3.8 times | **3.04 times** (76% of linear), 6,080 an hour together |" in text
    assert "| `load` | 0.30 | 0.70 |" in text


def test_what_a_gpu_says_to_exploits_and_honest_kernels_is_recorded(
    run: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exploit_results, "EXPLOITS", {"half_precision": EXPLOITS["half_precision"]})
    monkeypatch.setattr(exploit_results, "HONEST", {"gelu": 2})
    monkeypatch.setattr(exploit_results, "WRITTEN", {})
    cases = run(exploit_results.main, "--parts", "exploits", "honest", code=1)["cases"]
    assert [(case["part"], case["ok"]) for case in cases] == [("exploits", False), ("honest", True), ("honest", True)]


def test_a_printed_test_run_is_a_record_too() -> None:
    text = "..\nhalf_precision: policy_breach: fp16\n.\nnan_everywhere: crash: so\ngelu: audited, kernel 6 us\n96\n"
    text += "inputs_fetched_ahead: audited, 0.987 times as fast as without\n"
    text += "inputs_kept_in_the_cache: audited, 1.312 times as fast as without\n"
    found = [(item["part"], item["name"], item["ok"]) for item in exploit_results.printed(text)]
    assert found == [
        ("exploits", "half_precision", True),
        ("exploits", "nan_everywhere", False),
        ("honest", "gelu", True),
        ("futile", "inputs_fetched_ahead", True),
        ("futile", "inputs_kept_in_the_cache", False),
    ]


def test_outcomes_on_a_gpu_come_from_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploit_matrix, "RESULTS", tmp_path / "none.json")
    assert "No record of a GPU's judge" in exploit_matrix.page()
    cases = [
        {"part": "exploits", "name": "half_precision", "ok": True, "verdict": "rejected", "kind": "policy_breach"},
        {"part": "futile", "name": "inputs_fetched_ahead", "ok": True, "verdict": "audited", "earned": 0.987},
        {"part": "honest", "name": "gelu", "ok": False, "verdict": "correct", "kind": "wrong_value"},
    ]
    record = {"machine": "a GPU", "begun": "2026-01-02T00:00:00+00:00", "complete": False, "cases": cases}
    (tmp_path / "some.json").write_text(json.dumps(record), encoding="utf-8")
    monkeypatch.setattr(exploit_matrix, "RESULTS", tmp_path / "some.json")
    page = exploit_matrix.page()
    assert "1 of 1 exploits caught for what they are" in page
    assert "1 of 1 attempts to gain from other launches that earned nothing" in page
    assert "(`inputs_fetched_ahead`): `audited`, 0.99 times as fast as without" in page
    assert "0 of 1 honest kernels believed" in page
    assert "Not as they should be: `gelu`" in page
    assert "computes in fp16 (`half_precision`): `policy_breach` on the GPU" in page


def test_the_honest_kernels_of_the_gpu_are_forty_over_all_families() -> None:
    assert sum(HONEST.values()) >= 40
    families = {"elementwise", "matmul", "softmax", "norm", "reduction", "loss", "conv", "pool", "scan", "attention"}
    assert {built_in(name).op_class for name in HONEST} >= families
    for name, count in HONEST.items():
        about = briefing(built_in(name), Target.CUDA).model_copy(update={"problem": problems.load(name)})
        assert len(kernels_of(about, count)) == count, name


WRITTEN = (
    "conv2d_alexnet", "conv2d_depthwise_separable", "conv_transpose2d_strided_grouped_padded_dilated", "max_pool1d",
    "avg_pool3d", "cumsum_reverse", "masked_cumsum", "batch_norm", "attention", "cross_entropy_loss",
    "matmul_upper_triangular",
)  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_written_kernels_build(name: str) -> None:
    problem, facts = problems.load(name), built_in(name)
    found = kernels_of(briefing(facts, Target.CUDA).model_copy(update={"problem": problem}), 2)
    assert len({item.kernel.content_hash() for item in found}) == 2
    kernel = found[0].kernel
    compile_cuda(kernel.model_copy(update={"source": COMMON + kernel.source}), facts)


def test_a_problem_can_be_named_by_operator_and_size() -> None:
    problem = problem_of("row_sum:32x64", "full", NumericsPolicy.TF32)
    assert problem.policy is NumericsPolicy.TF32
    assert facts_of(problem.source).tensors[0].shape == (32, 64)
