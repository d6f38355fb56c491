"""Every method through the whole service in one process, with models that are competent, sloppy and hostile."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import select

from cupilot.domain.evaluation import Verdict
from cupilot.domain.evolution.ai_cuda_engineer import AiCudaEngineerConfig
from cupilot.domain.evolution.eoh import EohConfig
from cupilot.domain.evolution.evoengineer import EvoEngineerFreeConfig, EvoEngineerFullConfig, EvoEngineerInsightConfig
from cupilot.domain.evolution.funsearch import FunSearchConfig
from cupilot.domain.evolution.methods import MethodConfig
from cupilot.domain.evolution.sce import CrossoverLevel, CupilotPaperConfig, SceConfig
from cupilot.domain.job import AgentKind, Budgets, MethodNeedsModel
from cupilot.domain.states import JobState, StepState
from cupilot.jobs.submission import check_agents
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import CandidateParent
from tests.scripted_model import ScriptedModel
from tests.service.doubles import problem, strategy
from tests.service.method_models import MODELS, competent, kind_of, text_of
from tests.service.rig import Rig
from tests.service.workers.test_models import CALL_USD, ModelRig

pytestmark = [
    pytest.mark.service,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::DeprecationWarning"),
]

SMALL: dict[str, MethodConfig] = {
    "sce": SceConfig(population=3, generations=2, elites=1, repair_rounds=1),
    "sce-code": SceConfig(population=3, generations=2, elites=1, repair_rounds=1, crossover=CrossoverLevel.CODE),
    "free": EvoEngineerFreeConfig(generations=2, samplers=2),
    "insight": EvoEngineerInsightConfig(generations=2, samplers=2),
    "eoh": EohConfig(generations=3, samplers=4, population=2),
    "funsearch": FunSearchConfig(generations=3, samplers=2, islands=2),
    "paper": CupilotPaperConfig(population=3, generations=1, elites=1),
    "full": EvoEngineerFullConfig(generations=3, samplers=2),
    "ai-cuda": AiCudaEngineerConfig(retries=2, generations=1, proposals=2, compositions=1),
}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Nobody dies here unless he is killed: a lease must not run out on a machine that is busy with other things."""
    return settings.model_copy(update={"lease_seconds": 600.0})


def story(rig: Rig, job_id: uuid.UUID) -> list[tuple[object, ...]]:
    return [
        (
            candidate.ordinal,
            candidate.operator,
            candidate.kernel_hash,
            candidate.speedup,
            candidate.survives,
            candidate.notes.insight,
        )
        for candidate in rig.candidates(job_id)
    ]


def kinds(server: ScriptedModel) -> Counter[str]:
    return Counter(kind_of(request) for request in server.requests if len(request["messages"]) == 2)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("model", MODELS)
def test_every_method_ends_rightly_with_every_model(
    database: Database, settings: Settings, name: str, model: str
) -> None:
    with ScriptedModel(MODELS[model]) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=SMALL[name])
        rig.run()
        job = rig.job(job_id)
        if model == "competent":
            assert (job.state, job.reason) == (JobState.SUCCEEDED, None)
            assert max(candidate.speedup or 0 for candidate in rig.candidates(job_id)) > 1.1
        else:
            assert job.state in (JobState.SUCCEEDED, JobState.FAILED)
        if model in ("injecting", "cheating"):
            assert job.state is JobState.FAILED
            assert job.reason in ("no_valid_kernel", "bad_model_answer")
            assert all(candidate.verdict in (None, Verdict.QUARANTINED) for candidate in rig.candidates(job_id))
        assert job.cost_usd == pytest.approx(CALL_USD * len(server.paid))
        assert len(rig.calls(job_id)) == len(server.paid)
        assert {step.state for step in rig.steps(job_id)} == {StepState.SUCCEEDED}


@pytest.mark.parametrize(
    ("method", "budgets", "reason"),
    [
        (EvoEngineerFreeConfig(samples=4, samplers=2), Budgets(candidates=3), "candidates_budget"),
        (EohConfig(samples=4, samplers=2), Budgets(candidates=3), "candidates_budget"),
        (SMALL["ai-cuda"], Budgets(cost_usd=CALL_USD), "cost_budget"),
    ],
    ids=["free", "eoh", "ai-cuda without a start"],
)
def test_a_budget_that_cuts_the_last_generation_short_is_the_reason_of_the_end(
    database: Database, settings: Settings, method: MethodConfig, budgets: Budgets, reason: str
) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=method, budgets=budgets)
        rig.run()
        assert (rig.job(job_id).state, rig.job(job_id).reason) == (JobState.BUDGET_EXHAUSTED, reason)


@pytest.mark.parametrize("name", ["full", "ai-cuda"])
def test_equal_jobs_evolve_alike(database: Database, settings: Settings, name: str) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        jobs = []
        for seed in (7, 7, 8):
            jobs.append(rig.submit(agents=AgentKind.LLM, method=SMALL[name], seed=seed))
            rig.run()
        first, second, other = (story(rig, job_id) for job_id in jobs)
        assert first == second != other


