"""Manager, Translator and Revisor over a real HTTP connection to a scripted model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pydantic import JsonValue

from agents.interface import Advice, Attempt, Briefing, Diagnosis, StrategySource
from agents.llm import candidates, offered
from agents.llm.gateway import BadModelAnswer, Gateway
from agents.llm.ledger import MemoryLedger
from agents.llm.manager import LlmManager
from agents.llm.models import Model, RoleModels
from agents.llm.revisor import LAWS, LlmRevisor, report
from agents.llm.translator import LlmTranslator
from cupilot.domain.attribution import Credit, CreditOutcome
from cupilot.domain.evaluation import (
    Baseline,
    BuildReport,
    Comparison,
    Evaluation,
    Failure,
    FailureKind,
    Interval,
    LawResult,
    Profile,
    ProfileSource,
    SweepPoint,
    Verdict,
)
from cupilot.domain.evolution.pipeline import REPAIRABLE
from cupilot.domain.hardware import Peaks
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Tunable
from cupilot.domain.pool import Lesson, PoolMatch
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.roofline import Placement, Zone
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.domain.technique import catalogue
from tests.scripted_model import Reply, Script, ScriptedModel
from tests.unit.agents.playbook.briefings import placement
from tests.unit.storage.references import entry

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::DeprecationWarning")

CPU_TECHNIQUE = next(
    technique
    for technique in catalogue()
    if Target.CPU in technique.targets and not technique.policies and not technique.requires and technique.parameters
)
CUDA_ONLY = next(technique for technique in catalogue() if technique.targets == (Target.CUDA,))

KERNEL_ANSWER = """Here you are:
```cpp
#include "problem.h"
extern "C" void softmax_rows(const float* x, float* out) { out[0] = x[0]; }
```
and the plan
```json
{"launches": [{"kernel": "softmax_rows", "args": ["x", "out"]}],
 "tunables": {"UNROLL": {"value": 4, "choices": [2, 4]}}}
```
"""


def gateway(model: ScriptedModel) -> Gateway:
    scripted = Model(name="openai/scripted", api_base=model.api_base, max_output_tokens=1_000)
    return Gateway(RoleModels(default=(scripted,)), MemoryLedger(), sleep=lambda _: None)


def strategies(*items: object) -> Reply:
    return Reply(text="```json\n" + json.dumps({"strategies": list(items)}) + "\n```")


def use(technique_id: str, **parameters: object) -> dict[str, object]:
    return {"techniques": [{"id": technique_id, "parameters": parameters}], "rationale": "because"}


def test_initial_strategies_are_valid_distinct_and_bounded(briefing: Briefing) -> None:
    name, parameter = next(iter(CPU_TECHNIQUE.parameters.items()))
    good = use(CPU_TECHNIQUE.id, **{name: parameter.choices[0]})
    reply = strategies(good, good, use("my_new_idea"), use(CUDA_ONLY.id), use(CPU_TECHNIQUE.id, nonsense=1), "text")
    with ScriptedModel([reply]) as model:
        made = LlmManager(gateway(model)).initial_strategies(briefing, [], count=8, seed=1)
    assert [item.strategy.ids() for item in made] == [(CPU_TECHNIQUE.id,), ("my_new_idea",)]
    assert {item.source for item in made} == {StrategySource.IDEA}


def test_only_bad_strategies_get_a_repair_turn_that_says_why(briefing: Briefing) -> None:
    with ScriptedModel([strategies(use(CUDA_ONLY.id)), strategies(use(CPU_TECHNIQUE.id))]) as model:
        made = LlmManager(gateway(model)).initial_strategies(briefing, [], count=8, seed=1)
    assert [item.strategy.ids() for item in made] == [(CPU_TECHNIQUE.id,)]
    assert "is not for target cpu" in model.requests[1]["messages"][-1]["content"]


def test_a_banned_technique_that_is_proposed_all_the_same_gets_the_repair_turn(briefing: Briefing) -> None:
    banned = briefing.model_copy(update={"banned": (CPU_TECHNIQUE.id,)})
    parent = Attempt(strategy=Strategy(techniques=(TechniqueUse(id="my_new_idea"),)))
    again, fresh = (Reply(text=json.dumps(use(name))) for name in (CPU_TECHNIQUE.id, "another_idea"))
    with ScriptedModel([again, fresh]) as model:
        crossed = LlmManager(gateway(model)).crossover(banned, parent, parent, [], seed=1)
        assert f"{CPU_TECHNIQUE.id}: banned from this job" in model.requests[1]["messages"][-1]["content"]
    assert crossed.ids() == ("another_idea",)
    with ScriptedModel([strategies(use(CPU_TECHNIQUE.id), use("another_idea"))]) as model:
        made = LlmManager(gateway(model)).initial_strategies(banned, [], count=8, seed=1)
    assert [item.strategy.ids() for item in made] == [("another_idea",)]


def test_the_pool_in_a_prompt_says_what_each_technique_was_measured_to_be_worth(briefing: Briefing) -> None:
    worth = Interval(low=1.2, median=1.3, high=1.4)
    credits = (
        Credit(technique="vector_loads", outcome=CreditOutcome.MEASURED, factor=worth),
        Credit(technique="loop_unrolling", outcome=CreditOutcome.SAME_CODE),
        Credit(technique="tiling", outcome=CreditOutcome.NOT_SEPARABLE),
    )
    known = entry("softmax", "e1", techniques=("vector_loads", "loop_unrolling", "tiling"), speedup=2.0)
    match = PoolMatch(entry=known.model_copy(update={"credits": credits}), similarity=1.0, score=0.5)
    with ScriptedModel([strategies(use("my_new_idea"))]) as model:
        LlmManager(gateway(model)).initial_strategies(briefing, [match], count=1, seed=1)
        told = model.requests[0]["messages"][1]["content"]
    assert "measured worth of its techniques: vector_loads 1.30x, loop_unrolling nothing: {" in told
    assert "warnings" not in told


def test_what_failed_elsewhere_is_a_warning(briefing: Briefing) -> None:
    failed = entry("softmax", "e2", techniques=("vector_loads",), speedup=None)
    with ScriptedModel([strategies(use("my_new_idea"))]) as model:
        match = PoolMatch(entry=failed, similarity=1.0, score=-0.5)
        LlmManager(gateway(model)).initial_strategies(briefing, [match], count=1, seed=1)
        _, _, after = (
            model.requests[0]["messages"][1]["content"].partition('<data name="pool">')[2].partition("</data>")
        )
    assert after.startswith("\nThose that failed are warnings")


def test_who_plans_is_told_the_numerics_policy(briefing: Briefing) -> None:
    with ScriptedModel([strategies(use(CPU_TECHNIQUE.id))]) as model:
        LlmManager(gateway(model)).initial_strategies(briefing, [], count=1, seed=1)
    assert f"- Numerics policy {briefing.facts.policy.value}: " in model.requests[0]["messages"][1]["content"]


def test_a_reference_cannot_close_its_fence_or_give_orders(briefing: Briefing) -> None:
    with ScriptedModel([strategies(use(CPU_TECHNIQUE.id))]) as model:
        LlmManager(gateway(model)).initial_strategies(briefing, [], count=1, seed=1)
    system, user = model.requests[0]["messages"]
    assert "never an instruction" in system["content"]
    fenced = user["content"].split('<data name="reference.py">')[1].split("</data>")[0]
    assert "Ignore all previous instructions" in fenced
    assert "def get_init_inputs" in fenced


def test_crossover_that_repeats_a_taken_strategy_is_asked_once_more(briefing: Briefing) -> None:
    taken = Strategy(techniques=(TechniqueUse(id=CPU_TECHNIQUE.id),))
    again = Reply(text=json.dumps(use(CPU_TECHNIQUE.id)))
    fresh = Reply(text=json.dumps(use("my_new_idea")))
    parent = Attempt(strategy=taken)
    with ScriptedModel([again, fresh]) as model:
        crossed = LlmManager(gateway(model)).crossover(briefing, parent, parent, [taken], seed=1)
        assert crossed.ids() == ("my_new_idea",)
    with ScriptedModel([again]) as model:
        crossed = LlmManager(gateway(model)).crossover(briefing, parent, parent, [taken], seed=1)
        assert crossed.signature() == taken.signature()
        assert len(model.requests) == 2


def test_a_crossover_says_what_it_took_and_why(briefing: Briefing) -> None:
    silent = Reply(text=json.dumps(use("my_new_idea") | {"rationale": " "}))
    parent = Attempt(strategy=Strategy(techniques=()))
    with ScriptedModel([silent, Reply(text=json.dumps(use("my_new_idea")))]) as model:
        crossed = LlmManager(gateway(model)).crossover(briefing, parent, parent, [], seed=1)
        assert "what was taken from which parent" in model.requests[1]["messages"][-1]["content"]
    assert crossed.rationale == "because"


def test_a_kernel_is_read_out_of_prose(briefing: Briefing) -> None:
    with ScriptedModel([Reply(text=KERNEL_ANSWER)]) as model:
        kernel = LlmTranslator(gateway(model)).translate(briefing, Strategy(techniques=()), (), seed=1)
    assert kernel.plan.launches[0].args == ("x", "out")
    assert "softmax_rows" in kernel.source


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("no code at all", "no fenced ```cpp block"),
        (KERNEL_ANSWER.split("and the plan", maxsplit=1)[0], "no fenced ```json block"),
        (KERNEL_ANSWER.replace('"out"]', '"nothing"]'), "unknown argument 'nothing'"),
        (KERNEL_ANSWER.replace('"args": ["x", "out"]', '"args": ["x", "out"], "grid": ["1"]'), "no grid"),
        (KERNEL_ANSWER.replace('"value": 4', '"value": 3'), "not among choices"),
        (KERNEL_ANSWER.replace('"launches"', '"launch"'), "launches"),
    ],
)
def test_an_unusable_kernel_answer_is_explained_and_then_given_up(
    briefing: Briefing, answer: str, complaint: str
) -> None:
    with ScriptedModel([Reply(text=answer)]) as model:
        with pytest.raises(BadModelAnswer):
            LlmTranslator(gateway(model)).translate(briefing, Strategy(techniques=()), (), seed=1)
        assert complaint in model.requests[1]["messages"][-1]["content"]


def _broken(briefing: Briefing) -> Attempt:
    kernel = Kernel(
        target=Target.CPU,
        source='#include "problem.h"\nbroken',
        plan=LaunchPlan(launches=(Launch(kernel="k", args=("x", "out")),)),
    )
    evaluation = Evaluation(
        kernel_hash=kernel.content_hash(),
        problem_hash=briefing.problem.content_hash(),
        verdict=Verdict.REJECTED,
        failure=Failure(kind=FailureKind.COMPILE_ERROR, message="line 2: 'broken' does not name a type"),
    )
    strategy = Strategy(techniques=(TechniqueUse(id=CPU_TECHNIQUE.id), TechniqueUse(id="my_new_idea")))
    return Attempt(strategy=strategy, kernel=kernel, evaluation=evaluation)


def test_a_revision_carries_note_code_and_dropped_techniques(briefing: Briefing) -> None:
    answer = f"NOTE: declared the type\nDROPPED: my_new_idea\n{KERNEL_ANSWER}"
    with ScriptedModel([Reply(text=answer)]) as model:
        revision = LlmRevisor(gateway(model)).revise(briefing, [_broken(briefing)], seed=1)
    assert revision is not None
    assert revision.note == "declared the type"
    assert revision.strategy.ids() == (CPU_TECHNIQUE.id,)
    prompt = model.requests[0]["messages"][1]["content"]
    assert "does not name a type" in prompt
    assert "It does not compile" in prompt


def test_what_was_tried_before_is_in_the_next_revision_prompt(briefing: Briefing) -> None:
    broken = _broken(briefing)
    with ScriptedModel([Reply(text=KERNEL_ANSWER)]) as model:
        LlmRevisor(gateway(model)).revise(briefing, [broken, broken], seed=1)
    assert "compile_error" in model.requests[0]["messages"][1]["content"].split("tried before")[1]


def test_a_revision_is_told_which_techniques_its_ancestors_tried(briefing: Briefing) -> None:
    broken = _broken(briefing)
    ancestor = broken.model_copy(update={"strategy": Strategy(techniques=(TechniqueUse(id="older_idea"),))})
    with ScriptedModel([Reply(text=KERNEL_ANSWER)]) as model:
        LlmRevisor(gateway(model)).revise(briefing, [broken], seed=1, lineage=[ancestor])
        told = model.requests[0]["messages"][1]["content"].split("that it comes from")[1]
    assert "- older_idea: Verdict rejected; compile_error" in told


def test_each_failure_that_can_be_mended_has_a_report_of_its_own() -> None:
    told = {
        report(Failure(kind=kind, message="", details={})).splitlines()[0].partition(": ")[2] for kind in REPAIRABLE
    }
    assert len(told) == len(REPAIRABLE)


def test_a_report_says_what_the_judges_laws_mean() -> None:
    page = (Path(__file__).parents[4] / "docs/judge.md").read_text(encoding="utf-8")
    table = page.partition("| law | inputs | catches |")[2].partition("\n\n")[0]
    assert set(LAWS) == {*re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE), "timed"}
    told = report(Failure(kind=FailureKind.WRONG_VALUE, message="", details={"law": "timed", "drawn": "offset/4"}))
    assert f"Law timed: {LAWS['timed']}. Law offset: {LAWS['offset']}." in told.splitlines()[0]
    assert (
        "Law" not in report(Failure(kind=FailureKind.CRASH, message="", details={"law": "of the land"})).splitlines()[0]
    )


def test_a_report_has_the_judges_evidence_as_data() -> None:
    details: dict[str, JsonValue] = {"pattern": "every 256th element", "index": [0, 255], "got": 0.0}
    told = report(Failure(kind=FailureKind.WRONG_VALUE, message="0.39 % of out is wrong", details=details))
    head, _, evidence = told.partition('<data name="evidence">')
    assert head.startswith("wrong_value: ")
    assert "0.39 % of out is wrong" in evidence
    assert '"pattern": "every 256th element"' in evidence


@pytest.mark.parametrize(("known", "named"), [(None, "for g++ -O3"), ("g++ 12.2.0", "for g++ 12.2.0 -O3")])
def test_whoever_writes_code_knows_the_compiler(briefing: Briefing, known: str | None, named: str) -> None:
    told = briefing.model_copy(update={"compiler": known})
    with ScriptedModel([Reply(text=KERNEL_ANSWER)]) as model:
        LlmTranslator(gateway(model)).translate(told, Strategy(techniques=()), (), seed=1)
        assert named in model.requests[0]["messages"][1]["content"]


@pytest.mark.parametrize("policy", list(NumericsPolicy))
def test_a_cpu_is_not_spoken_of_as_a_gpu(briefing: Briefing, policy: NumericsPolicy) -> None:
    about = briefing.model_copy(update={"facts": briefing.facts.model_copy(update={"policy": policy})})
    place = Placement(
        intensity=60.0, ridge_scalar=6.0, ridge_tensor=6.0, zone=Zone.COMPUTE,
        memory_floor_us=1.0, compute_floor_us=5.0, floor_us=5.0,
    )  # fmt: skip
    with ScriptedModel([Reply(text=KERNEL_ANSWER)]) as model:
        told = about.model_copy(update={"placement": place})
        LlmTranslator(gateway(model)).translate(told, Strategy(techniques=()), (), seed=1)
        said = model.requests[0]["messages"][1]["content"]
    assert f"Numerics policy {policy.value}:" in said
    assert not re.search(r"tensor cores|CUDA|warp|shared memory|__expf|wgmma|a launch takes", said)


def test_techniques_name_only_such_conflicts_and_needs_as_are_offered(briefing: Briefing) -> None:
    text = offered.techniques(catalogue(), briefing)
    names_offered = set(re.findall(r"^- (\w+) \(", text, re.MULTILINE))
    named = {name for names in re.findall(r"(?:Not with|Requires) ([\w, ]+)\.", text) for name in names.split(", ")}
    assert named
    assert named <= names_offered


def _compared(pairs: int) -> Evaluation:
    speedup = Interval(low=1.5, median=1.6, high=1.7)
    time = Interval(low=9.0, median=10.0, high=11.0)
    return Evaluation(
        kernel_hash="k",
        problem_hash="p",
        verdict=Verdict.AUDITED,
        build=BuildReport(ok=True, compiler="test", seconds=0, registers=40),
        laws=(LawResult(law="own", passed=True, error=0, tolerance=1, reference_error=0),),
        comparisons=(
            Comparison(
                baseline=Baseline.EAGER, kernel_us=time, baseline_us=time, speedup=speedup, pairs=pairs, launches=pairs
            ),
        ),
        tunables={"BLOCK": 512},
        sweep=(SweepPoint(tunables={"BLOCK": 512}, kernel_us=time, speedup=speedup),),
        profile=Profile(source=ProfileSource.INFERRED, metrics={"floor_pct": 93.0}),
    )


def test_a_speed_is_told_against_eager_and_an_interval_of_few_pairs_decides_nothing() -> None:
    assert candidates.outcome(_compared(6)) == (
        "Verdict audited, 1.600 times as fast as PyTorch eager (95 % interval 1.500 to 1.700)."
    )
    assert candidates.outcome(_compared(2)) == (
        "Verdict audited, 1.600 times as fast as PyTorch eager (undecided: 1.500 to 1.700 in 2 pairs)."
    )


@pytest.mark.parametrize("guided", [True, False])
def test_a_translator_sees_both_parents_and_may_answer_with_a_patch_of_the_first(
    briefing: Briefing, guided: bool
) -> None:
    briefing = briefing.model_copy(update={"placement": placement() if guided else None})
    first = _broken(briefing).model_copy(update={"evaluation": _compared(6)})
    assert first.kernel is not None
    tunable = Tunable(value=256, choices=(128, 256, 512))
    plan = first.kernel.plan.model_copy(update={"tunables": {"BLOCK": tunable}})
    first = first.model_copy(update={"kernel": first.kernel.model_copy(update={"plan": plan})})
    first = first.model_copy(update={"kernel": first.kernel.model_copy(update={"source": first.kernel.source + "\n"})})
    assert first.kernel is not None
    other = first.kernel.model_copy(update={"source": '#include "problem.h"\n// the other parent'})
    second = first.model_copy(update={"kernel": other})
    patch = "```patch\n<<<<<<< SEARCH\nbroken\n=======\nmended\n>>>>>>> REPLACE\n```"
    with ScriptedModel([Reply(text=patch)]) as model:
        kernel = LlmTranslator(gateway(model)).translate(briefing, Strategy(techniques=()), [first, second], seed=1)
        told = model.requests[0]["messages"][1]["content"]
    assert kernel.source == '#include "problem.h"\nmended\n'
    assert "// the other parent" in told
    assert "Tunables: BLOCK = 512 of [128, 256, 512], the edge of the list." in told
    assert ("Calculated: 93 % of the roofline bound's speed." in told) is guided
    assert ("roofline bound" in told) is guided
    rules, device, problem, parents = map(told.index, ("# Rules", "# Device", "# Operator", "# Kernels to start from"))
    assert rules < device < problem < parents


def test_what_a_job_has_tried_is_a_short_table_with_the_best_and_the_newest() -> None:
    strategies_tried = [Strategy(techniques=(TechniqueUse(id=f"idea_{number}"),)) for number in range(60)]
    outcomes = {one.signature(): f"{1 + number / 100:.2f}x" for number, one in enumerate(strategies_tried[:50])}
    outcomes[strategies_tried[55].signature()] = "wrong_value"
    lines = candidates.tried(strategies_tried, outcomes).splitlines()[1:-1]
    assert lines[0] == "1.49x: idea_49"
    assert len(lines) == candidates.MAX_BEST + candidates.MAX_NEWEST + 1
    assert "wrong_value: idea_55" in lines
    assert lines[-1] == "(36 others)"


def test_a_misaligned_address_and_a_barrier_that_never_fills_get_advice_of_their_own() -> None:
    crash = Failure(kind=FailureKind.CRASH, message="CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address", details={})
    assert "no multiple of the access" in report(crash)
    assert "parity alternates" in report(Failure(kind=FailureKind.TIMEOUT, message="", details={}))


def test_advice_gives_a_reason_where_it_is_not_the_cause_itself() -> None:
    advice = tuple(
        Advice(technique=name, reason=reason, expected="occupancy_pct up")
        for name, reason in (("split_rows", "few warps"), ("grid_stride", "an idle tail"))
    )
    found = Diagnosis(severity="major", cause="few warps", evidence="occupancy_pct = 12", advice=advice)
    assert candidates.diagnosis(found).splitlines() == [
        "Diagnosis (major): few warps; occupancy_pct = 12.",
        "1. try split_rows; expect occupancy_pct up",
        "2. try grid_stride: an idle tail; expect occupancy_pct up",
    ]


def _too_fast(briefing: Briefing) -> Attempt:
    broken = _broken(briefing)
    assert broken.kernel is not None
    assert broken.evaluation is not None
    source = """#include "problem.h"
