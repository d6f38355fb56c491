"""The page's numbers of connections are those that the script counts."""

from __future__ import annotations

from pathlib import Path

from benchmarks.connections import report

ROOT = Path(__file__).parents[3]


def test_the_page_says_what_the_script_counts() -> None:
    told = report()
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    fitting, turns = told.splitlines()[-2:]
    kept, most = [word for word in fitting.split() if word.isdigit()]
    assert f"{most} to {kept} workers" in page
    assert f"{turns.split()[-1]} requests at once" in page