def test_evoengineer_full_opens_crosses_and_mutates_with_insights(database: Database, settings: Settings) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=SMALL["full"])
        rig.run()
        assert [candidate.operator.value for candidate in rig.candidates(job_id)] == [
            "rewrite",
            "rewrite",
            *["code_crossover", "mutation"] * 2,
        ]
        assert kinds(server) == {"rewrite": 2, "crossover": 2, "mutation": 2}
        crossed = rig.candidates(job_id)[2]
        notes = crossed.notes
        assert notes.insight.endswith("moves less.")
        assert len(notes.inspirations) == 2
        prompt = next(text_of(request) for request in server.requests if kind_of(request) == "crossover")
        assert prompt.count("moves less.") >= 2
        with database.transaction() as session:
            query = select(CandidateParent).where(CandidateParent.candidate_id == crossed.id)
            assert len(session.scalars(query).all()) == 2


def test_evoengineer_free_shows_the_best_code_and_nothing_else(database: Database, settings: Settings) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        rig.submit(agents=AgentKind.LLM, method=SMALL["free"])
        rig.run()
        first, last = text_of(server.requests[0]), text_of(server.requests[-1])
        assert "There is none yet" in first
        assert last.count('<data name="kernel">') == 1
        assert not any(word in last for word in ("THOUGHT", "verdict", "Roofline", "speedup over"))


def test_eoh_opens_and_goes_through_its_operators(database: Database, settings: Settings) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        rig.submit(agents=AgentKind.LLM, method=SMALL["eoh"])
        rig.run()
        once = {"explore": 2, "recombine": 2, "eoh_mutation": 2, "retune": 2}
        assert kinds(server) == {"rewrite": 4, **once}
        prompts = {kind_of(request): text_of(request) for request in server.requests}
        assert prompts["explore"].count("moves less.") == 2
        assert prompts["retune"].count('<data name="kernel">') == 1


def test_funsearch_shows_code_of_one_island_as_versions(database: Database, settings: Settings) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        rig.submit(agents=AgentKind.LLM, method=SMALL["funsearch"])
        rig.run()
        assert kinds(server) == {"rewrite": 2, "next_version": 4}
        last = text_of(server.requests[-1])
        assert last.index("Version 0") < last.index("Version 1")
        assert not any(word in last for word in ("THOUGHT", "verdict", "speedup over"))


def test_the_ai_cuda_engineer_goes_through_its_four_stages(database: Database, settings: Settings) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        rig.submit(agents=AgentKind.LLM, problem=problem("log_softmax"), method=SMALL["sce"])
        rig.run()
        server.requests.clear()
        job_id = rig.submit(agents=AgentKind.LLM, method=SMALL["ai-cuda"])
        rig.run()
        once = {"translate": 1, "summarise": 1, "fix": 1, "compose": 1}
        assert kinds(server) == {"convert": 2, "optimise": 2, **once}
        texts = {kind_of(request): text_of(request) for request in server.requests}
        assert "# log_softmax" in texts["compose"]
        assert "# log_softmax" not in texts["optimise"]
        assert "module_fn" in texts["translate"]
        assert "The tail of the row is not guarded." in texts["fix"]
        assert "wrong_value" not in texts["fix"]
        assert "wrong_value" in texts["summarise"]
        first = rig.candidates(job_id)[0]
        assert (first.repair_rounds, first.verdict) == (1, Verdict.AUDITED)
        assert first.notes.repairs == ("guarded the tail",)
        keys = [step.key for step in rig.steps(job_id) if step.key.startswith("c0/")]
        assert keys[:5] == ["c0/convert/0", "c0/check/0", "c0/convert/1", "c0/check/1", "c0/write/0"]


def test_the_playbook_refuses_what_it_cannot_play(database: Database) -> None:
    with database.transaction() as session, pytest.raises(MethodNeedsModel) as refusal:
        check_agents(session, SMALL["free"], AgentKind.PLAYBOOK)
    assert (refusal.value.code, refusal.value.status) == ("method_needs_model", 422)


def test_a_revision_is_told_what_was_tried_for_the_ancestors(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("t3", "wrong1"), strategy("t2", "wrong2")])
    rig.submit(method=SceConfig(population=2, generations=2, elites=1, repair_rounds=2))
    rig.run()
    *_, last = rig.players.lineages
    assert [item.insight for item in last].count("tried again") == 3
    assert {item.evaluation.verdict for item in last if item.evaluation} == {Verdict.REJECTED, Verdict.AUDITED}


# --- the switches of sce: what each changes, and that it changes nothing else

BASE = {"population": 3, "generations": 2, "elites": 1, "repair_rounds": 1}


