"""Invented techniques on a real Postgres: entered once, judged by the team's own entries, promoted and demoted."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.pool import Provenance, Sharing
from cupilot.domain.problem import Target
from cupilot.domain.standing import Standing
from cupilot.domain.states import StrategyOrigin
from cupilot.domain.strategy import MAX_MEANING, Strategy, TechniqueUse
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.pool import NovelTechnique
from cupilot.storage.jobs.jobs import submit_job
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.pool.rows import remember
from cupilot.storage.pool.techniques import enter_techniques, learned_techniques, records
from tests.service.rig import job_spec
from tests.unit.storage.references import entry

pytestmark = pytest.mark.service

LATER = timedelta(days=1)


def team_of(database: Database, name: str = "blue") -> uuid.UUID:
    with database.transaction() as session:
        return ensure_team(session, name).id


def job_of(database: Database, team: uuid.UUID, target: Target = Target.CUDA) -> uuid.UUID:
    with database.transaction() as session:
        return submit_job(session, team, job_spec(target=target), idempotency_key=None, request_hash="0" * 64)[0].id


def invent(database: Database, job: uuid.UUID, *names: str, meaning: str = "what it does") -> None:
    uses = tuple(TechniqueUse(id=name, meaning=meaning) for name in names)
    with database.transaction() as session:
        strategy = Strategy(techniques=uses, rationale="the whole idea")
        enter_techniques(session, session.get_one(Job, job), [strategy], StrategyOrigin.IDEA)


def measured(
    database: Database, team: uuid.UUID, reference: str, techniques: str, *speedups: float | None, **fields: object
) -> None:
    with database.transaction() as session:
        for speedup in speedups:
            failure = FailureKind.COMPILE_ERROR if speedup is None else None
            made = entry(
                reference,
                str(uuid.uuid4()),
                techniques=tuple(techniques.split()),
                speedup=speedup,
                failure=failure,
                team=str(team),
            )
            sharing = fields.get("sharing")
            provenance = Provenance(imported_from="elsewhere" if fields.get("imported") else None)
            remember(
                session,
                made.model_copy(update={"provenance": provenance}),
                sharing if isinstance(sharing, Sharing) else None,
            )


def promoted(database: Database, team: uuid.UUID, before: datetime | None = None) -> list[str]:
    with database.transaction() as session:
        found = learned_techniques(session, team, Target.CUDA, before or datetime.now(UTC) + LATER)
        return [item.id for item in found]


def test_a_technique_is_entered_once_with_its_first_meaning_and_none_of_the_catalogue(database: Database) -> None:
    team = team_of(database)
    job = job_of(database, team)
    invent(database, job, "two_rows", "vector_loads", meaning="m" * MAX_MEANING)
    invent(database, job_of(database, team), "two_rows", "another", meaning="")
    invent(database, job_of(database, team, Target.CPU), "two_rows")
    with database.transaction() as session:
        rows = session.scalars(select(NovelTechnique).order_by(NovelTechnique.technique, NovelTechnique.target)).all()
        known = [(row.technique, row.target, row.meaning) for row in rows]
        assert rows[2].job_id == job
    assert known == [
        ("another", "cuda", "the whole idea"),
        ("two_rows", "cpu", "what it does"),
        ("two_rows", "cuda", "m" * MAX_MEANING),
    ]


def test_results_promote_over_problems_and_demote_what_hurts(database: Database) -> None:
    team, other = team_of(database), team_of(database, "red")
    invent(database, job_of(database, team), "good", "bad", "lucky", "unused")
    invent(database, job_of(database, other), "good")
    for reference in ("softmax", "layer_norm"):
        measured(database, team, reference, "tiling", 1.0, 1.1, 1.05, None)
        measured(database, team, reference, "tiling good", 2.0, 2.1)
        measured(database, team, reference, "bad", 0.5, None)
    measured(database, team, "softmax", "lucky", 3.0, 3.0, 3.0)
    assert promoted(database, team) == ["good"]
    assert promoted(database, other) == []
    assert promoted(database, team, datetime.now(UTC) - LATER) == []
    with database.transaction() as session:
        found = records(session, team, ["good", "bad", "lucky", "unused", "tiling"])
    good, bad = found["good", "cuda"], found["bad", "cuda"]
    assert (good.tries, good.wins, good.problems, good.families) == (4, 4, 2, ("norm", "softmax"))
    assert (bad.tries, bad.wins, bad.failures) == (4, 2, {"compile_error": 2})
    assert bad.standing is Standing.DEMOTED
    assert found["lucky", "cuda"].standing is Standing.NOVEL
    assert ("unused", "cuda") not in found
    assert found["tiling", "cuda"].tries == 12
    measured(database, team, "softmax", "good", *[None] * 12)
    assert promoted(database, team) == []


def test_only_what_the_team_measured_itself_counts(database: Database) -> None:
    team, other = team_of(database), team_of(database, "red")
    invent(database, job_of(database, team), "good")
    for reference in ("softmax", "layer_norm"):
        measured(database, team, reference, "tiling", 1.0, 1.1)
        measured(database, team, reference, "good", 2.0, 2.1, imported=True)
        measured(database, other, reference, "good", 2.0, 2.1, sharing=Sharing.OPEN)
    assert promoted(database, team) == []
    with database.transaction() as session:
        assert records(session, team, ["good"]) == {}
