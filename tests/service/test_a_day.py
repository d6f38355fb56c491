"""A day with the service, as ``docs/a-day.md`` tells it: an admin, a member, a viewer, a stranger, an operator.

The stack is the embedded one, the kernels are real, and all but the events and the metrics goes through the command
line. Last, the page and the test are held against each other: what the page shows was run here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from cupilot.cli.app import app
from cupilot.client import Client
from cupilot.domain.webhooks import sign
from cupilot.embedded import stack as embedded
from cupilot.embedded.servers import start_postgres
from cupilot.schemas import JobView
from migrations import downgrade
from tests.patience.judges import QUICK_STACK
from tests.service.faults.stack import ran_through
from tests.service.operators import RELU, SHORT_JOBS
from tests.service.processes import ROOT, wait_until
from tests.service.receiver import Receiver

pytestmark = [pytest.mark.service, pytest.mark.timeout(1_800)]

STRATEGY = {
    "techniques": [{"id": "loop_unrolling", "parameters": {}}, {"id": "threads", "parameters": {}}],
    "rationale": "rows are short: unroll, and use every core",
}
USE = """import torch
from cupilot_my_op import Model, op

x = torch.randn(256, 1024)
assert Model().why_not(x) == []
assert torch.equal(op(x), torch.relu(x))
assert torch.equal(Model()(x[:3]), torch.relu(x[:3]))
print("as PyTorch")
"""
COMMAND = re.compile(r"(?<![.\w/-])cupilot ((?:[a-z]+ )*[a-z]+)")


class Day:
    """The machine of the day: one stack, everybody's keys, and what has been typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.typed: set[str] = set()
        self.admin = Person(self, {"CUPILOT_DATA": str(folder / "first")})

    def hire(self, name: str, secret: str) -> Person:
        """Somebody with a key, at a machine of their own."""
        url = (self.folder / "first/url").read_text().strip()
        return Person(self, {"CUPILOT_URL": url, "CUPILOT_API_KEY": secret, "CUPILOT_DATA": str(self.folder / name)})


class Person:
    """Types commands."""

    def __init__(self, day: Day, environment: dict[str, str]) -> None:
        self.day = day
        self.environment = environment

    def __call__(self, *words: str, leaves: int = 0) -> str:
        """Return what the command prints; it must end with this exit code."""
        result = CliRunner().invoke(app, list(words), env=self.environment)
        assert result.exit_code == leaves, (words, result.output, result.exception)
        self.day.typed |= {" ".join(words[:count]) for count in (1, 2)}
        return result.stdout

    def json(self, *words: str, leaves: int = 0) -> Any:
        """The same, for programs."""
        return json.loads(self(*words, "--json", leaves=leaves))

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A command that takes its time."""
        self.day.typed.add(words[0])
        command = [sys.executable, "-m", "cupilot.cli", *words]
        return subprocess.Popen(command, env=os.environ | self.environment, stdout=subprocess.PIPE, text=True)

    def client(self) -> Client:
        """The Python client with this person's key."""
        return Client(self.environment["CUPILOT_URL"], self.environment["CUPILOT_API_KEY"])

    def at(self, url: str) -> Person:
        """The same person on another service."""
        return Person(self.day, self.environment | {"CUPILOT_URL": url})


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    for name in [name for name in os.environ if name.startswith("CUPILOT_")]:
        monkeypatch.delenv(name)
    given = {"HOME": str(tmp_path), "CUPILOT_WEBHOOK_NETWORKS": "127.0.0.0/8", "CUPILOT_REDISPATCH_SECONDS": "5"}
    for name, value in (given | SHORT_JOBS | QUICK_STACK).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_op.py").write_text(RELU)
    (tmp_path / "strategy.json").write_text(json.dumps(STRATEGY))
    yield Day(tmp_path)
    for stack in ("first", "second"):
        embedded.down(tmp_path / stack)


def test_a_day(day: Day, receiver: Receiver) -> None:
    day.admin("up", "--detach", "--target", "cpu")
    ann, bob, vera, eve = the_admin_makes_two_teams(day)
    webhook = ann_wants_to_hear_of_jobs(ann, receiver)
    job = bob_submits_twice_and_one_job_begins(bob)
    with bob.start("watch", job, "--json") as watching:
        chosen = bob_steers_while_it_runs(bob, job)
        fork = bob_forks_and_holds_the_fork(bob, job, chosen)
        vera_may_look_and_not_touch(vera, job)
        eve_finds_nothing(eve, job)
        assert watching.stdout is not None
        told = [json.loads(line) for line in watching.stdout]
    final = JobView.model_validate(told[-1]["job"])
    assert ran_through(final), final
    if final.state == "succeeded":
        bob_runs_what_he_exports(bob, job)
    else:
        bob_is_told_why_there_is_nothing(bob, job)
    the_messages_arrived_signed(ann, webhook, receiver, f"job.{final.state}")
    before = what_there_is(ann, bob, job)
    waiting = the_operator_drains_and_stops(day, bob)
    the_operator_restores_an_older_release_into_a_second_stack(day)
    url = (day.folder / "second/url").read_text().strip()
    ann, bob = ann.at(url), bob.at(url)
    assert what_there_is(ann, bob, job) == before
    the_second_stack_goes_on(day, bob, fork, waiting)
    the_page_tells_what_was_typed(day)