def run_sce(database: Database, settings: Settings, **switches: Any) -> tuple[ModelRig, ScriptedModel, uuid.UUID]:
    """One job with the competent model, after one that has taught the pool something."""
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        team = uuid.uuid4().hex  # whose pool knows nothing of the other runs
        rig.submit(team, agents=AgentKind.LLM, problem=problem("log_softmax"), method=SceConfig(**BASE))
        rig.run()
        server.requests.clear()
        job_id = rig.submit(team, agents=AgentKind.LLM, method=SceConfig(**{**BASE, **switches}))
        rig.run()
        assert rig.job(job_id).state is JobState.SUCCEEDED
        return rig, server, job_id


def prompts(server: ScriptedModel, kind: str) -> list[str]:
    return [text_of(request) for request in server.requests if kind_of(request) == kind]


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """Findings of a test of this module, for those that follow."""
    return {}


@pytest.fixture
def usual(database: Database, settings: Settings, known: dict[str, Any]) -> dict[str, Any]:
    """Run the job with every switch at its default; equal jobs do the same, so it runs once."""
    if not known:
        rig, server, job_id = run_sce(database, settings)
        known |= {"requests": list(server.requests), "keys": {step.key for step in rig.steps(job_id)}}
    return known


def differing(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> set[str]:
    """Kinds of prompts of which some text is in one run only."""
    one, other = ({(kind_of(request), text_of(request)) for request in run} for run in (before, after))
    return {kind for kind, _ in one ^ other}


def test_roofline_guidance_changes_the_prompts_that_tell_of_it_only(
    database: Database, settings: Settings, usual: dict[str, Any]
) -> None:
    rig, server, job_id = run_sce(database, settings, roofline_guidance=False)
    assert {step.key for step in rig.steps(job_id)} == usual["keys"]
    told = {kind_of(request) for request in usual["requests"] if "Roofline:" in text_of(request)}
    assert told == {"initial", "cross", "translate_strategy", "improve", "align"}
    assert differing(usual["requests"], server.requests) == told
    assert all("Roofline:" not in text for text in map(text_of, server.requests))
    assert len(server.requests) == len(usual["requests"])


def test_the_pool_changes_the_initial_prompt_and_what_the_translator_learns_only(
    database: Database, settings: Settings, usual: dict[str, Any]
) -> None:
    rig, server, job_id = run_sce(database, settings, pool=False)
    assert {step.key for step in rig.steps(job_id)} == usual["keys"]
    assert differing(usual["requests"], server.requests) == {"initial", "translate_strategy"}
    assert "Nothing about similar operators" in prompts(server, "initial")[0]
    pinned = [step.payload for step in rig.steps(job_id) if step.key == "initialise/0"]
    assert all("matches" not in payload for payload in pinned)


def test_alignment_changes_one_stage_only(database: Database, settings: Settings, usual: dict[str, Any]) -> None:
    rig, server, job_id = run_sce(database, settings, alignment=False)
    gone = usual["keys"] - {step.key for step in rig.steps(job_id)}
    assert gone
    assert all("/align/" in key for key in gone)
    assert kinds(server).keys() == {kind_of(request) for request in usual["requests"]} - {"align"}


def test_crossover_of_code_changes_what_comes_before_the_evaluation_of_children_only(
    database: Database, settings: Settings, usual: dict[str, Any]
) -> None:
    rig, server, job_id = run_sce(database, settings, crossover="code")
    keys = {step.key for step in rig.steps(job_id)}
    after = {"evaluate", "improve", "align"}  # of rounds that one of the two has and the other has not
    assert {key.split("/")[1] for key in usual["keys"] - keys} - after == {"cross", "translate"}
    assert {key.split("/")[1] for key in keys - usual["keys"]} - after == {"merge"}
    assert differing(usual["requests"], server.requests) - {"align", "improve"} == {
        "cross",
        "translate_strategy",
        "merge",
    }
    merged = prompts(server, "merge")[0]
    assert merged.count('<data name="kernel">') == 2
    assert "Techniques you may use" not in merged
    assert not prompts(server, "cross")


def test_an_epoch_begins_with_fresh_strategies_for_the_best_kernels(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings)
    job_id = rig.submit(method=SceConfig(population=3, generations=1, elites=1, epochs=2))
    rig.run()
    candidates = rig.candidates(job_id)
    assert [candidate.operator.value for candidate in candidates] == ["initial"] * 5
    best = max(candidates[:3], key=lambda one: one.speedup or 0)
    with database.transaction() as session:
        parents = {row.candidate_id: row.parent_id for row in session.scalars(select(CandidateParent))}
    assert parents == {candidate.id: best.id for candidate in candidates[3:]}
    assert [seed.strategy.ids() for seed in rig.players.seeds] == [("t3",)]
    assert sorted(rig.players.outcomes.values()) == sorted(f"{candidate.speedup:.2f}x" for candidate in candidates[:3])
    assert rig.step(job_id, "initialise/1").payload["seeds"] == [str(best.id)] * 2
