"""Champions are made of reports, and a shipped one gives way to a faster one only."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import make_champions
from cupilot.domain.champions import Champion, champions, parse
from cupilot.domain.evaluation import Verdict
from cupilot.reports.champion import report_of


def slower(champion: Champion) -> Champion:
    [eager, *others] = champion.evaluation.comparisons
    low = eager.speedup.model_copy(update={"low": eager.speedup.low * 0.9})
    comparisons = (eager.model_copy(update={"speedup": low}), *others)
    return champion.model_copy(
        update={"evaluation": champion.evaluation.model_copy(update={"comparisons": comparisons})}
    )


@pytest.mark.parametrize("champion", champions()[:3], ids=lambda one: one.problem)
def test_a_report_becomes_the_champion_that_it_is_about(champion: Champion) -> None:
    report = report_of(champion)
    again = make_champions.of_report(report)
    assert again is not None
    assert (again.kernel, again.strategy, again.preparation) == (
        champion.kernel,
        champion.strategy,
        champion.preparation,
    )
    assert again.evaluation.comparisons == champion.evaluation.comparisons
    assert (again.author, again.generation) == (champion.author, champion.generation)
    audited = champion.evaluation.model_copy(update={"verdict": Verdict.AUDITED})
    unproven = report.candidate.model_copy(update={"evaluation": audited})
    assert make_champions.of_report(report.model_copy(update={"candidate": unproven})) is None


def test_a_shipped_one_is_replaced_by_a_faster_one_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_champions, "FOLDER", tmp_path)
    champion = champions()[0]
    assert make_champions.write(iter([slower(champion)])) == 1
    assert make_champions.write(iter([champion])) == 1
    assert make_champions.write(iter([slower(champion)])) == 0
    [path] = tmp_path.iterdir()
    assert parse(path.read_text(encoding="utf-8"), path.name) == champion