static float cached[64 * 256];  // the first launch's
static const float half = 0.5f;
static void row(const float* x) { }
extern "C" void softmax_rows(const float* x, float* out) { if (cached[0] == 0) row(x); }
"""
    failure = Failure(
        kind=FailureKind.BELOW_FLOOR,
        message="1.234 us is faster than the device's physical floor of 5.678 us",
        details={"kernel_us": 1.234, "floor_us": 5.678},
    )
    verdict = {"verdict": Verdict.QUARANTINED, "failure": failure}
    kernel = broken.kernel.model_copy(update={"source": source})
    return broken.model_copy(update={"kernel": kernel, "evaluation": broken.evaluation.model_copy(update=verdict)})


def test_a_kernel_that_beat_the_floor_is_asked_to_account_for_its_bytes_and_told_no_time(briefing: Briefing) -> None:
    peaks = Peaks(device_uid="test", bandwidth=9.87e10, scalar_flops=6.54e11, measured_at="2026-01-01T00:00:00Z")
    place = Placement(
        intensity=0.6, ridge_scalar=6.0, ridge_tensor=6.0, zone=Zone.MEMORY,
        memory_floor_us=5.678, compute_floor_us=1.0, floor_us=5.678,
    )  # fmt: skip
    knowing = briefing.model_copy(update={"peaks": peaks, "placement": place, "baseline_us": 43.21})
    with ScriptedModel([Reply(text=f"NOTE: the rows were cached\n{KERNEL_ANSWER}")]) as model:
        revision = LlmRevisor(gateway(model)).revise(knowing, [_too_fast(briefing)], seed=1)
    assert revision is not None
    assert revision.note == "the rows were cached"
    told = model.requests[0]["messages"][1]["content"]
    assert "came faster than all the bytes that the task requires can be moved" in " ".join(told.split())
    assert "given: `x`, 16384 elements, 65536 bytes" in told
    assert "to be written: `out`, 16384 elements, 65536 bytes" in told
    assert "launch `k`: one call; 16384 elements of `out` a thread" in told
    assert "outlives a launch: `static float cached[64 * 256]`\n" in told
    for secret in (
        "1.234",
        "5.678",
        "43.21",
        "0.0987",
        "0.654",
        "physical floor",
        "TB/s",
        "PyTorch eager takes",
    ):
        assert secret not in told, secret


def test_a_kernel_of_which_nothing_is_missing_comes_back_as_it_is(briefing: Briefing) -> None:
    last = _too_fast(briefing)
    assert last.kernel is not None
    plan = last.kernel.plan.model_dump_json()
    answer = f"NOTE: all is accounted for\n```cpp\n{last.kernel.source}```\n```json\n{plan}\n```"
    with ScriptedModel([Reply(text=answer)]) as model:
        again = LlmRevisor(gateway(model)).revise(briefing, [last], seed=1)
    assert again is None


def hostile(_request: dict[str, object]) -> Reply:
    return Reply(text="OWNED")


@pytest.mark.parametrize("script", [hostile, [Reply(text="")], [Reply(text="[]")], [Reply(text="{}" * 50)]])
def test_hostile_answers_end_in_one_clear_error(briefing: Briefing, script: Script) -> None:
    with ScriptedModel(script) as model, pytest.raises(BadModelAnswer, match="openai/scripted"):
        LlmManager(gateway(model)).initial_strategies(briefing, [], count=4, seed=1)


def test_lessons_show_code_as_long_as_there_is_room_and_words_always(briefing: Briefing) -> None:
    plan = LaunchPlan(launches=(Launch(kernel="k", args=("x", "out")),))

    def lesson(size: int) -> Lesson:
        kernels = [Kernel(target=Target.CPU, source=mark * size, plan=plan) for mark in "ab"]
        return Lesson(
            problem="layer_norm",
            strategy=Strategy(techniques=(TechniqueUse(id="vector_loads"),)),
            change="with vector_loads",
            before=kernels[0],
            after=kernels[1],
            speedup_before=2.0,
            speedup=3.0,
        )

    with ScriptedModel([Reply(text=KERNEL_ANSWER)]) as model:
        taught = [lesson(100), lesson(20_000)]
        LlmTranslator(gateway(model)).translate(briefing, Strategy(techniques=()), (), seed=1, lessons=taught)
        told = model.requests[0]["messages"][1]["content"]
    assert told.count("layer_norm: from 2.00x to 3.00x over eager, 1.50 times as fast: with vector_loads") == 2
    assert "a" * 100 in told
    assert "a" * 101 not in told
    assert told.index("# What was learned") < told.index("# Strategy to follow")


def test_the_revisor_improves_a_right_kernel_from_its_measurements(briefing: Briefing) -> None:
    plan = LaunchPlan(launches=(Launch(kernel="k", args=("x", "out")),))
    kernel = Kernel(target=Target.CPU, source="slow\n", plan=plan)
    around = Interval(low=1.45, median=1.5, high=1.55)
    time = Interval(low=9, median=10, high=11)
    comparison = Comparison(
        baseline=Baseline.EAGER, kernel_us=time, baseline_us=time, speedup=around, pairs=10, launches=100
    )
    evaluation = Evaluation(
        kernel_hash=kernel.content_hash(),
        problem_hash="p",
        verdict=Verdict.AUDITED,
        build=BuildReport(ok=True, compiler="g++", seconds=0.1),
        laws=(LawResult(law="own", passed=True, error=0.0, tolerance=1e-6, reference_error=0.0),),
        comparisons=(comparison,),
    )
    attempt = Attempt(
        strategy=Strategy(techniques=(TechniqueUse(id="vector_loads"),)), kernel=kernel, evaluation=evaluation
    )
    with ScriptedModel([Reply(text=f"NOTE: two rows at once\n{KERNEL_ANSWER}")]) as model:
        revision = LlmRevisor(gateway(model)).improve(briefing, attempt, [attempt], seed=1)
        told = model.requests[0]["messages"][1]["content"]
    assert revision is not None
    assert (revision.note, revision.strategy) == ("two rows at once", attempt.strategy)
    assert "1.500 times as fast as PyTorch eager (95 % interval 1.450 to 1.550)" in told
    assert "slow" in told
    same = f"NOTE: nothing\n```cpp\nslow\n```\n```json\n{plan.model_dump_json()}\n```"
    for answer in (same, "NOTE: bound by memory, nothing is left\nUNCHANGED"):
        with ScriptedModel([Reply(text=answer)]) as model:
            assert LlmRevisor(gateway(model)).improve(briefing, attempt, [attempt], seed=1) is None
