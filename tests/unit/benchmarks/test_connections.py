"""What the page says about connections is what the script counts."""

from __future__ import annotations

from pathlib import Path

from benchmarks.connections import report

ROOT = Path(__file__).parents[3]


def test_the_kept_output_is_of_today_and_the_page_repeats_it() -> None:
    told = report()
    assert (ROOT / "benchmarks" / "results" / "service" / "connections.txt").read_text(encoding="utf-8") == told
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    fitting, turns = told.splitlines()[-2:]
    kept, most = [word for word in fitting.split() if word.isdigit()]
    assert f"{most} to {kept} workers" in page
    assert f"{turns.split()[-1]} requests at once" in page
