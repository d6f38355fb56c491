"""The command line against the real service; as a process of its own where signals, streams or imports matter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from cupilot.cli.app import app
from cupilot.domain.evaluation import FailureKind
from cupilot.domain.states import JobState
from cupilot.schemas import CandidateView, JobPage, JobView, Report
from cupilot.storage.db.tables.queue import Step
from tests.service.api.world import SOURCE, Story, Team, World, audited, evolved, rejected

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[3]


class Shell:
    """Runs ``cupilot`` as a user of a team does."""

    def __init__(self, world: World, team: Team, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "CUPILOT_URL": world.url,
            "CUPILOT_API_KEY": team.key,
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The command, running."""
        command = [sys.executable, "-m", "cupilot.cli", *arguments]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Run the command in this process; exit code, standard output, standard error."""
        done = CliRunner().invoke(app, list(arguments), env=self.environment)
        return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def shell(world: World, team: Team, tmp_path: Path, alone: None) -> Shell:  # noqa: ARG001 - an empty folder and home
    return Shell(world, team, tmp_path)


def test_submit_list_status_cancel(shell: Shell) -> None:
    (shell.folder / "my_op.py").write_text(SOURCE)
    code, out, _ = shell("submit", "my_op.py", "--target", "cpu", "--label", "a=b")
    job = out.strip()
    assert code == 0
    code, out, _ = shell("list", "--label", "a=b", "--json")
    assert code == 0
    [listed] = JobPage.model_validate_json(out).items
    assert (str(listed.id), listed.problem.name) == (job, "my_op")
    assert job in shell("list")[1]
    code, out, _ = shell("status", "last", "--json")
    assert (code, JobView.model_validate_json(out).state) == (0, "queued")
    code, out, _ = shell("cancel", job)
    assert (code, out) == (0, f"job {job} is cancelled\n")
    assert shell("status", job)[0] == 1
    code, out, _ = shell("watch", job)
    assert code == 1
    assert "job cancelled" in out
    code, _, err = shell("status", "00000000-0000-0000-0000-000000000000")
    assert code == 4
    assert "no job" in err


def test_the_state_tells_of_a_step_that_is_tried_again(world: World, team: Team, shell: Shell) -> None:
    job = team.submit()["id"]
    with world.database.transaction() as session:
        (step,) = session.scalars(select(Step).where(Step.job_id == UUID(job)))
        step.attempt, step.error = 1, {"reason": "infrastructure", "message": "this machine is too busy"}
    code, out, _ = shell("status", job)
    assert code == 0
    assert "tried again" in out
    assert "attempt 1 of" in out
    assert "this machine is too busy" in out


def test_the_list_is_ordered_as_asked(shell: Shell) -> None:
    (shell.folder / "my_op.py").write_text(SOURCE)
    earlier, later = (shell("submit", "my_op.py", "--target", "cpu")[1].strip() for _ in range(2))
    for order, expected in (("newest", [later, earlier]), ("oldest", [earlier, later])):
        code, out, _ = shell("list", "--order", order, "--json")
        assert code == 0
        assert [str(item.id) for item in JobPage.model_validate_json(out).items] == expected


def test_the_result_of_a_job_is_printed_and_written(world: World, team: Team, shell: Shell) -> None:
    with world.database.transaction() as session:
        job = evolved(session, team.id).id
    code, out, _ = shell("result", str(job))
    assert code == 0
    folder = shell.folder / "cupilot-results" / str(job)
    assert sorted(path.name for path in folder.iterdir()) == [
        "REPORT.md",
        "SHA256SUMS",
        "kernel.cpp",
        "plan.json",
        "problem.h",
        "problem.py",
        "report.json",
    ]
    for part in (
        "2.00x as fast as PyTorch eager (95 % interval 1.80 to 2.20)",
        "slower than torch.compile: 0.50x",
        "reproduced",
        "simd",
        "threads",
        "because",
        "candidate 4 (generation 2, crossover of 0 and 1) 2.00x",
        "candidate 0 (generation 1, initial) 1.50x",
        str(Path("cupilot-results") / str(job)),
        "next",
    ):
        assert part in out, out
    with world.database.transaction() as session:
        cancelled = evolved(session, team.id, JobState.CANCELLED).id
    assert shell("result", str(cancelled))[0] == 0
    code, out, _ = shell("result", str(job), "--json", "--out", "here")
    assert code == 0
    assert Report.model_validate_json(out).job.id == job
    assert (shell.folder / "here" / "kernel.cpp").read_text() == "// candidate 4\n"


def test_a_job_without_a_proven_kernel_says_why(world: World, team: Team, shell: Shell) -> None:
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        generation = story.generation(0)
        for kind in (FailureKind.COMPILE_ERROR, FailureKind.WRONG_VALUE, FailureKind.WRONG_VALUE):
            story.candidate(generation, rejected(kind))
        job = story.end(JobState.FAILED, reason="no_kernel", message="nothing held up").id
    code, out, _ = shell("result", str(job))
    assert code == 1
    assert "failed (no_kernel)" in out
    assert "nothing held up" in out
    assert "wrong_value 2, compile_error 1" in out
    assert "no kernel of this job is proven" in out
    code, out, _ = shell("result", str(job), "--json")
    assert (code, json.loads(out)["error"]["code"]) == (1, "no_result")
    assert not (shell.folder / "cupilot-results").exists()


def test_watching_a_finished_job_tells_its_story(world: World, team: Team, shell: Shell) -> None:
    with world.database.transaction() as session:
        job = evolved(session, team.id).id
    code, out, _ = shell("watch", str(job))
    assert code == 0
    for part in ("job evolving", "candidate 4 evaluated: reproduced, 2.00x", "generation 2", "job succeeded"):
        assert part in out, out
    code, out, _ = shell("watch", str(job), "--json")
    assert code == 0
    assert JobView.model_validate(json.loads(out.splitlines()[-1])["job"]).id == job


def test_a_dry_run_starts_nothing(team: Team, shell: Shell) -> None:
    (shell.folder / "my_op.py").write_text(SOURCE)
    code, out, err = shell("submit", "my_op.py", "--target", "cpu", "--population", "4", "--dry-run")
    assert code == 0, err
    assert "16 candidates" in out
    assert "nothing can be guessed" in out
    assert out.endswith("nothing was started\n")
    code, out, _ = shell("submit", "my_op.py", "--target", "cpu", "--dry-run", "--json")
    assert (code, json.loads(out)["at_most"]["cost_usd"]) == (0, 0.0)
    assert team.http.get("/v1/jobs").json()["items"] == []


def test_events_can_be_read_on_from_any_of_them_and_followed(world: World, team: Team, shell: Shell) -> None:
    with world.database.transaction() as session:
        job = str(evolved(session, team.id).id)
    code, out, _ = shell("events", job, "--follow", "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert (code, told[0]["kind"], told[-1]["kind"]) == (0, "job.queued", "job.succeeded")
    code, out, _ = shell("events", job, "--after", str(told[1]["id"]), "--limit", "2")
    assert [line.split()[0] for line in out.splitlines()] == [str(event["id"]) for event in told[2:4]]
    assert told[2]["kind"] in out.splitlines()[0]


def test_events_of_all_jobs_name_theirs_and_can_be_read_on_and_followed(world: World, team: Team, shell: Shell) -> None:
    with world.database.transaction() as session:
        job = str(evolved(session, team.id).id)
    other = team.submit()["id"]
    code, out, _ = shell("events", "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert {event["job"] for event in told} == {job, other}
    first, second = told[1:3]
    code, out, _ = shell("events", "--after", str(told[0]["id"]), "--limit", "1")
    assert (code, out.split()[0], out.split()[3]) == (0, str(first["id"]), first["job"])
    code, out, _ = shell("events", "--follow", "--after", str(first["id"]), "--limit", "1", "--json")
    assert (code, json.loads(out)["id"]) == (0, second["id"])


def test_a_candidate_is_shown_whole_and_its_source_alone(world: World, team: Team, shell: Shell) -> None:
    with world.database.transaction() as session:
        job = str(evolved(session, team.id).id)
    code, out, _ = shell("candidate", job, "4")
    assert code == 0
    for part in (
        f"4 of job {job}",
        "crossover, generation 2",
        "reproduced",
        "2.00x (95 % interval 1.80 to 2.20), faster",
        "0.50x (95 % interval",
        "1 of 1 passed",
        "simd",
        "because",
        "BLOCK=128",
        "candidate 0 (generation 1, initial) 1.50x",
        f"cupilot candidate {job} 4 --source",
    ):
        assert part in out, out
    code, out, _ = shell("candidate", "last", "4", "--json")
    view = CandidateView.model_validate_json(out)
    assert (code, view.ordinal, view.verdict) == (0, 4, "reproduced")
    assert shell("candidate", job, str(view.id), "--source") == (0, "// candidate 4\n", "")


def test_a_candidate_that_failed_says_why_and_one_without_a_kernel_has_no_source(
    world: World, team: Team, shell: Shell
) -> None:
    with world.database.transaction() as session:
        job = str(evolved(session, team.id).id)
    code, out, _ = shell("candidate", job, "2")
    assert code == 0
    assert "rejected: wrong_value" in out
    assert "out[0] is 1, should be 2" in out
    assert "over PyTorch eager" not in out
    assert "duplicate: duplicate_strategy" in shell("candidate", job, "3")[1]
    code, out, err = shell("candidate", job, "3", "--source")
    assert (code, out) == (4, "")
    assert "candidate 3 has no kernel" in err
    assert shell("candidate", job, "99")[0] == 4


def test_an_idempotency_key_makes_one_job_of_two_requests(world: World, team: Team, shell: Shell) -> None:
    with world.database.transaction() as session:
        job = str(evolved(session, team.id).id)
        failed = Story(session, team.id).prepare()
        failed.candidate(failed.generation(0), audited(1.5), best=True)
        ended = str(failed.end(JobState.FAILED, reason="no_kernel").id)
    for command in (["retry", ended], ["fork", job, "4"], ["remeasure", job]):
        made = [shell(*command, "--idempotency-key", f"{command[0]}-{key}") for key in ("a", "a", "b")]
        assert [code for code, _, _ in made] == [0, 0, 0], made
        first, again, other = (out for _, out, _ in made)
        assert first == again != other, command


def test_a_misspelt_problem_is_told_the_few_that_come_closest(shell: Shell) -> None:
    code, _, err = shell("submit", "sofmax", "--target", "cpu")
    assert code == 2
    assert "did you mean softmax" in err
    assert "cupilot problems" in err
    assert len(err.splitlines()) == 4, "what, where, how to mend it, and the code"
    assert "lists all" in shell("submit", "zzzz")[2]


def test_evolve_shows_progress_on_stderr_and_the_report_on_stdout(team: Team, shell: Shell) -> None:
    (shell.folder / "my_op.py").write_text(SOURCE)
    with shell.start("evolve", "my_op.py", "--target", "cpu", "--json") as process:
        assert process.stderr is not None
        announced = process.stderr.readline()
        team.http.post(f"/v1/jobs/{announced.split()[1]}/cancel").raise_for_status()
        out, err = process.communicate()
    assert announced.endswith("on cpu\n")
    assert process.returncode == 1
    assert json.loads(out)["error"]["code"] == "no_result"
    assert "job cancelled" in err


def test_an_interrupted_evolve_leaves_the_job_and_says_how_to_go_on(team: Team, shell: Shell) -> None:
    (shell.folder / "my_op.py").write_text(SOURCE)
    with shell.start("evolve", "my_op.py", "--target", "cpu") as process:
        assert process.stderr is not None
        assert process.stdout is not None
        job = process.stderr.readline().split()[1]
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert f"cupilot watch {job}" in err
    assert "Traceback" not in err
    assert team.http.get(f"/v1/jobs/{job}").json()["state"] == "queued"


def test_problems_are_listed(shell: Shell) -> None:
    code, out, _ = shell("problems")
    assert code == 0
    assert "softmax" in out
    assert "Softmax over the rows of a matrix." in out
    code, out, _ = shell("problems", "softmax", "--json")
    assert (code, json.loads(out)["id"]) == (0, "softmax")
    assert shell("problems", "softmax") == (0, json.loads(out)["source"], "")
    assert shell("problems", "sofmax")[0] == 4


def test_help_imports_nothing_heavy(shell: Shell) -> None:
    heavy = "'torch', 'numpy', 'sqlalchemy', 'psycopg2', 'celery', 'chromadb', 'psutil', 'litellm', 'fastapi'"
    probe = (
        "import sys\nsys.argv = ['cupilot', '--help']\nfrom cupilot.cli import main\n"
        f"try:\n    main()\nexcept SystemExit:\n    pass\nprint(sorted(set(sys.modules) & {{{heavy}}}))"
    )
    command = [sys.executable, "-c", probe]
    out = subprocess.check_output(command, cwd=shell.folder, env=shell.environment, text=True)
    assert out.splitlines()[-1] == "[]"
