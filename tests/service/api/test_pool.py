"""``/v1/pool`` over REST, through client and command line: who sees what, what is refused, what comes back."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import delete
from typer.testing import CliRunner

from api.app import create_app
from api.turns import TURNS
from cupilot.cli.app import app as command_line
from cupilot.client import ApiError, Client
from cupilot.domain.kernel import MAX_SOURCE_BYTES, Kernel, Launch, LaunchPlan, Tunable
from cupilot.domain.pool import PoolEntry, PoolQuestion, Sharing
from cupilot.domain.problem import Target
from cupilot.settings import Settings
from cupilot.storage.db.tables.jobs import KernelRow
from cupilot.storage.db.tables.pool import PoolRow
from cupilot.storage.jobs.evolving import store_kernel
from cupilot.storage.pool.rows import remember
from cupilot.storage.pool.transfer import MAX_KERNEL_BYTES, MAX_LINE_BYTES, line_of
from tests.service.api.world import Team, World, live
from tests.unit.storage.references import entry, on_builtin

pytestmark = pytest.mark.service

QUESTION = PoolQuestion(
    name="softmax", op_class="softmax", operators=("aten._softmax.default",), shapes=((4096, 8192),), target=Target.CUDA
)


@pytest.fixture
def client(world: World, team: Team) -> Iterator[Client]:
    with Client(world.url, team.key) as opened:
        yield opened


@pytest.fixture(name="other")
def _other(world: World, stranger: Team) -> Iterator[Client]:
    with Client(world.url, stranger.key) as opened:
        yield opened


def own_entry(world: World, team: Team, name: str = "softmax", **fields: Any) -> PoolEntry:
    made = on_builtin(entry(name, str(uuid.uuid4()), team=str(team.id), **fields))
    with world.database.transaction() as session:
        remember(session, made)
    return made


def test_entries_are_listed_shown_and_found_with_reasons(world: World, team: Team, client: Client) -> None:
    made = [own_entry(world, team, techniques=(f"t{place}",), speedup=1.5 + place) for place in range(3)]
    page = client.pool_entries(limit=2)
    rest = client.pool_entries(limit=2, cursor=page.next_cursor)
    assert [item.entry.id for item in (*page.items, *rest.items)] == [member.id for member in reversed(made)]
    assert client.pool_entry(made[0].id).own
    assert [item.entry.id for item in client.pool_entries(technique="t1").items] == [made[1].id]
    found = client.pool_search(QUESTION)
    assert [match.entry.id for match in found.matches] == [member.id for member in reversed(made)]
    assert found.matches[0].why.lexical == pytest.approx(1.0)
    assert found.matches[0].why.tries == 1
    stats = client.pool_stats()
    assert (stats.entries, stats.measured, stats.imported) == (3, 3, 0)
    assert {technique.technique: technique.wins for technique in stats.techniques} == {"t0": 1, "t1": 1, "t2": 1}


def test_another_team_sees_nothing_until_it_is_shared(world: World, team: Team, client: Client, other: Client) -> None:
    made = own_entry(world, team, techniques=("online_softmax",))
    assert other.pool_entries(shared=True).items == []
    assert other.pool_search(QUESTION).matches == ()
    for refused in (
        lambda: other.pool_entry(made.id),
        lambda: other.pool_share(Sharing.OPEN, entries=[uuid.UUID(made.id)]),
    ):
        with pytest.raises(ApiError) as caught:
            refused()
        assert caught.value.status == 404
    assert client.pool_share(Sharing.ANONYMOUS, entries=[uuid.UUID(made.id)]).changed == 1
    shown = other.pool_entry(made.id)
    assert (shown.own, shown.entry.problem_name, shown.entry.kernel_hash) == (False, "shared problem", None)
    assert [match.entry.id for match in other.pool_search(QUESTION).matches] == [made.id]
    assert other.pool_stats().shared_with_us == 1
    assert list(other.pool_export()) == []
    assert client.pool_share(Sharing.PRIVATE, entries=[uuid.UUID(made.id)]).changed == 1
    assert other.pool_entries(shared=True).items == []


def test_an_export_goes_into_another_teams_pool_once_and_as_a_claim(
    world: World, team: Team, client: Client, other: Client
) -> None:
    own_entry(world, team, speedup=5.0)
    own_entry(world, team, name="gelu", speedup=2.0)
    lines = list(client.pool_export())
    assert str(team.id) not in "".join(lines)
    assert client.pool_import(lines).added == 0, "its own entries are known"
    first = other.pool_import(lines, source="cluster-a")
    again = other.pool_import(lines, source="cluster-a")
    assert (first.added, first.known, again.added, again.known) == (2, 0, 0, 2)
    stats = other.pool_stats()
    assert (stats.measured, stats.imported, [technique.tries for technique in stats.techniques]) == (0, 2, [0, 0])
    (match,) = other.pool_search(QUESTION).matches
    assert match.entry.provenance.imported_from == "cluster-a"
    assert (match.why.tries, match.why.imported) == (0, 1)
    back = client.pool_import(list(other.pool_export()))
    assert (back.added, back.known) == (0, 2), "what comes back is known"


def _with_kernel(world: World, team: Team, source: str) -> tuple[PoolEntry, Kernel]:
    plan = LaunchPlan(
        launches=(Launch(kernel="k", args=("x", "out"), grid=("1",), block=("BLOCK",)),),
        tunables={"BLOCK": Tunable(value=64, choices=(64, 128))},
    )
    kernel = Kernel(target=Target.CUDA, source=source, plan=plan)
    with world.database.transaction() as session:
        store_kernel(session, kernel)
    return _of_kernel(world, team, kernel), kernel


def _of_kernel(world: World, team: Team, kernel: Kernel) -> PoolEntry:
    made = own_entry(world, team).model_copy(update={"kernel_hash": kernel.content_hash()})
    with world.database.transaction() as session:
        remember(session, made)
    return made


def _carried(lines: list[str]) -> list[Kernel]:
    return [Kernel.model_validate(data["kernel"]) for data in map(json.loads, lines) if "kernel" in data]


def _forget(world: World, kernel: Kernel) -> None:
    """As on another cluster, which never saw it."""
    with world.database.transaction() as session:
        session.execute(delete(KernelRow).where(KernelRow.hash == kernel.content_hash()))


def test_kernels_go_along_once_each_and_come_back_as_they_were(
    world: World, team: Team, client: Client, other: Client
) -> None:
    first, kernel = _with_kernel(world, team, f'// {uuid.uuid4()}\n"quoted" \u00b5s\n')
    _of_kernel(world, team, kernel)
    lines = list(client.pool_export())
    assert _carried(lines) == [kernel]
    assert _carried(list(client.pool_export(kernels=False))) == []
    _forget(world, kernel)
    assert other.pool_import(lines, source="cluster-a").added == 2
    with world.database.transaction() as session:
        row = session.get_one(KernelRow, kernel.content_hash())
        assert (row.source, row.plan) == (kernel.source, kernel.plan)
    assert _carried(list(other.pool_export())) == [kernel], "it was given with its source"
    assert first.kernel_hash == kernel.content_hash()


def test_a_claim_that_names_a_kernel_gets_no_source_of_others(world: World, team: Team, other: Client) -> None:
    made, kernel = _with_kernel(world, team, f"// secret {uuid.uuid4()}\n")
    assert other.pool_import([line_of(made)]).added == 1
    assert _carried(list(other.pool_export())) == []
    assert kernel.source not in "".join(other.pool_export())


def test_a_kernel_that_is_not_the_entrys_is_a_bad_line(world: World, team: Team, other: Client) -> None:
    made, kernel = _with_kernel(world, team, f"// {uuid.uuid4()}\n")
    whole = kernel.model_dump(mode="json")
    wrong = [
        line_of(made, {**whole, "source": "// another"}),
        line_of(made, {**whole, "plan": {}}),
        line_of(made, {**whole, "source": "x" * (MAX_SOURCE_BYTES + 1)}),
        line_of(made, {**whole, "source": "x" * (MAX_KERNEL_BYTES + MAX_LINE_BYTES)}),
    ]
    done = other.pool_import(wrong)
    assert (done.added, [bad.line for bad in done.bad]) == (0, [1, 2, 3, 4])
    told = [bad.reason for bad in done.bad]
    assert "its hash is not the entry's" in told[0]
    assert told[1].startswith("kernel: plan.launches")
    assert "larger than" in told[2]
    assert "longer than" in told[3]


def test_bad_lines_are_told_with_number_and_reason_and_stop_no_other(client: Client) -> None:
    good = json.loads(line_of(entry("softmax", str(uuid.uuid4()))))

    def changed(**fields: Any) -> str:
        return json.dumps({**good, "entry": {**good["entry"], **fields}})

    lines = [
        "{",
        "",
        json.dumps([]),
        changed(speedup=None),
        changed(speedup=-1.0),
        changed(speedup=1e9),
        changed(id="../../etc/passwd"),
        changed(created_at="2999-01-01T00:00:00+00:00"),
        changed(created_at="yesterday"),
        changed(created_at="0001-01-01T00:00:00+14:00"),
        changed(target="tpu"),
        changed(extra=1),
        changed(problem_name="a\0b"),
        json.dumps(good),
    ]
    done = client.pool_import(lines)
    assert (done.lines, done.added) == (13, 1)
    assert [bad.line for bad in done.bad] == [1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    reasons = " | ".join(bad.reason for bad in done.bad)
    for part in (
        "not JSON",
        "not an entry",
        "speedup",
        "not a UUID",
        "future",
        "ISO 8601",
        "target",
        "extra",
        "U+0000",
    ):
        assert part in reasons


def test_what_cannot_be_searched_for_is_refused(client: Client) -> None:
    with pytest.raises(ApiError) as caught:
        client.pool_search(job=uuid.uuid4())
    assert caught.value.status == 404


@pytest.mark.parametrize(("year", "found"), [(9999, 1), (2, 0)])
def test_the_pool_can_be_asked_as_of_any_time(world: World, team: Team, client: Client, year: int, found: int) -> None:
    own_entry(world, team)
    asked = QUESTION.model_copy(update={"before": datetime(year, 12, 31, tzinfo=timezone(timedelta(hours=20)))})
    assert len(client.pool_search(asked).matches) == found


def test_the_command_line_does_the_same(world: World, team: Team, client: Client, tmp_path: Path) -> None:
    made = own_entry(world, team, speedup=3.0)
    server = ["--server", client.url]
    runner = CliRunner(env={"CUPILOT_API_KEY": team.key})

    def run(*arguments: str, code: int = 0) -> str:
        done = runner.invoke(command_line, ["pool", *arguments, *server])
        assert done.exit_code == code, done.output
        return done.output

    found = run("search", "softmax", "--op-class", "softmax")
    assert "1 of 1 evaluations count" in found
    assert "3.00x" in found
    assert made.id in run("list")
    assert json.loads(run("show", made.id))["own"]
    assert "open now: 1 entry" in run("share", made.id, "--as", "open")
    assert "private now: 1 entry" in run("share", made.id, "--as", "private")
    lie = made.model_copy(update={"id": str(uuid.uuid4()), "problem_hash": "0" * 64})
    with world.database.transaction() as session:
        remember(session, lie)
    assert "open now: 0 entries\n1 stay private: only" in run("share", lie.id, "--as", "open")
    with world.database.transaction() as session:
        session.execute(delete(PoolRow).where(PoolRow.id == uuid.UUID(lie.id)))
    file = tmp_path / "pool.jsonl"
    run("export", str(file))
    assert "0 added, 1 known already, 0 bad" in run("import", str(file))
    file.write_text("nonsense\n", encoding="utf-8")
    assert "line 1: not JSON" in run("import", str(file), code=2)
    assert "1 entry of 1 problem" in run("stats")
    run("search", code=2)


def test_an_index_that_hangs_holds_up_no_other_request(world: World, team: Team) -> None:
    """More searches at once than the API has turns, each of which it holds while the index is asked."""
    own_entry(world, team)
    url = SecretStr(world.database.engine.url.render_as_string(hide_password=False))
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        settings = Settings(database_url=url, chroma_url=f"http://127.0.0.1:{hanging.getsockname()[1]}")
        app = create_app(settings)
        with live(app) as address, ThreadPoolExecutor(TURNS + 1) as crowd:

            def search(_: int) -> list[str]:
                asked = {"question": QUESTION.model_dump(mode="json")}
                found = httpx.post(f"{address}/v1/pool/search", json=asked, headers=team.http.headers, timeout=30)
                return list(found.raise_for_status().json()["notes"])

            asked = [crowd.submit(search, number) for number in range(TURNS + 1)]
            time.sleep(0.5)
            began = time.monotonic()
            httpx.get(f"{address}/v1/jobs", headers=team.http.headers, timeout=20).raise_for_status()
            assert time.monotonic() - began < 8
            for each in asked:
                assert "by words only" in each.result()[0]
        app.state.database.close()
