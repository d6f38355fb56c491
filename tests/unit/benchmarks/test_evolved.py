"""The output of a run becomes champions and a compact record, from which its jobs come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import evolved, make_champions, records
from cupilot.domain.champions import Champion, champions
from cupilot.domain.problem import Target

MADE_BY_A_MODEL = next(each for each in champions() if each.author == "model" and each.target is Target.CUDA)


def output(champion: Champion, folder: Path) -> Path:
    """Write what ``model_kernels`` leaves of a run whose only winner is this champion."""
    evaluation, preparation = champion.evaluation, champion.preparation.model_dump(mode="json")
    job: dict[str, Any] = {key: preparation[key] for key in ("environment", "peaks", "placement", "baseline_us")}
    winner = {
        "strategy": champion.strategy.model_dump(mode="json"),
        "plan": champion.kernel.plan.model_dump(mode="json"),
        "evaluation": evolved.evaluation(evaluation.model_dump(mode="json")),
    }
    row = {"id": "s1", "generation": 0, "operator": "initial", "techniques": [], "verdict": "audited", "speedup": 2.0}
    job |= {
        "problem": champion.problem,
        "problem_hash": champion.problem_hash,
        "target": "cuda",
        "policy": champion.policy.value,
        "author": "model",
        "stop": "generations",
        "best": "s1",
        "candidates": [row | {"reason": None, "seconds": 1.0}],
        "winner": winner,
    }
    path = folder / "run.json"
    records.write(path, {"command": "run", "commit": "a" * 40, "machine": "host", "begun": "2026-01-01", "jobs": [job]})
    source = folder / "run" / champion.problem / "kernel.cu"
    source.parent.mkdir(parents=True)
    source.write_text(champion.kernel.source, encoding="utf-8")
    return path


def test_the_output_of_a_run_becomes_champions(tmp_path: Path) -> None:
    [made] = make_champions.of_run(output(MADE_BY_A_MODEL, tmp_path))
    assert (made.problem, made.policy, made.arch) == (
        MADE_BY_A_MODEL.problem,
        MADE_BY_A_MODEL.policy,
        MADE_BY_A_MODEL.arch,
    )
    assert made.kernel == MADE_BY_A_MODEL.kernel
    assert made.lower_bound == pytest.approx(MADE_BY_A_MODEL.lower_bound, rel=1e-6)


def test_a_record_keeps_what_was_measured_and_what_details_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = output(MADE_BY_A_MODEL, tmp_path)
    [whole] = evolved.of_run(path)["jobs"]
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    assert evolved.main([str(path)]) == 0
    record = records.read("run")
    assert record["machine"].endswith("; host")
    [job] = evolved.jobs("run")
    assert "peaks" not in job
    assert [row["id"] for row in job["candidates"]] == ["s1"]
    kept, measured = job["winner"]["evaluation"], whole["winner"]["evaluation"]
    for comparison, before in zip(kept["comparisons"], measured["comparisons"], strict=True):
        assert comparison["speedup"] == pytest.approx(before["speedup"], rel=1e-5)
    assert "profile" not in kept
    assert evolved.main([str(path), "--detailed", MADE_BY_A_MODEL.problem]) == 0
    attempt = evolved.winner("run", MADE_BY_A_MODEL.problem)
    assert attempt.kernel == MADE_BY_A_MODEL.kernel
    assert attempt.evaluation is not None
    assert attempt.evaluation.profile is not None


KEPT = sorted(
    source.parent for source in records.RESULTS.glob("*/*/kernel.c*") if source.parent.parent.name != "h100_unconfirmed"
)


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_a_source_that_is_kept_is_the_winner_of_its_record_with_its_plan(folder: Path) -> None:
    attempt = evolved.winner(folder.parent.name, folder.name)
    assert attempt.kernel is not None
    assert attempt.evaluation is not None
    assert attempt.kernel.content_hash().startswith(attempt.evaluation.kernel_hash)
