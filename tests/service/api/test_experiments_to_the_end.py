"""Experiments over REST from the request to the last figure: whole, with a job that fails, and cancelled half-way."""

from __future__ import annotations

import csv
import io
import json
import uuid
import zipfile
from typing import Any

import pytest

from cupilot.settings import Settings
from tests.service.api.world import SOURCE, Team, World
from tests.service.doubles import strategy
from tests.service.rig import Rig

pytestmark = pytest.mark.service

FIGURES = ("comparisons", "convergence", "outcomes", "speedups")


def make(team: Team, seeds: list[int]) -> str:
    request = {
        "name": "short or long",
        "target": "cpu",
        "method": {"name": "sce", "population": 3, "elites": 1, "repair_rounds": 1},
        "switches": {"generations": [1, 2]},
        "problems": [{"name": "double", "source": SOURCE}],
        "seeds": seeds,
        "budgets": {"candidates": 12, "wall_seconds": 600, "cost_usd": 0},
    }
    response = team.http.post("/v1/experiments", json=request)
    assert response.status_code == 202, response.text
    return f"/v1/experiments/{response.json()['id']}"


def rig_of(world: World) -> Rig:
    """Nobody dies here, so no lease may run out on a machine that is busy with other things."""
    patient = Settings(lease_seconds=600.0)
    return Rig(world.database, patient, [strategy("t1"), strategy("t2"), strategy("broken")])


def finish(rig: Rig) -> None:
    """Do all that was published, and all that follows. What was done before is not done again."""
    for message in list(rig.postbox.sent):
        rig.do(message)
    rig.run()


def rows(team: Team, path: str, table: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(team.http.get(f"{path}/report/tables/{table}").text)))


def test_from_the_request_to_the_last_figure(world: World, team: Team) -> None:
    """Two pairs of jobs, one of which fails: the report is whole and says so."""
    path, rig = make(team, [0, 1]), rig_of(world)
    first = team.http.get(f"{path}/jobs").json()["items"][0]
    message = rig.run_until(uuid.UUID(first["job"]["id"]), "prepare")
    rig.judge.invalid = True
    rig.do(message)
    rig.judge.invalid = False
    finish(rig)

    final = team.http.get(path).json()
    assert (final["state"], final["final"], final["finished"], final["jobs"]) == ("finished", True, 4, 4)
    report = team.http.get(f"{path}/report").json()
    assert {outcome["standing"] for outcome in report["outcomes"]} == {"solved", "unsolved"}
    assert sum(arm["solved"] for arm in report["arms"]) == 3
    assert not any("open" in note for note in report["notes"])
    states = [row["state"] for row in rows(team, path, "jobs")]
    assert sorted(states) == ["failed"] + ["succeeded"] * 3
    for table in ("arms", "cells", "comparisons", "convergence"):
        assert rows(team, path, table), table
    for name in FIGURES:
        assert team.http.get(f"{path}/report/figures/{name}", params={"format": "png"}).content.startswith(b"\x89PNG")
    kept = zipfile.ZipFile(io.BytesIO(team.http.get(f"{path}/report/download").content))
    assert {f"{name}.{form}" for name in FIGURES for form in ("png", "svg")} <= set(kept.namelist())
    assert json.loads(kept.read("report.json")) == report
    assert "4 of 4 jobs final" in kept.read("REPORT.md").decode()


def test_cancelled_half_way_it_keeps_what_was_measured(world: World, team: Team) -> None:
    path, rig = make(team, [0, 1]), rig_of(world)
    jobs: list[dict[str, Any]] = team.http.get(f"{path}/jobs").json()["items"]
    rig.run_until(uuid.UUID(jobs[1]["job"]["id"]), "confirm/0")
    assert team.http.post(f"{path}/cancel").status_code == 202
    finish(rig)
    final = team.http.get(path).json()
    assert (final["state"], final["final"]) == ("cancelled", True)
    report = team.http.get(f"{path}/report").json()
    standings = [outcome["standing"] for outcome in report["outcomes"]]
    assert standings.count("solved") >= 1
    assert standings.count("lost") == 4 - standings.count("solved")
    assert {row["state"] for row in rows(team, path, "jobs")} == {"succeeded", "cancelled"}
