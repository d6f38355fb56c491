"""The experiment commands against a real service: from a file and from flags, with JSON and honest exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from cupilot.cli import matrix
from cupilot.cli.app import app
from cupilot.client import Client
from cupilot.domain.errors import InvalidInput
from cupilot.domain.problem import NumericsPolicy
from tests.service.api.world import SOURCE, Team, World

pytestmark = pytest.mark.service

TOML = """
name = "from a file"
target = "cpu"
problems = ["softmax", "own.py"]
seeds = [0, 1]
[method]
name = "sce"
population = 4
[budgets]
candidates = 9
"""
YAML = """
name: from a file
target: cpu
problems: [softmax, own.py]
seeds: [0, 1]
method: {name: sce, population: 4}
budgets: {candidates: 9}
"""
JSON = json.dumps(
    {
        "name": "from a file",
        "target": "cpu",
        "problems": ["softmax", "own.py"],
        "seeds": [0, 1],
        "method": {"name": "sce", "population": 4},
        "budgets": {"candidates": 9},
    }
)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, world: World, team: Team) -> Path:
    monkeypatch.setenv("CUPILOT_URL", world.url)
    monkeypatch.setenv("CUPILOT_API_KEY", team.key)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(SOURCE, encoding="utf-8")
    for suffix, text in ((".toml", TOML), (".yaml", YAML), (".json", JSON)):
        (tmp_path / f"matrix{suffix}").write_text(text, encoding="utf-8")
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["experiment", *arguments])


def test_files_of_every_kind_mean_the_same(folder: Path) -> None:
    found = [matrix.request(matrix.read(folder / f"matrix{suffix}")) for suffix in (".toml", ".yaml", ".json")]
    assert found[0] == found[1] == found[2]
    assert found[0].problems[1].source == SOURCE
    for name, text in (("bad.toml", "="), ("bad.yaml", "{"), ("bad.json", "{"), ("bad.txt", ""), ("list.json", "[]")):
        (folder / name).write_text(text, encoding="utf-8")
        with pytest.raises(InvalidInput):
            matrix.read(folder / name)


def test_flags_go_over_the_file_and_a_dry_run_makes_nothing() -> None:
    done = run(
        "run", "matrix.toml", "--dry-run", "--json", "--switch", "pool=on,off", "--seeds", "3", "--candidates", "5"
    )
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)
    assert (plan["jobs"], plan["seeds"], plan["budgets"]["candidates"]) == (12, [0, 1, 2], 5)
    assert [arm["method"]["population"] for arm in plan["arms"]] == [4, 4]
    assert json.loads(run("list", "--json").stdout)["items"] == []
    for seeds in ("0", "1000000000000"):
        assert run("run", "matrix.toml", "--dry-run", "--seeds", seeds).exit_code == 2
    told = run(
        "run", "--problem", "softmax", "--target", "cpu", "--dry-run", "--arm", "a", "--arm", "b:population=5,pool=off"
    )
    assert told.exit_code == 0, told.output
    assert "6 jobs: 2 arms x 1 problem x 3 seeds" in told.stdout
    assert "at most" in told.stdout


def test_policy_and_size_of_the_flags_are_those_of_the_files_problems(folder: Path) -> None:
    problems = matrix.read(folder / "matrix.toml")["problems"]
    changed = [matrix.changed(problem, NumericsPolicy.TF32, "full") for problem in problems]
    assert [problem["policy"] for problem in changed] == ["tf32", "tf32"]
    assert [problem.get("size") for problem in changed] == ["full", None]  # the second one is a file
    assert matrix.changed(problems[0], None, None) == problems[0]


def test_from_start_to_report(world: World, team: Team, folder: Path) -> None:
    made = run("run", "matrix.toml", "--switch", "alignment=on,off", "--detach", "--idempotency-key", "k")
    again = run("run", "matrix.toml", "--switch", "alignment=on,off", "--detach", "--idempotency-key", "k")
    assert made.exit_code == 0, made.output
    assert made.stdout == again.stdout
    status = run("status", "last")
    assert status.exit_code == 0
    assert "8 jobs final (8 queued)" in status.stdout
    report = run("report", "last", "--out", "out")
    assert report.exit_code == 0, report.output
    assert "too few pairs to say" in report.stdout
    assert {"report.json", "jobs.csv", "speedups.svg", "speedups.png"} <= {
        each.name for each in (folder / "out").iterdir()
    }
    assert run("report", "last", "--csv", "jobs").stdout.startswith("job,position,arm")
    assert json.loads(run("report", "last", "--json").stdout)["experiment"]["jobs"] == 8
    with Client(world.url, team.key) as client:
        identity = made.stdout.strip()
        assert [item.position for item in client.all_experiment_jobs(identity)] == list(range(8))
        assert [str(item.id) for item in client.all_experiments()] == [identity]
        assert client.experiment_figure(identity, "outcomes", format="png").startswith(b"\x89PNG")
    assert "cancelled" in run("cancel", "last").stdout
    assert run("watch", "last").exit_code == 1
    assert run("status", "last").exit_code == 1
    assert "from a file" in run("list").stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["status", "last"], 4),
        (["status", "nothing"], 4),
        (["report", "00000000-0000-4000-8000-000000000001"], 4),
        (["run", "absent.toml"], 2),
        (["run", "--problem", "softmax", "--seeds", "some"], 2),
        (["run", "--problem", "softmax", "--target", "cpu", "--switch", "pool"], 2),
        (["run", "--problem", "softmax", "--target", "cpu", "--switch", "luck=on", "--dry-run"], 2),
        (["run", "--dry-run"], 2),
    ],
)
def test_exit_codes(arguments: list[str], code: int) -> None:
    done = run(*arguments)
    assert done.exit_code == code, done.output
    assert "next" in done.output or "where" in done.output
