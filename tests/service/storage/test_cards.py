"""Leases of cards: one worker at a time holds a card, and another one is told who."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import func, select, update

from cupilot.domain.problem import Target
from cupilot.domain.states import StepState, WorkerKind
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.queue import CardLease, Step, WorkerRow
from cupilot.storage.queue.cards import CardTaken, take_card
from cupilot.storage.queue.cluster import beat, forget_worker, live_workers, prune_workers, register_worker
from cupilot.storage.queue.drains import begin_drain
from cupilot.storage.queue.steps import Claim, claim_step
from tests.service.doubles import device
from tests.service.rig import Rig

pytestmark = pytest.mark.service

CARD = device(Target.CUDA, "sm_90", uid="GPU-0")


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


def register(database: Database, name: str, target: Target = Target.CUDA) -> None:
    where = CARD if target is Target.CUDA else device()
    with database.transaction() as session:
        register_worker(
            session,
            name,
            WorkerKind.GPU,
            queues=[f"gpu.{where.device_class}"],
            slots=1,
            version="t",
            device=where,
        )


def fall_silent(database: Database, ago: timedelta = timedelta(seconds=1)) -> None:
    """As if nobody had renewed the card's lease for long."""
    with database.transaction() as session:
        session.execute(update(CardLease).values(expires_at=func.now() - ago))


def holder(database: Database) -> str | None:
    with database.transaction() as session:
        return session.scalar(select(CardLease.worker).where(CardLease.uid == CARD.uid))


def claim(rig: Rig, step_id: uuid.UUID, owner: str) -> Claim | None:
    with rig.database.transaction() as session:
        return claim_step(session, step_id, 0, owner, timedelta(seconds=30))


def test_a_second_worker_is_told_who_holds_the_card_since_when_and_what_to_do(database: Database) -> None:
    register(database, "first")
    with pytest.raises(CardTaken, match=r"GPU-0 is held by worker first since \d{4}-.* UTC") as told:
        register(database, "second")
    assert told.value.code == "card_taken"
    assert told.value.hint is not None
    assert "--device" in told.value.hint
    with database.transaction() as session:
        assert [worker.name for worker in live_workers(session)] == ["first"], "the second is not counted on"


def test_of_many_workers_that_come_up_at_once_one_gets_the_card(database: Database) -> None:
    def come_up(number: int) -> bool:
        try:
            register(database, f"w{number}")
        except CardTaken:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(come_up, range(8))) == 1


def test_a_cpu_is_shared(database: Database) -> None:
    register(database, "first", Target.CPU)
    register(database, "second", Target.CPU)
    with database.transaction() as session:
        assert len(live_workers(session)) == 2


def test_a_worker_that_comes_up_again_under_its_name_has_its_card(database: Database) -> None:
    register(database, "first")
    register(database, "first")
    assert holder(database) == "first"


def test_a_beat_renews_the_lease(database: Database) -> None:
    register(database, "first")
    fall_silent(database)
    with database.transaction() as session:
        beat(session, "first")
    with pytest.raises(CardTaken):
        register(database, "second")


def test_a_worker_that_ends_in_good_order_leaves_the_card_to_the_next(database: Database) -> None:
    register(database, "first")
    with database.transaction() as session:
        forget_worker(session, "first")
    register(database, "second")
    assert holder(database) == "second"


@pytest.mark.parametrize("ago", [timedelta(seconds=1), -timedelta(hours=1)], ids=["run out", "clock set back"])
def test_a_dead_workers_card_is_taken_over(database: Database, ago: timedelta) -> None:
    register(database, "first")
    fall_silent(database, ago)
    register(database, "second")
    assert holder(database) == "second"
    with pytest.raises(CardTaken, match="worker second"), database.transaction() as session:
        beat(session, "first")


def test_the_time_since_which_a_card_is_held_is_the_holders(database: Database) -> None:
    register(database, "first")
    with database.transaction() as session:
        hour = timedelta(hours=1)
        session.execute(update(CardLease).values(since=func.now() - hour))
        take_card(session, CARD, "first")
        since, now = session.execute(select(CardLease.since, func.now())).one()
        assert now - since == hour
    fall_silent(database)
    with database.transaction() as session:
        take_card(session, CARD, "second")
        assert session.scalar(select(CardLease.since == func.now()))


def test_a_worker_that_lost_its_card_gets_no_step(rig: Rig) -> None:
    step_id = rig.step(rig.submit(target=Target.CUDA), "prepare").id
    register(rig.database, "first")
    fall_silent(rig.database)
    register(rig.database, "second")
    assert claim(rig, step_id, "first") is None
    with rig.database.transaction() as session:
        step = session.get_one(Step, step_id)
        assert (step.state, step.attempt) == (StepState.QUEUED, 0)
    won = claim(rig, step_id, "second")
    assert won is not None
    assert won.owner == "second"


def test_a_claim_keeps_the_card(rig: Rig) -> None:
    """A holder that was slow to beat and takes a step has the card from then on, not only from its next beat."""
    step_id = rig.step(rig.submit(target=Target.CUDA), "prepare").id
    register(rig.database, "first")
    fall_silent(rig.database)
    assert claim(rig, step_id, "first") is not None
    with pytest.raises(CardTaken):
        register(rig.database, "second")


@pytest.mark.parametrize(
    ("hours", "follows", "left"),
    [(1, None, {"one"}), (80, None, set()), (1, "another", {"two"}), (1, "drain", set())],
    ids=["missed", "for days", "replaced", "drained"],
)
def test_a_card_whose_worker_went_without_a_word_stays_on_the_list(
    database: Database, hours: float, follows: str | None, left: set[str]
) -> None:
    """The alert of a card out of use rests on that row; it resolved itself after ten minutes."""
    register(database, "one")
    with database.transaction() as session:
        register_worker(session, "agent", WorkerKind.AGENT, queues=["agents"], slots=1, version="t", device=None)
        session.execute(update(WorkerRow).values(heartbeat_at=func.now() - timedelta(hours=hours)))
    if follows == "another":
        fall_silent(database)
        register(database, "two")
    with database.transaction() as session:
        if follows == "drain":
            begin_drain(session, "one", "broken")
        prune_workers(session)
        assert set(session.scalars(select(WorkerRow.name))) == left
