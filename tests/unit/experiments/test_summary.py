"""Reports of known outcomes: medians, claims, losses without a kernel, convergence; CSV and figures."""

from __future__ import annotations

import csv
import io
import uuid
import xml.etree.ElementTree as ET
import zipfile
from datetime import UTC, datetime
from typing import Any

import pytest

from cupilot.domain.evaluation import Interval
from cupilot.domain.experiments.matrix import Arm, Total, configuration
from cupilot.domain.job import AgentKind, Budgets
from cupilot.domain.problem import Target
from cupilot.reports.canvas import Format
from cupilot.reports.experiment import summarise, switches_of
from cupilot.reports.figures import FigureName, figure
from cupilot.reports.outcomes import JobOutcome, OutcomeState
from cupilot.reports.spreadsheet import Table, table
from cupilot.reports.words import bundle, claim, markdown
from cupilot.schemas import ExperimentReport, ExperimentView

SVG = "{http://www.w3.org/2000/svg}"
PROBLEMS = ["softmax", "gelu"]


def arms(switches: tuple[str, ...] = ("pool",)) -> list[Arm]:
    found = [("", {})]
    for name in switches:
        found = [
            (f"{text} {name}={'on' if on else 'off'}".strip(), {**method, name: on})
            for text, method in found
            for on in (True, False)
        ]
    return [
        Arm(name=text, method=configuration({"name": "sce", **method}, text), agents=AgentKind.PLAYBOOK)
        for text, method in found
    ]


def view(of: list[Arm], seeds: int, *, final: bool = True) -> ExperimentView:
    return ExperimentView(
        id=uuid.UUID(int=1),
        name="=evil <name> & $x_1$",
        state="finished" if final else "running",
        final=final,
        target=Target.CPU,
        jobs=len(of) * len(PROBLEMS) * seeds,
        finished=1,
        cost_usd=0,
        gpu_seconds=0,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        arms=of,
        reference=of[0].name,
        problems=PROBLEMS,
        seeds=list(range(seeds)),
        budgets=Budgets(),
        at_most=Total(),
        live_pool=False,
        progress=[],
    )


def outcome(arm: str, problem: str, seed: int, speed: float | None, **changes: Any) -> JobOutcome:
    values = {
        "job": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{arm}{problem}{seed}")),
        "position": seed,
        "arm": arm,
        "problem": problem,
        "seed": seed,
        "state": "succeeded" if speed else "failed",
        "standing": OutcomeState.SOLVED if speed else OutcomeState.UNSOLVED,
        "speedup": Interval(low=speed * 0.99, median=speed, high=speed * 1.01) if speed else None,
        "judged": 4,
        "valid": 3 if speed else 0,
        "failures": {"compile_error": 1} if speed else {"wrong_value": 4},
        "best_by_generation": (speed / 2, speed) if speed else (),
        "cost_usd": 0.5,
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "gpu_seconds": 2.0,
        "wall_seconds": 3.0,
        "device_class": "cpu",
        "device": "Test CPU",
        "load_average": 1.0,
        **changes,
    }
    return JobOutcome.model_validate(values)


def report(seeds: int = 3, gain: float = 1.5, **changes: Any) -> ExperimentReport:
    """The second arm is faster by ``gain`` in every block."""
    of = arms()
    rows = [
        outcome(arm.name, problem, seed, (1 + seed / 10) * (gain if number else 1.0), **changes)
        for seed in range(seeds)
        for problem in PROBLEMS
        for number, arm in enumerate(of)
    ]
    return summarise(view(of, seeds), rows)


def test_a_constant_gain_is_found_exactly() -> None:
    (comparison,) = report().comparisons
    assert comparison.ratio == pytest.approx(1.5)
    assert comparison.interval is not None
    assert (comparison.interval.low, comparison.interval.high) == pytest.approx((1.5, 1.5))
    assert (comparison.blocks, comparison.wins, comparison.losses) == (6, 6, 0)
    assert comparison.sign_p == comparison.signed_rank_p == pytest.approx(2 / 64)
    assert comparison.claim == "faster"
    assert report(gain=1 / 1.5).comparisons[0].claim == "slower"
    assert report(gain=1.0).comparisons[0].claim == "no difference shown"


def test_five_pairs_claim_nothing_however_clear() -> None:
    of = arms()
    rows = [outcome(arm.name, "gelu", seed, 1.0 + 9 * number) for seed in range(5) for number, arm in enumerate(of)]
    found = summarise(view(of, 5), rows)
    (comparison,) = found.comparisons
    assert (comparison.too_few, comparison.interval, comparison.claim) == (True, None, "too few pairs to say")
    assert all(arm.too_few and arm.validity_interval is None for arm in found.arms)
    assert all(cell.too_few and cell.interval is None for cell in found.cells)
    assert any("Too few finished jobs" in note for note in found.notes)
    assert "no interval" in markdown(found)


