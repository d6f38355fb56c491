"""Commands against a server that answers by script: exit codes, output for programs, help."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from cupilot.cli.app import app
from tests.unit.client.scripted import Answer, Script, serve

pytestmark = pytest.mark.usefixtures("alone")

JOB = "3f2b8c1e-0000-4000-8000-000000000001"
SOURCE = "class Model:\n    def forward(self): ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    """The command line in this process."""
    return CliRunner().invoke(app, list(arguments), input=stdin)


def _error(status: int, code: str, **more: Any) -> Answer:
    body = {"error": {"code": code, "message": "what happened", "hint": "mend it", "request_id": "r-1", **more}}
    return Answer(status, json.dumps(body).encode())


def _job(**changes: Any) -> dict[str, Any]:
    return {
        "id": JOB,
        "state": "queued",
        "final": False,
        "problem": {"id": JOB, "name": "softmax", "policy": "fp32", "hash": "h"},
        "target": "cpu",
        "agents": "playbook",
        "method": {},
        "budgets": {},
        "seed": 0,
        "priority": "normal",
        "labels": {},
        "generation": 0,
        "generations": 4,
        "candidates": 0,
        "verdicts": {},
        "candidate_states": {},
        "wall_seconds": 0,
        "gpu_seconds": 0,
        "cost_usd": 0,
        "created_at": "2026-01-01T00:00:00Z",
        **changes,
    }


def prepared(*notes: str) -> dict[str, Any]:
    """A preparation with notes."""
    return {
        "op_class": "reduction",
        "zone": "memory",
        "intensity": 0.5,
        "floor_us": 1.0,
        "baseline_us": {"low": 9.0, "median": 10.0, "high": 11.0},
        "device": "Test CPU",
        "notes": notes,
    }


def _answer(body: Any) -> Answer:
    return Answer(body=json.dumps(body).encode())


def _sent(script: Script) -> dict[str, Any]:
    submissions = [asked for asked in script.asked if asked.method == "POST"]
    body: dict[str, Any] = json.loads(submissions[-1].body)
    return body


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (_error(404, "not_found"), 4),
        (_error(404, "no_result"), 1),
        (_error(410, "pruned"), 4),
        (_error(409, "conflict"), 1),
        (_error(422, "invalid_input"), 2),
        (_error(413, "body_too_large"), 2),
        (_error(401, "unauthorized"), 3),
        (_error(500, "internal_error"), 3),
        (_error(503, "unavailable"), 3),
        (Answer(200, b"<html>"), 3),
    ],
)
def test_exit_codes_say_what_kind_of_error_it_was(answer: Answer, code: int) -> None:
    with serve(answer) as script:
        for flags in ([], ["--json"]):
            result = run("status", JOB, "--server", script.url, *flags)
            assert result.exit_code == code, result.output
            assert "Traceback" not in result.output


def test_an_error_names_code_hint_and_request() -> None:
    with serve(_error(409, "conflict", where="job")) as script:
        text = run("cancel", JOB, "--server", script.url)
        as_json = run("cancel", JOB, "--server", script.url, "--json")
    for part in ("what happened", "mend it", "conflict", "r-1", "job"):
        assert part in text.stderr
    assert text.stdout == ""
    assert json.loads(as_json.stdout)["error"] == {
        "code": "conflict",
        "message": "what happened",
        "hint": "mend it",
        "where": "job",
        "request_id": "r-1",
    }


def test_no_server_is_3() -> None:
    assert run("list", "--server", "http://127.0.0.1:1").exit_code == 3
    assert run("list").exit_code == 3
    assert "cupilot up" in run("list").stderr


@pytest.mark.parametrize("command", [["up", "--detach"], ["down"], ["doctor"]], ids=lambda words: words[0])
def test_a_path_that_cannot_be_used_is_named_without_a_traceback(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = run(*command, "--data", str(file))
    assert done.exit_code == 2
    assert f"error: {file}" in done.output
    assert "Not a directory" in done.output


def test_a_backup_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "data/postgres").mkdir(parents=True)
    (tmp_path / "file").touch()
    done = run("backup", str(tmp_path / "file/a.dump"), "--data", str(tmp_path / "data"), "--json")
    assert done.exit_code == 2
    assert str(tmp_path / "file") in json.loads(done.output)["error"]["message"]


def test_an_environment_variable_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(_answer({"items": []})) as script:
        monkeypatch.setenv("CUPILOT_URL", script.url)
        assert run("list").output == "no jobs\n"
        monkeypatch.setenv("CUPILOT_URL", "http://127.0.0.1:1")
        assert run("list", "--server", script.url).exit_code == 0


def test_evolve_does_not_start_a_stack_where_a_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPILOT_URL", "http://127.0.0.1:1")
    result = run("evolve", "softmax")
    assert result.exit_code == 3
    assert "starting" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing_such"],
        ["./missing.py"],
        ["softmax", "--policy", "fp8"],
        ["softmax", "--size", "huge"],
        ["softmax", "--target", "tpu"],
        ["softmax", "--population", "1"],
        ["softmax", "--minutes", "0"],
        ["softmax", "--minutes", "nan"],
        ["softmax", "--label", "novalue"],
        ["softmax", "--label", "=x"],
        ["softmax", "--without", "everything"],
        ["softmax", "--surprise"],
        ["broken.py"],
        ["incomplete.py"],
        ["binary.py"],
        ["huge.py"],
        ["folder"],
        ["own.py", "--size", "small"],
        [],
    ],
)
def test_wrong_usage_is_2_and_submits_nothing(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "incomplete.py").write_text("x = 1\n")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "huge.py").write_text("#" * 300_000)
    (tmp_path / "own.py").write_text(SOURCE)
    (tmp_path / "folder").mkdir()
    with serve(_answer(_job())) as script:
        result = run("submit", *arguments, "--server", script.url)
        assert result.exit_code == 2, result.output
        assert script.asked == []


def test_a_misspelt_builtin_gets_a_suggestion() -> None:
    result = run("submit", "sofmax", "--server", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "softmax" in result.stderr


def test_the_options_of_a_submission_reach_the_service(tmp_path: Path) -> None:
    (tmp_path / "op.py").write_text("\ufeff" + SOURCE)
    options = "--target cuda --policy tf32 --population 2 --generations 3 --seed 5 --candidates 9 --minutes 2 --cost 1"
    more = "--priority high --label a=b --label c=d=e --without pool --without roofline"
    with serve(_answer(_job())) as script:
        result = run("submit", "op.py", *options.split(), *more.split(), "--server", script.url)
        assert result.exit_code == 0, result.output
        assert result.stdout == f"{JOB}\n"
    assert _sent(script) == {
        "problem": {"source": SOURCE, "name": "op", "policy": "tf32"},
        "target": "cuda",
        "method": {
            "name": "sce",
            "population": 2,
            "generations": 3,
            "elites": 1,
            "pool": False,
            "roofline_guidance": False,
        },
        "agents": "playbook",
        "budgets": {"candidates": 9, "wall_seconds": 120.0, "cost_usd": 1.0},
        "seed": 5,
        "priority": "high",
        "labels": {"a": "b", "c": "d=e"},
    }


def test_a_method_is_chosen_and_its_parameters_set() -> None:
    chosen = ["--method", "evoengineer-full", "--set", "samples=12", "--generations", "3", "--agents", "llm"]
    with serve(_answer(_job())) as script:
        result = run("submit", "softmax", "--target", "cpu", *chosen, "--server", script.url)
        assert result.exit_code == 0, result.output
    assert _sent(script)["method"] == {"name": "evoengineer-full", "samples": 12, "generations": 3}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--method", "magic"], "magic"),
        (["--method", "evoengineer-free", "--population", "4"], "has no parameter 'population'"),
        (["--method", "ai-cuda-engineer", "--without", "alignment"], "has no parameter 'alignment'"),
        (["--set", "crossover=words"], "--set crossover=words: must be"),
        (["--set", "crossover"], "is not an assignment"),
        (["--set", "population=two"], "--set population=two: must be"),
    ],
)
def test_a_method_that_cannot_be_is_refused_before_anything_is_sent(options: list[str], complaint: str) -> None:
    result = run("submit", "softmax", "--target", "cpu", *options, "--server", "http://127.0.0.1:9")
    assert result.exit_code == 2, result.output
    assert complaint in result.output


def test_a_problem_can_come_from_the_standard_input() -> None:
    with serve(_answer(_job())) as script:
        result = run("submit", "-", "--target", "cpu", "--server", script.url, stdin=SOURCE)
        assert result.exit_code == 0, result.output
    assert _sent(script)["problem"] == {"source": SOURCE, "name": "stdin", "policy": "fp32"}


def test_a_builtin_goes_by_its_name() -> None:
    with serve(_answer(_job())) as script:
        run("submit", "softmax", "--size", "full", "--target", "cpu", "--server", script.url)
    assert _sent(script)["problem"] == {"id": "softmax", "name": None, "size": "full", "policy": "fp32"}


@pytest.mark.parametrize(
    ("targets", "chosen"), [(["cpu"], "cpu"), (["cuda", "cpu"], "cuda"), (["cpu", "cuda"], "cuda")]
)
def test_auto_takes_the_gpu_where_there_is_one(targets: list[str], chosen: str) -> None:
    cluster = {"scheduler_alive": True, "workers": [], "queues": [], "targets": targets}
    with serve(_answer(cluster), _answer(_job())) as script:
        assert run("submit", "softmax", "--server", script.url).exit_code == 0
    assert _sent(script)["target"] == chosen


def test_auto_needs_a_worker() -> None:
    cluster = {"scheduler_alive": True, "workers": [], "queues": [], "targets": []}
    with serve(_answer(cluster)) as script:
        result = run("submit", "softmax", "--server", script.url)
    assert result.exit_code == 3
    assert "no live worker" in result.stderr


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"state": "evolving"}, 0),
        ({"state": "failed", "final": True, "reason": "no_template"}, 1),
        ({"state": "cancelled", "final": True}, 1),
        ({"state": "succeeded", "final": True}, 1),
        ({"state": "budget_exhausted", "final": True}, 1),
        ({"state": "succeeded", "final": True, "best": "BEST"}, 0),
        ({"state": "budget_exhausted", "final": True, "best": "BEST"}, 0),
        ({"state": "failed", "final": True, "best": "BEST"}, 1),
        ({"state": "a state of the future"}, 0),
    ],
)
def test_status_exits_as_the_job_ended(changes: dict[str, Any], code: int) -> None:
    one = {"low": 1.0, "median": 1.0, "high": 1.0}
    best = {
        "candidate": JOB,
        "ordinal": 1,
        "generation": 0,
        "verdict": "audited",
        "speedup": {"low": 1.8, "median": 2.0, "high": 2.2},
        "kernel_us": one,
        "baseline_us": {"low": 1.9, "median": 2.0, "high": 2.1},
        "strategy": {"techniques": [{"id": "simd", "parameters": {"width": 8}}]},
    }
    if changes.get("best"):
        changes = changes | {"best": best}
    with serve(_answer(_job(**changes))) as script:
        text = run("status", JOB, "--server", script.url)
        as_json = run("status", JOB, "--server", script.url, "--json")
    assert text.exit_code == as_json.exit_code == code
    assert json.loads(as_json.stdout)["state"] == changes.get("state", "queued")
    if "best" in changes:
        assert "2.00x [1.80, 2.20] over PyTorch eager, audited; medians 1.0 us against 2.0 us" in text.stdout
        assert "simd (width=8)" in text.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--minutes", "0"], "--minutes 0: must be greater than 0"),
        (["--minutes=1e9"], "--minutes 1e9: must be less than or equal to 10080"),
        (["--cost", "inf"], "--cost inf: must be less than or equal to 100000"),
        (["--candidates", "0"], "--candidates 0: must be greater than or equal to 1"),
        (["--candidates", "many"], "--candidates many: must be a valid integer"),
        (["--set", "elites=9"], "--set elites=9: elites (9) must be fewer than population (8)"),
        (["--set", "pool=on", "--set", "population=1"], "--set population=1: must be greater than or equal to 2"),
        (["--name", "n" * 300], f"--name {'n' * 60}...: must have at most 200 characters"),
        (["--label", "good=1", "--label", f"a={'b' * 300}"], f"--label a={'b' * 58}...: must have at most 200"),
    ],
)
@pytest.mark.parametrize("command", [("submit", "softmax"), ("evolve", "softmax")])
def test_what_a_flag_caused_is_told_of_the_flag_as_it_was_typed(
    command: tuple[str, ...], arguments: list[str], words: str
) -> None:
    with serve(_answer({})) as script:
        text = run(*command, *arguments, "--server", script.url)
        as_json = run(*command, *arguments, "--server", script.url, "--json")
        assert script.asked == []
    assert text.exit_code == as_json.exit_code == 2
    assert words in text.stderr
    error = json.loads(as_json.stdout)["error"]
    assert words in error["message"]
    assert error["where"] == words.partition(": ")[0]


@pytest.mark.parametrize(
    ("command", "where", "told"),
    [
        ("submit softmax --agents llm", "body.agents", "--agents llm"),
        ("submit softmax --method eoh", "body.agents", "--agents"),
        ("submit softmax --minutes=5", "body.budgets.wall_seconds", "--minutes 5"),
        ("submit softmax --without roofline", "body.method.roofline_guidance", "--without roofline"),
        ("submit softmax --population 4", "body.method.population", "--population 4"),
        (f"retry {JOB} --cost 3", "body.budgets.cost_usd", "--cost 3"),
        (f"change {JOB} --label a=b", "body.labels", "--label a=b"),
        ("submit softmax", "body.something", "something"),
    ],
)
def test_what_the_service_says_of_a_field_is_told_of_the_flag(command: str, where: str, told: str) -> None:
    refusal = _error(422, "invalid_input", where=where, message=f"{where}: no")
    with serve(*([_answer(_job(budgets={}))] * command.startswith("retry")), *([refusal] * 2)) as script:
        target = ["--target", "cpu"] if command.startswith("submit") else []
        done = run(*command.split(), *target, "--server", script.url)
    assert done.exit_code == 2
    assert f"error: {told}: no\n  where: {told}\n" in done.stderr


def test_advice_for_programs_is_not_told_to_people() -> None:
    for status, code, words in ((401, "unauthorized", "cupilot login URL"), (409, "no_result", "cupilot status JOB")):
        with serve(_error(status, code, hint="send the header Authorization")) as script:
            done = run("export", JOB, "--server", script.url)
        assert f"  next: {words}" in done.stderr or f"{words}, or" in done.stderr
        assert "header" not in done.stderr
    with serve(_error(404, "not_found", where="path.candidate")) as script:
        assert "where: CANDIDATE" in run("candidate", JOB, "9", "--server", script.url).stderr
    assert "'foo' is not a format" in run("export", JOB, "--format", "foo").stderr


def test_a_large_standard_input_is_not_said_to_have_what_was_read_of_it() -> None:
    done = run("submit", "-", stdin=b"#" * 3_000_000)
    assert "more than 262,144 bytes; at most 262,144" in done.stderr


def test_wrong_usage_is_an_error_like_others() -> None:
    for arguments, words in (
        (["submit"], "Missing argument 'PROBLEM'"),
        (["submit", "softmax", "--candidatess", "3"], "No such option: --candidatess"),
        (["ban", JOB], "name either a technique or a candidate"),
        (["experiment", "run"], "--problem: must have at least 1 item"),
    ):
        done, as_json = run(*arguments), run(*arguments, "--json")
        assert done.exit_code == as_json.exit_code == 2
        assert words in done.stderr
        assert "  next: " in done.stderr
        assert words in json.loads(as_json.stdout)["error"]["message"]
    assert "Usage: cupilot team" in run("team").output


def test_status_tells_what_the_preparation_noted() -> None:
    with serve(
        _answer(_job(preparation=prepared("law signed left out: not finite", "line 9 makes a number")))
    ) as script:
        text = run("status", JOB, "--server", script.url).stdout
    assert "note      input distribution signed left out: not finite\n          line 9 makes a number" in text


def _page(*ids: str) -> Answer:
    job = {key: value for key, value in _job().items() if key not in ("method", "budgets")}
    return _answer({"items": [{**job, "id": job_id} for job_id in ids]})


def test_the_beginning_of_an_id_names_a_job() -> None:
    another, of_that_name = "3f2b8c1e-9999-4000-8000-000000000002", "aaaaaaaa-0000-4000-8000-000000000003"
    with serve(_page(JOB, of_that_name), _answer(_job())) as script:
        assert run("status", "3F2B8C1E", "--server", script.url).exit_code == 0
        asked = [request.path for request in script.asked]
        assert asked[:2] == ["/v1/jobs?text=3f2b8c1e&limit=200", f"/v1/jobs/{JOB}"]
    with serve(_page(JOB, another)) as script:
        ambiguous = run("status", "3f2b8c1e", "--server", script.url)
    assert ambiguous.exit_code == 2
    assert "the ids of 2 jobs begin with 3f2b8c1e" in ambiguous.output
    with serve(_page(of_that_name)) as script:
        assert run("status", "3f2b8c", "--server", script.url).exit_code == 4


def test_last_is_the_newest_job() -> None:
    summary = {key: value for key, value in _job().items() if key not in ("method", "budgets")}
    with serve(_answer({"items": [summary]}), _answer(_job())) as script:
        assert run("status", "last", "--server", script.url).exit_code == 0
        assert script.asked[1].path == f"/v1/jobs/{JOB}"
    with serve(_answer({"items": []})) as script:
        assert run("status", "last", "--server", script.url).exit_code == 4


def test_what_is_no_job_id_is_not_found_without_a_request() -> None:
    with serve(_answer(_job())) as script:
        assert run("status", "../x", "--server", script.url).exit_code == 4
        assert script.asked == []


def test_text_of_others_cannot_move_the_cursor() -> None:
    hostile = "\x1b]0;owned\x07\x1b[2Jname\u202e\r\nsecond line"
    problem = {"id": JOB, "name": hostile, "policy": "fp32", "hash": "h"}
    job = _job(state="failed", final=True, reason="x\x1b[31m", message=hostile, problem=problem)
    with serve(_answer(job)) as script:
        result = run("status", JOB, "--server", script.url)
    assert "\x1b" not in result.output
    assert "\u202e" not in result.output
    assert "\r" not in result.output
    assert "]0;owned[2Jname second line" in result.output


def test_an_interruption_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cupilot.client.Client.get", interrupt)
    with serve(_answer(_job())) as script:
        assert run("status", JOB, "--server", script.url).exit_code == 130


def test_version_works_without_a_server() -> None:
    result = run("version", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["server"] is None
    with serve(_answer({"version": "7.7", "api": "v1"})) as script:
        assert "service 7.7" in run("version", "--server", script.url).stdout


def test_down_where_nothing_runs_says_so(tmp_path: Path) -> None:
    result = run("down", "--data", str(tmp_path / "none"), "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["stopped"] is False


def test_a_submission_for_a_target_without_a_worker_says_that_it_waits() -> None:
    cluster = {"scheduler_alive": True, "workers": [], "queues": [], "targets": ["cpu"], "drained": "upgrade"}
    with serve(_answer(_job(target="cuda")), _answer(cluster)) as script:
        result = run("submit", "softmax", "--target", "cuda", "--server", script.url)
    assert (result.exit_code, result.stdout) == (0, f"{JOB}\n")
    assert "no live worker has the target cuda" in result.stderr
    assert "drained (upgrade)" in result.stderr


@pytest.mark.parametrize("command", [("retry", JOB), ("fork", JOB, "0"), ("remeasure", JOB, "--candidate", "0")])
def test_whatever_makes_a_job_says_that_no_worker_is_there(command: tuple[str, ...]) -> None:
    cluster = {"scheduler_alive": True, "workers": [], "queues": [], "targets": ["cuda"]}
    with serve(_answer(_job()), _answer(cluster)) as script:
        result = run(*command, "--server", script.url)
    assert (result.exit_code, result.stdout) == (0, f"{JOB}\n")
    assert "no live worker has the target cpu" in result.stderr
    assert f"cupilot cancel {JOB}" in result.stderr


def test_a_job_in_the_queue_shows_what_it_waits_for_and_a_failed_one_what_to_do() -> None:
    cluster = {"scheduler_alive": True, "workers": [], "queues": [], "targets": ["cuda"]}
    with serve(_answer(_job(queue_position=0)), _answer(cluster)) as script:
        waiting = run("status", JOB, "--server", script.url)
    assert "no live worker has the target cpu: the job waits for one" in waiting.stdout
    with serve(_answer(_job(state="failed", final=True, reason="invalid_problem"))) as script:
        failed = run("status", JOB, "--server", script.url)
    assert "Mend the problem file" in failed.stdout


def test_a_problem_without_a_board_says_where_to_go(tmp_path: Path) -> None:
    with serve(_answer({"items": []}), _answer({"items": []})) as script:
        known = run("leaderboard", "level1/23_Softmax", "--server", script.url)
        unknown = run("leaderboard", "softmaxx", "--server", script.url)
    assert known.exit_code == unknown.exit_code == 4
    assert "no kernel for level1/23_Softmax is proven here yet" in known.stderr
    assert "did you mean softmax" in unknown.stderr
    folder = run("submit", str(tmp_path), "--target", "cpu")
    assert (folder.exit_code, "is a folder" in folder.stderr) == (2, True)


def test_a_boards_name_will_do_and_an_empty_list_says_how_to_fill_it() -> None:
    def board(problem: str, policy: str = "fp32") -> dict[str, Any]:
        shown = {"target": "cpu", "device": "box", "kernels": 1, "best_speedup": 2.0, "policy": policy}
        return {"problem": problem, "name": "softmax", **shown}

    ranking = {"problem": "a" * 64, "name": "softmax", "policy": "fp32", "device": "box", "items": []}
    with serve(_answer({"items": [board("a" * 64)]}), _answer(ranking)) as script:
        assert run("leaderboard", "softmax", "--server", script.url).exit_code == 0
    assert script.asked[-1].path.startswith(f"/v1/leaderboards/{'a' * 64}")
    with serve(_answer({"items": [board("a" * 64), board("b" * 64, "tf32")]})) as script:
        result = run("leaderboard", "softmax", "--server", script.url)
    assert result.exit_code == 2
    assert f"{'b' * 12} (tf32)" in result.stderr
    with serve(_answer({"items": []})) as script:
        assert "no kernel is proven yet" in run("leaderboard", "--server", script.url).stdout


def test_a_problem_file_is_named_as_the_user_named_it_with_its_true_size(tmp_path: Path) -> None:
    (tmp_path / "huge.py").write_text("#" * 5_000_000)
    result = run("submit", "huge.py", "--target", "cpu")
    assert "5,000,000 bytes" in result.stderr
    (tmp_path / "wrong.py").write_text("x = 1\ndef forward(\n")
    result = run("submit", "wrong.py", "--target", "cpu")
    assert result.exit_code == 2
    assert "where: wrong.py:2" in result.stderr


def test_a_key_is_kept_by_login_and_used_by_later_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    use = {"used": 0, "limit": None}
    quota = {"team": "blue", "weight": 1, "quota": {}, "period_began_at": "2026-01-01T00:00:00Z", "shares": []}
    quota |= dict.fromkeys(("running_jobs", "queued_jobs", "gpu_seconds", "model_usd"), use)
    with serve(_answer(quota), _answer(_job())) as script:
        result = run("login", script.url, stdin="cpk_12345678_secret\n")
        assert result.exit_code == 0, result.output
        assert "team blue" in result.stdout
        assert run("status", JOB).exit_code == 0
        assert script.asked[-1].headers["Authorization"] == "Bearer cpk_12345678_secret"
        opened = run("open", JOB, "--print")
        assert opened.stdout == f"{script.url}/ui/jobs/{JOB}\n"
    assert run("logout").exit_code == 0
    assert run("status", JOB).exit_code == 3


def test_each_export_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("README.md", "read me")
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--candidate", "12"], ["--candidate", "12", "--name", "wide"]):
        with serve(Answer(200, buffer.getvalue())) as script:
            done = run("export", JOB, "--format", "torch", *more, "--server", script.url)
        assert done.exit_code == 0, done.stderr
    folder = tmp_path / "cupilot-exports" / JOB
    assert sorted(path.name for path in folder.iterdir()) == ["torch", "torch-12", "torch-12-wide"]
