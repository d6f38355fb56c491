"""Pins, bans and injections mean the same in every method, also in those whose operators write code freely."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from cupilot.domain.evolution.evoengineer import EvoEngineerFreeConfig
from cupilot.domain.evolution.funsearch import FunSearchConfig
from cupilot.domain.evolution.population import Operator
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import AgentKind
from cupilot.domain.states import CandidateState, JobState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.jobs import steering
from tests.scripted_model import Reply, ScriptedModel
from tests.service.doubles import kernel, strategy
from tests.service.method_models import competent, kind_of, text_of
from tests.service.rig import Rig
from tests.service.workers.test_methods import SMALL
from tests.service.workers.test_models import ModelRig

pytestmark = [
    pytest.mark.service,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::DeprecationWarning"),
]

BANNED = "shared_rows"
NARROW = {"insight": {"population": 1}, "full": {"population": 2}, "ai-cuda": {"shown": 1}}
"""Sizes by which the worst candidate is kept for its pin only."""


@pytest.mark.parametrize("name", [name for name in SMALL if name != "sce-code"])
def test_directives_hold_in_every_method(database: Database, settings: Settings, name: str) -> None:
    """The first candidate is pinned, a technique banned and two strategies injected while the model answers."""
    asked: list[tuple[str, str]] = []

    def steered(request: dict[str, Any]) -> Reply:
        if not asked:
            steer(rig, job_id)
        if len(asked) == 1:
            pin(rig, job_id)
        asked.append((kind_of(request), text_of(request)))
        return competent(request)

    with ScriptedModel(steered) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=SMALL[name].model_copy(update=NARROW.get(name, {})))
        rig.run()
    job, candidates = rig.job(job_id), rig.candidates(job_id)
    assert (job.state, job.reason) == (JobState.SUCCEEDED, None)
    injected = [candidate for candidate in candidates if candidate.operator is Operator.INJECTED]
    assert [item.state for item in injected] == [CandidateState.EVALUATED] * 2
    assert [item.speedup for item in injected] == [pytest.approx(1.9), pytest.approx(1.7)]
    assert max(candidate.speedup or 0 for candidate in candidates) >= injected[0].speedup, "it may become a parent"
    assert candidates[0].survives, "it is pinned"
    assert (candidates[0].speedup or 0) < injected[1].speedup, "and not for its speed"
    kinds = {kind for kind, text in asked[1:] if BANNED not in text}
    assert kinds <= {"convert", "summarise", "align"}, "whoever chooses techniques or writes code is told"


def test_what_is_injected_into_the_last_samples_is_tried(database: Database, settings: Settings) -> None:
    asked: list[str] = []

    def steered(request: dict[str, Any]) -> Reply:
        asked.append(kind_of(request))
        if len(asked) == 1:
            inject(rig, job_id)
        return competent(request)

    with ScriptedModel(steered) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=FunSearchConfig(samplers=2, samples=2))
        rig.run()
    assert len(asked) == 2
    injected_last(rig, job_id)


def test_what_is_injected_before_a_kernel_near_the_floor_is_tried(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("floor"), strategy("t1"), strategy("t2")])
    job_id = rig.submit(method=SceConfig(population=3, generations=3, elites=1))
    message = rig.run_until(job_id, "c2/evaluate/0")
    inject(rig, job_id)
    rig.do(message)
    rig.run()
    assert [candidate.ordinal for candidate in rig.candidates(job_id)] == [0, 1, 2, 3]
    injected_last(rig, job_id)


def test_free_code_that_shows_what_is_banned_is_not_measured(database: Database, settings: Settings) -> None:
    """Of two kernels the first was asked for before the ban, the second after it; the model keeps to none."""
    asked: list[str] = []

    def stubborn(request: dict[str, Any]) -> Reply:
        asked.append(request["messages"][-1]["content"])
        if len(asked) == 1:
            with database.transaction() as session:
                steering.ban(session, session.get_one(Job, job_id).team_id, job_id, "ann", technique="threads")
        return Reply(text=(competent(request).text or "").replace("```cpp\n", "```cpp\n#pragma omp parallel for\n"))

    with ScriptedModel(stubborn) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=EvoEngineerFreeConfig(generations=1, samplers=2))
        rig.run()
    ends = [(candidate.state, candidate.reason) for candidate in rig.candidates(job_id)]
    assert ends == [(CandidateState.FAILED, "banned"), (CandidateState.FAILED, "bad_model_answer")]
    assert "banned from this job: threads" in asked[-1]
    assert rig.job(job_id).state is JobState.FAILED
    assert not [call for call in rig.judge.calls if call.startswith("evaluate")]


def inject(rig: Rig, job_id: uuid.UUID) -> None:
    with rig.database.transaction() as session:
        team = session.get_one(Job, job_id).team_id
        steering.inject(session, team, job_id, "ann", strategy=strategy("t9"), kernel=kernel("t9"))


def injected_last(rig: Rig, job_id: uuid.UUID) -> None:
    assert rig.job(job_id).state is JobState.SUCCEEDED
    last = rig.candidates(job_id)[-1]
    assert (last.operator, last.state) == (Operator.INJECTED, CandidateState.EVALUATED)


def pin(rig: ModelRig, job_id: uuid.UUID) -> None:
    with rig.database.transaction() as session:
        steering.pin(session, session.get_one(Job, job_id).team_id, job_id, "0", "ann")


def steer(rig: ModelRig, job_id: uuid.UUID) -> None:
    with rig.database.transaction() as session:
        team = session.get_one(Job, job_id).team_id
        steering.ban(session, team, job_id, "ann", technique=BANNED)
        steering.inject(session, team, job_id, "ann", strategy=strategy("t9"), kernel=kernel("t9"))
        steering.inject(session, team, job_id, "ann", strategy=strategy("t7x"))