def test_no_kernel_is_a_loss_but_no_ratio() -> None:
    of = arms()
    rows = [outcome(of[0].name, "gelu", seed, 2.0) for seed in range(8)]
    rows += [outcome(of[1].name, "gelu", seed, 2.0 if seed < 2 else None) for seed in range(8)]
    (comparison,) = summarise(view(of, 8), rows).comparisons
    assert (comparison.wins, comparison.losses, comparison.ties) == (0, 6, 2)
    assert comparison.ratio == pytest.approx(1.0)
    assert comparison.too_few


@pytest.mark.parametrize(
    ("speed", "claimed"),
    [(1.3, "faster in ratio; wins no more pairs than it loses"), (0.7, "slower")],
)
def test_an_arm_with_fewer_kernels_is_not_called_faster(speed: float, claimed: str) -> None:
    of = arms()
    rows = [outcome(of[0].name, "gelu", seed, 1.0) for seed in range(30)]
    rows += [outcome(of[1].name, "gelu", seed, speed if seed < 8 else None) for seed in range(30)]
    (comparison,) = summarise(view(of, 30), rows).comparisons
    assert comparison.claim == claimed
    swapped = ["slower in ratio; loses no more pairs than it wins", "faster"][speed < 1]
    rows = [row.model_copy(update={"arm": of[row.arm == of[0].name].name}) for row in rows]
    assert summarise(view(of, 30), rows).comparisons[0].claim == swapped


def test_open_lost_and_mismatched_jobs_are_left_out() -> None:
    of = arms()
    rows = [outcome(arm.name, "gelu", seed, 2.0) for seed in range(6) for arm in of]
    rows[0] = outcome(of[0].name, "gelu", 0, None, standing=OutcomeState.OPEN, state="evolving")
    rows[2] = outcome(of[0].name, "gelu", 1, None, standing=OutcomeState.LOST, state="failed", reason="worker_lost")
    rows[4] = outcome(of[0].name, "gelu", 2, 2.0, device_class="other")
    found = summarise(view(of, 6, final=False), rows)
    assert found.comparisons[0].blocks == 3
    assert (found.arms[0].finished, found.arms[0].lost) == (4, 1)
    text = " ".join(found.notes)
    assert "1 of 12 jobs still open" in text
    assert "worker_lost" in text
    assert "several classes of devices" in text


def test_an_arm_tells_its_wall_time_and_the_money_that_its_cost_leaves_out() -> None:
    of = arms()
    rows = [outcome(arm.name, "gelu", seed, 2.0, wall_seconds=10.0**seed) for seed in range(3) for arm in of]
    lost = {"standing": OutcomeState.LOST, "state": "cancelled", "cost_usd": 0.25, "wall_seconds": 9e9}
    rows.append(outcome(of[0].name, "gelu", 3, None, reserved_usd=0.75, **lost))
    rows[0] = rows[0].model_copy(update={"reserved_usd": 0.125})
    found = summarise(view(of, 4), rows)
    with_lost, whole = found.arms
    assert (with_lost.cost_usd, with_lost.left_out_usd, with_lost.reserved_usd) == (1.5, 0.25, 0.875)
    assert (whole.cost_usd, whole.left_out_usd, whole.reserved_usd) == (1.5, 0.0, 0.0)
    assert (with_lost.wall_seconds_median, whole.wall_seconds_median) == (10.0, 10.0)
    text = markdown(found)
    lines = [line for line in text.splitlines() if line.startswith("| pool=") and "USD" in line]
    assert len(lines) == 2
    assert all(line.endswith("| 10 s |") for line in lines)
    assert (
        "Of `pool=on`, besides, 0.2500 USD were charged for jobs that are left out here and "
        "0.8750 USD are reserved for calls whose cost is not known." in text
    )
    assert "Of `pool=off`" not in text


def test_an_arm_without_finished_jobs_has_no_wall_time() -> None:
    found = summarise(view(arms(), 1, final=False), [])
    assert [arm.wall_seconds_median for arm in found.arms] == [None, None]
    assert "| 0 s | - |" in markdown(found)


def test_main_effects_use_every_pair_and_blocks_as_samples() -> None:
    of = arms(("pool", "roofline_guidance"))
    assert switches_of(of) == ["roofline_guidance", "pool"] or set(switches_of(of)) == {"pool", "roofline_guidance"}
    gains = {"pool": 1.2, "roofline_guidance": 0.5}
    rows = []
    for seed in range(3):
        for problem in PROBLEMS:
            for arm in of:
                speed = 4.0 + seed
                for switch, gain in gains.items():
                    speed *= gain if not arm.method[switch] else 1.0
                rows.append(outcome(arm.name, problem, seed, speed))
    found = {
        comparison.subject: comparison
        for comparison in summarise(view(of, 3), rows).comparisons
        if comparison.kind == "switch"
    }
    assert {name: value.ratio for name, value in found.items()} == {
        "pool=off": pytest.approx(1.2),
        "roofline_guidance=off": pytest.approx(0.5),
    }
    assert all(value.blocks == 6 for value in found.values())


