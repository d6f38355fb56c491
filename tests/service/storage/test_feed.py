"""Events in order: none is ever added behind one that a reader has seen, whatever order transactions commit in."""

from __future__ import annotations

import threading
import uuid

import pytest
from sqlalchemy import insert, text
from sqlalchemy.orm import Session

from cupilot.settings import Settings
from cupilot.storage.db import feed
from cupilot.storage.db.engine import Database
from cupilot.storage.db.feed import events_after, last_settled_id
from cupilot.storage.db.tables.jobs import Event, Job
from cupilot.storage.db.transitions import record_event
from tests.service.rig import Rig
from tests.service.rows import rows_read

pytestmark = pytest.mark.service

WRITERS = 6
EACH = 25


@pytest.fixture
def job(database: Database, settings: Settings) -> uuid.UUID:
    return Rig(database, settings).submit()


def _append(session: Session, job: uuid.UUID, *kinds: str) -> None:
    for kind in kinds:
        record_event(session, job, kind)
    session.flush()


def _kinds(database: Database, after: int = 0) -> tuple[list[str], int]:
    with database.transaction() as session:
        rows = events_after(session, after, last_settled_id(session), 10_000)
    return [event.kind for event, _ in rows], rows[-1][0].id if rows else after


def test_what_commits_late_is_not_overtaken(database: Database, job: uuid.UUID) -> None:
    before, last = _kinds(database)
    assert before
    with Session(database.engine) as slow, Session(database.engine) as fast:
        _append(slow, job, "slow.1")
        _append(fast, job, "fast.1")
        fast.rollback()
        _append(fast, job, "fast.2")
        _append(slow, job, "slow.2")
        fast.get_one(Job, job)
        fast.connection().execute(text("COMMIT"))
        assert _kinds(database, last)[0] == [], "an event with a lower id is still to come"
        slow.connection().execute(text("COMMIT"))
        assert _kinds(database, last)[0] == ["slow.1", "fast.2", "slow.2"]


def test_a_transaction_that_is_rolled_back_holds_nobody_up(database: Database, job: uuid.UUID) -> None:
    _, last = _kinds(database)
    with Session(database.engine) as lost:
        _append(lost, job, "lost")
        with database.transaction() as session:
            _append(session, job, "kept")
        assert _kinds(database, last)[0] == []
        lost.rollback()
    assert _kinds(database, last)[0] == ["kept"]


def test_a_savepoint_that_is_rolled_back_takes_its_mark_with_it(database: Database, job: uuid.UUID) -> None:
    _, last = _kinds(database)
    with Session(database.engine) as one:
        inner = one.begin_nested()
        _append(one, job, "undone")
        inner.rollback()
        _append(one, job, "first")
        with database.transaction() as session:
            _append(session, job, "second")
        assert _kinds(database, last)[0] == []
        one.connection().execute(text("COMMIT"))
    assert _kinds(database, last)[0] == ["first", "second"]


def test_a_reader_beside_many_writers_sees_everything_once_and_in_order(database: Database, job: uuid.UUID) -> None:
    _, last = _kinds(database)
    working = threading.Semaphore(0)

    def write(writer: int) -> None:
        for number in range(EACH):
            with Session(database.engine) as session:
                _append(session, job, f"{writer}.{number}.a")
                if number % 5 == writer % 5:
                    session.rollback()
                    continue
                _append(session, job, f"{writer}.{number}.b")
                session.connection().execute(text("COMMIT"))
        working.release()

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    seen: list[str] = []
    while any(thread.is_alive() for thread in threads):
        more, last = _kinds(database, last)
        seen += more
    for thread in threads:
        thread.join()
    more, _ = _kinds(database, last)
    seen += more
    with database.transaction() as session:
        query = text("SELECT kind FROM events WHERE kind ~ '^[0-9]' ORDER BY id")
        assert seen == list(session.execute(query).scalars())
    assert len(seen) == len(set(seen)) == WRITERS * (EACH - EACH // 5) * 2


@pytest.mark.parametrize("window", [1, 4, feed.WINDOW])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_a_teams_pages_hold_all_of_its_events_in_order(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch, window: int, limit: int
) -> None:
    rig = Rig(database, settings)
    small = [rig.submit("small", request_hash=f"{number}" * 64) for number in range(2)]
    big = rig.submit("big", request_hash="9" * 64)
    for job in (*[big] * 9, small[0], small[1], small[0], *[big] * 7, small[1], big, small[0], *[big] * 5):
        with database.transaction() as session:
            _append(session, job, "one")
    monkeypatch.setattr(feed, "WINDOW", window)
    with database.transaction() as session:
        team, up_to = session.get_one(Job, small[0]).team_id, last_settled_id(session)
        everything = events_after(session, 0, up_to, 1_000)
        pages, last = [], 0
        while page := events_after(session, last, up_to, limit, team=team):
            assert len(page) <= limit
            pages += page
            last = page[-1][0].id
        assert [event.id for event, _ in pages] == [event.id for event, owner in everything if owner == team]
        assert {owner for _, owner in pages} == {team}
        assert len(pages) > 5


def test_a_team_reads_little_of_what_others_had_before_it(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(database, settings)
    rows = [{"job_id": rig.submit("big"), "kind": "one"}] * 5_000
    with database.transaction() as session:
        session.execute(insert(Event), rows)
    mine = [rig.submit("small", request_hash=f"{number}" * 64) for number in range(3)]
    with database.transaction() as session:
        session.execute(insert(Event), [{"job_id": job, "kind": "one"} for job in mine for _ in range(20)])
        team = session.get_one(Job, mine[0]).team_id
    monkeypatch.setattr(feed, "WINDOW", 100)
    with rows_read(database, "events") as counts, database.transaction() as session:
        assert len(events_after(session, 0, last_settled_id(session), 30, team=team)) == 30
    assert max(counts) <= 200, counts
