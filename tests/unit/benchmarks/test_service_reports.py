"""Reports of the service that are kept: each is what its command writes, and the pages say what it says."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import faults, records, simulation

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_on_faults_is_that_of_its_report() -> None:
    report = records.read("service/faults")
    page = faults.markdown(report)
    calls = report["model_calls"]
    lost = calls["paid"] - calls["answered"]
    assert f"- lost of what was paid: {lost} model answers" in page
    assert f"{lost} of {calls['paid']} paid answers" in " ".join((DOCS / "architecture.md").read_text().split())


def test_a_report_without_a_lost_answer_says_so() -> None:
    report = records.read("service/faults")
    calls = report["model_calls"] | {"paid": report["model_calls"]["answered"]}
    assert "- lost of what was paid: nothing\n" in faults.markdown(report | {"model_calls": calls})


def test_kept_simulations_are_of_the_commands_that_the_page_names() -> None:
    page = " ".join((DOCS / "scale.md").read_text(encoding="utf-8").split())
    commands = re.findall(r"`python -m benchmarks\.simulation (--[^`]+)`", page)
    assert len(commands) == 2
    for command in commands:
        asked = simulation.parser().parse_args(command.split())
        kept = records.load(simulation.RESULTS / asked.out.name)
        assert kept["arguments"] == simulation.of_the_run(asked)