def the_admin_makes_two_teams(day: Day) -> tuple[Person, Person, Person, Person]:
    admin = day.admin
    admin("team", "create", "compilers", "--weight", "2")
    admin("team", "set", "compilers", "--running", "3", "--gpu-hours", "10")
    people = {"ann": "admin", "bob": "member", "vera": "viewer"}
    for name, role in people.items():
        admin("user", "create", name)
        admin("team", "add", "compilers", name, "--role", role)
    assert {item["name"]: item["role"] for item in admin.json("team", "members", "compilers")["items"]} == people
    scopes = {"ann": "admin", "bob": "submit", "vera": "read"}
    secrets = {
        name: admin("key", "create", "laptop", "--user", name, "--team", "compilers", "--scope", scope).strip()
        for name, scope in scopes.items()
    }
    admin("team", "create", "rivals")
    admin("team", "add", "rivals", "nightly", "--service-account", leaves=0)
    secrets["eve"] = admin("key", "create", "ci", "--user", "nightly", "--team", "rivals").strip()
    ann, bob, vera, eve = (day.hire(name, secret) for name, secret in secrets.items())
    assert "member of team compilers" in bob("whoami")
    return ann, bob, vera, eve


def ann_wants_to_hear_of_jobs(ann: Person, receiver: Receiver) -> dict[str, Any]:
    made: dict[str, Any] = ann.json("webhooks", "add", receiver.url, "--event", "job.*")
    return made


def bob_submits_twice_and_one_job_begins(bob: Person) -> str:
    what = ("submit", "my_op.py", "--label", "model=llama", "--idempotency-key", "day-1", "--generations", "2")
    what += ("--attribute", "0")
    job = bob(*what, "--population", "3").strip()
    assert bob(*what, "--population", "3").strip() == job
    assert bob.json(*what, "--population", "4", leaves=2)["error"]["code"] == "idempotency_mismatch"
    assert [item["id"] for item in bob.json("list", "--label", "model=llama")["items"]] == [job]
    return job


def bob_steers_while_it_runs(bob: Person, job: str) -> str:
    """Paused while its reference is checked, so that the search begins with his wishes; one of them is taken back.

    Gives the candidate that he has pinned.
    """
    assert bob.json("pause", job)["state"] == "paused"
    bob("ban", job, "--technique", "nontemporal_stores")
    lifted = bob.json("ban", job, "--technique", "simd")["id"]
    bob("lift", job, lifted)
    bob("inject", job, "strategy.json")
    assert bob.json("resume", job)["state"] != "paused"
    with bob.client() as client:
        seen = []
        for event in client.stream_events(job):
            seen.append(event)
            if event.kind == "candidate.evaluated":
                break
        pinned = str(event.data["ordinal"])
        bob("pin", job, pinned)
        seen += client.stream_events(job, after=event.id)  # Last-Event-ID
        assert [each.id for each in seen] == [event.id for event in client.all_events(job)]
    directives = {item["kind"]: item for item in bob.json("directives", job)["items"] if not item["lifted_at"]}
    assert directives["inject"]["became"] is not None
    return pinned


def bob_forks_and_holds_the_fork(bob: Person, job: str, candidate: str) -> str:
    fork = bob("fork", job, candidate, "--seed", "7").strip()
    assert bob.json("pause", fork)["state"] == "paused"
    assert bob.json("status", fork)["forked_from"] is not None
    return fork


def vera_may_look_and_not_touch(vera: Person, job: str) -> None:
    assert job in vera("list")
    for refused in (("cancel", job), ("pause", job), ("submit", "my_op.py", "--target", "cpu")):
        assert vera.json(*refused, leaves=1)["error"]["code"] == "role_too_low"


def eve_finds_nothing(eve: Person, job: str) -> None:
    """Another team's job does not exist: neither what it is nor that it is."""
    for hidden in (("status", job), ("cancel", job), ("export", job), ("watch", job), ("fork", job, "0")):
        assert eve.json(*hidden, leaves=4)["error"]["code"] == "not_found"
    assert eve.json("list")["items"] == []
    assert eve.json("leaderboard")["items"] == []


def bob_runs_what_he_exports(bob: Person, job: str) -> None:
    bob("result", job, "--out", "result")
    bob("export", job, "--format", "torch", "--out", "package")
    done = subprocess.run([sys.executable, "-c", USE], cwd="package", capture_output=True, text=True, check=False)
    assert done.stdout == "as PyTorch\n", done.stderr
    # On a machine so busy that the reference seems to wait for the host, the job says so and ranks nothing.
    preparation = JobView.model_validate(bob.json("status", job)).preparation
    assert preparation is not None
    ranked = not preparation.warnings
    assert [board["name"] for board in bob.json("leaderboard")["items"]] == (["my_op"] if ranked else [])