def test_convergence_keeps_the_best_of_jobs_that_stopped_early() -> None:
    of = arms()[:1]
    rows = [
        outcome(of[0].name, "gelu", 0, 3.0, best_by_generation=(3.0,)),
        outcome(of[0].name, "gelu", 1, 2.0, best_by_generation=(None, 1.0, 2.0)),
    ]
    points = summarise(view(of, 2), rows).convergence
    assert [(point.generation, point.jobs, point.low, point.speedup, point.high) for point in points] == [
        (1, 1, 3.0, 3.0, 3.0),
        (2, 2, 1.0, 2.0, 3.0),
        (3, 2, 2.0, 2.5, 3.0),
    ]


def test_tables_have_a_row_each_and_no_formulas() -> None:
    found = report()
    assert found.comparisons
    sizes = {Table.ARMS: 2, Table.CELLS: 4, Table.COMPARISONS: 1, Table.CONVERGENCE: 8, Table.JOBS: 12}
    for which, size in sizes.items():
        rows = list(csv.DictReader(io.StringIO(table(found, which))))
        assert len(rows) == size
        assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row.values())
    (row,) = csv.DictReader(io.StringIO(table(found, Table.COMPARISONS)))
    assert (float(row["ci_low"]), float(row["ci_high"])) == pytest.approx((1.5, 1.5))
    jobs = list(csv.DictReader(io.StringIO(table(found, Table.JOBS))))
    assert float(jobs[0]["speedup"]) == pytest.approx(1.0)
    assert float(jobs[0]["speedup_ci_low"]) == pytest.approx(0.99)


def parsed(found: ExperimentReport, name: FigureName) -> tuple[set[str], str]:
    """(ids of drawn parts, all text)."""
    root = ET.fromstring(figure(found, name, Format.SVG))
    words = ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]
    return {element.get("id", "") for element in root.iter()}, " ".join(words)


def test_figures_draw_every_arm_and_problem_and_say_their_names() -> None:
    found = report()
    ids, text = parsed(found, FigureName.CONVERGENCE)
    assert {f"line-{place}-{number}" for place in range(2) for number in range(2)} <= ids
    assert all(word in text for word in (*PROBLEMS, "pool=on", "pool=off", "=evil <name> & $x_1$", "generation"))
    ids, text = parsed(found, FigureName.SPEEDUPS)
    assert {f"bar-{place}-{number}" for place in range(2) for number in range(2)} <= ids
    ids, text = parsed(found, FigureName.COMPARISONS)
    assert "ratio-0" in ids
    assert "faster (n=6)" in text
    ids, text = parsed(found, FigureName.OUTCOMES)
    assert {f"part-{place}-{part}" for place in range(2) for part in range(4)} <= ids
    assert "24 candidates" in text


@pytest.mark.parametrize("name", FigureName)
def test_figures_are_the_same_each_time_and_there_before_any_result(name: FigureName) -> None:
    found = report()
    assert figure(found, name, Format.SVG) == figure(found, name, Format.SVG)
    assert figure(found, name, Format.PNG).startswith(b"\x89PNG")
    of = arms()
    nothing = summarise(view(of, 1, final=False), [])
    assert b"not final" in figure(nothing, name, Format.SVG) or name in (FigureName.OUTCOMES, FigureName.COMPARISONS)


def test_the_bundle_is_whole_and_repeatable() -> None:
    found = report()
    archive = bundle(found)
    assert archive == bundle(found)
    names = set(zipfile.ZipFile(io.BytesIO(archive)).namelist())
    assert names == {
        "report.json",
        "REPORT.md",
        "SHA256SUMS",
        *(f"{which.value}.csv" for which in Table),
        *(f"{name.value}.{form.value}" for name in FigureName for form in Format),
    }


def test_words_never_go_beyond_the_claim() -> None:
    for item in (*report().comparisons, *report(seeds=1).comparisons):
        sentence = claim(item)
        assert f"**{item.claim}**" in sentence
        assert "interval" in sentence


def test_an_arms_speeds_are_counted_as_kernelbench_counts_them() -> None:
    of = arms()[:1]
    speeds = [0.9, 1.2, 1.6, 2.0, 4.0, None]
    rows = [outcome(of[0].name, "gelu", seed, speed) for seed, speed in enumerate(speeds)]
    found = summarise(view(of, 6), rows)
    summary = found.arms[0].speeds
    assert summary is not None
    assert summary.fast == {
        "0": pytest.approx(5 / 6),
        "0.5": pytest.approx(5 / 6),
        "0.8": pytest.approx(5 / 6),
        "1": pytest.approx(4 / 6),
        "1.5": pytest.approx(3 / 6),
        "2": pytest.approx(1 / 6),
    }
    assert summary.over_2x == 1
    assert summary.quantiles == {
        "10": pytest.approx(1.02),
        "25": pytest.approx(1.2),
        "50": pytest.approx(1.6),
        "75": pytest.approx(2.0),
        "90": pytest.approx(3.2),
    }
    assert summary.geometric_mean == pytest.approx((0.9 * 1.2 * 1.6 * 2.0 * 4.0) ** 0.2)
    assert "fast_1 67%" in markdown(found)


def test_there_are_no_speeds_before_a_job_is_finished() -> None:
    of = arms()[:1]
    found = summarise(view(of, 1, final=False), [])
    assert found.arms[0].speeds is None
    assert "How many are how fast" not in markdown(found)
