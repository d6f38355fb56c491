"""A kernel that beat the floor: it stays in quarantine, and a model is asked about it once, in a new candidate."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import select

from cupilot.domain.evaluation import Verdict
from cupilot.domain.evolution.population import Operator
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import AgentKind
from cupilot.domain.states import CandidateState, GenerationState, JobState, StepKind
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Candidate, Generation, KernelRow
from cupilot.storage.jobs.candidate_views import candidate_view
from tests.scripted_model import Reply, ScriptedModel
from tests.service.doubles import strategy
from tests.service.method_models import cheating, competent, kind_of, text_of
from tests.service.rig import Rig
from tests.service.workers.test_models import ModelRig

pytestmark = [
    pytest.mark.service,
    pytest.mark.filterwarnings(
        "ignore:unclosed:ResourceWarning", "ignore::DeprecationWarning", "ignore:Item .* on TypedDict:UserWarning"
    ),
]

METHOD = SceConfig(population=3, generations=2, elites=1, repair_rounds=2)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Nobody dies here: a lease must not run out on a machine that is busy with other things."""
    return settings.model_copy(update={"lease_seconds": 600.0})


def _asks_about(request: dict[str, Any]) -> bool:
    return "The judge does not believe this kernel" in text_of(request)


def tempted(request: dict[str, Any]) -> Reply:
    """Cheats for the strategy ``t2``; asked to account for it, does the work."""
    if _asks_about(request):
        return Reply(
            text=(competent(request).text or "").replace("cheat", "t2").replace("guarded the tail", "no cache")
        )
    good = competent(request)
    if kind_of(request) == "translate_strategy" and re.search(r"```cpp\nt2 ", good.text or ""):
        return Reply(text=(good.text or "").replace("```cpp\nt2 ", "```cpp\ncheat "))
    return good


def _quarantined(rig: Rig, job_id: Any) -> list[Candidate]:
    return [candidate for candidate in rig.candidates(job_id) if candidate.verdict is Verdict.QUARANTINED]


def test_the_answer_is_a_candidate_of_its_own_and_the_quarantined_one_stays_as_it_was(
    database: Database, settings: Settings
) -> None:
    with ScriptedModel(tempted) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=METHOD)
        rig.run()
        asked = [request for request in server.requests if _asks_about(request)]
    job = rig.job(job_id)
    assert job.state is JobState.SUCCEEDED
    (suspect,) = _quarantined(rig, job_id)
    (answer,) = [candidate for candidate in rig.candidates(job_id) if candidate.operator is Operator.MUTATION]
    assert (suspect.state, answer.state) == (CandidateState.EVALUATED, CandidateState.EVALUATED)
    assert answer.generation_id == suspect.generation_id
    assert answer.verdict is not None
    assert answer.verdict.counts
    assert len(asked) == 1
    assert "us is faster" not in text_of(asked[0])
    with database.transaction() as session:
        assert session.get_one(KernelRow, suspect.kernel_hash).source.startswith("cheat")
        assert not session.get_one(KernelRow, answer.kernel_hash).source.startswith("cheat")
        seen = candidate_view(session, job.team_id, job_id, str(answer.ordinal))
        assert [ancestor.candidate for ancestor in seen.lineage] == [answer.id, suspect.id]
        assert seen.after_quarantine
        assert seen.repairs == ["no cache"]
        assert not candidate_view(session, job.team_id, job_id, str(suspect.ordinal)).after_quarantine
        states = session.scalars(select(Generation.state).where(Generation.job_id == job_id))
        assert set(states) == {GenerationState.FINISHED}
    assert {step.kind for step in rig.steps(job_id) if step.candidate_id == suspect.id} == {
        StepKind.TRANSLATE,
        StepKind.EVALUATE,
    }


def test_who_cheats_again_is_asked_once_and_no_more(database: Database, settings: Settings) -> None:
    with ScriptedModel(cheating) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=METHOD)
        rig.run()
        asked = [request for request in server.requests if _asks_about(request)]
    assert rig.job(job_id).state is JobState.FAILED
    answers = [candidate for candidate in rig.candidates(job_id) if candidate.operator is Operator.MUTATION]
    others = [item for item in _quarantined(rig, job_id) if item.operator is not Operator.MUTATION]
    assert len(answers) == len(others) == len(asked) > 0
    assert {answer.verdict for answer in answers} <= {None, Verdict.QUARANTINED}
    assert all(candidate.state is not CandidateState.ACTIVE for candidate in rig.candidates(job_id))


def test_templates_are_asked_nothing(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("cheat"), strategy("t1"), strategy("t2")])
    job_id = rig.submit(method=METHOD)
    rig.run()
    assert rig.job(job_id).state is JobState.SUCCEEDED
    assert len(_quarantined(rig, job_id)) == 1
    assert not [candidate for candidate in rig.candidates(job_id) if candidate.operator is Operator.MUTATION]