def bob_is_told_why_there_is_nothing(bob: Person, job: str) -> None:
    """Check the reason: where other work disturbs the timing too much, the judge vouches for no kernel."""
    assert "no kernel" in bob("result", job, leaves=1)
    assert bob.json("export", job, "--format", "torch", leaves=1)["error"]["code"] == "no_result"


def the_messages_arrived_signed(ann: Person, webhook: dict[str, Any], receiver: Receiver, end: str) -> None:
    def kinds() -> set[str]:
        return {json.loads(body)["type"] for _, body in receiver.got}

    wait_until(lambda: end in kinds(), "the message of the job's end")
    assert {"job.queued", "job.paused", "job.resumed"} <= kinds()
    for headers, body in receiver.got:
        # Not by verify: a day is long, and the message too old by now.
        signature = sign(webhook["secret"], headers["webhook-id"], int(headers["webhook-timestamp"]), body)
        assert signature in headers["webhook-signature"].split(" ")
    wait_until(
        lambda: {item["state"] for item in ann.json("webhooks", "log", webhook["id"])["items"]} == {"delivered"},
        "every message is delivered",
    )


def what_there_is(ann: Person, bob: Person, job: str) -> dict[str, Any]:
    """Return what must be there again after a restore."""
    with bob.client() as client:
        view = client.get(job)
        winner = client.best(job).candidate.model_dump(mode="json") if view.best else None
    known = ann.json("audit", "--limit", "200")["items"]
    return {
        "job": view.model_dump(mode="json", include={"state", "best", "labels", "verdicts", "finished_at"}),
        "winner": winner,
        "board": bob.json("leaderboard"),
        "pool": sorted(item["id"] for item in bob.json("pool", "list")["items"]),
        # The release before kept no changes with the entries, so its database has none.
        "audit": [each | {"changes": None} for each in known if each["resource"].startswith(f"/v1/jobs/{job}")],
    }


def the_operator_drains_and_stops(day: Day, bob: Person) -> str:
    """Submit meanwhile: it is accepted, and waits."""
    operator = day.admin
    variables = operator.json("env")
    metrics = httpx.get(f"{variables['CUPILOT_URL']}/metrics", timeout=60).text
    assert 'cupilot_jobs{state="paused"} 1.0' in metrics, metrics
    workers(variables, "drain", "--reason", "upgrade", "--wait", "600")
    waiting = bob("submit", "my_op.py", "--target", "cpu", "--population", "2", "--generations", "1").strip()
    assert operator.json("top", "--once")["cluster"]["drained"] == "upgrade"
    assert bob.json("status", waiting)["state"] == "queued"
    operator("backup", "day.dump")
    operator("down")
    return waiting


def the_operator_restores_an_older_release_into_a_second_stack(day: Day) -> None:
    operator = day.admin
    operator("restore", "day.dump", "--data", "second")
    operator.json("restore", "day.dump", "--data", "second", leaves=2)  # never over what is there
    with ExitStack() as stack:
        postgres = start_postgres(day.folder / "second")
        stack.callback(postgres.stop)
        downgrade(postgres.url, "-1")  # as the release before would have left it
    operator("up", "--detach", "--target", "cpu", "--data", "second")


def the_second_stack_goes_on(day: Day, bob: Person, fork: str, waiting: str) -> None:
    """Its people have their keys, what waited goes on, and what was held is held until it is let go."""
    workers(day.admin.json("env", "--data", "second"), "resume")
    with bob.client() as client:
        wait_until(lambda: client.get(waiting).state != "queued", "what waited goes on")
    assert bob.json("status", fork)["state"] == "paused"
    assert bob.json("resume", fork)["state"] != "paused"
    for job in (fork, waiting):
        bob("cancel", job)
    wait_until(lambda: all(item["final"] for item in bob.json("list")["items"]), "everything ends")
    day.admin("down", "--data", "second")


def the_page_tells_what_was_typed(day: Day) -> None:
    page = (ROOT / "docs/a-day.md").read_text(encoding="utf-8")
    shown = {name for block in re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S) for name in typed_in(block)}
    assert len(shown) > 25
    assert not sorted(shown - day.typed), "the page shows what the day has not seen"


def typed_in(block: str) -> Iterator[str]:
    for line in COMMAND.findall(block):
        words = line.split()
        yield " ".join(words[:2]) if words[0] in GROUPS else words[0]


GROUPS = {group.name for group in app.registered_groups}


def workers(variables: dict[str, str], *words: str) -> None:
    """The operator's own command, with the stack's addresses as ``cupilot env`` gives them."""
    command = [sys.executable, "-m", "workers", *words]
    done = subprocess.run(command, env=os.environ | variables, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, shlex.join(command) + done.stdout + done.stderr
