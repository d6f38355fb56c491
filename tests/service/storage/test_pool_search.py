"""Searches of the strategy pool, on real Postgres and Chroma: who sees what, in which order, and why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime

import pytest
from sqlalchemy import event, func, select, text, update

from cupilot.domain.champions import champions
from cupilot.domain.evaluation import FailureKind, Verdict
from cupilot.domain.pool import PoolEntry, Provenance, Sharing, entry_of, question_of, related_classes
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.roofline import Zone
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.embedded.servers import Running, start_chroma
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.pool import PoolReference, PoolRow, PoolTerm
from cupilot.storage.pool.index import StrategyPool
from cupilot.storage.pool.references import SHARED
from cupilot.storage.pool.rows import share
from cupilot.storage.pool.search import search
from cupilot.storage.pool.solved import nearest_solved
from tests.service.storage.pool_world import PoolWorld, key_of
from tests.unit.storage.references import entry, facts, on_builtin
from workers.indexing import index_references

pytestmark = pytest.mark.service


@pytest.fixture(scope="module", name="chroma")
def _chroma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start_chroma(tmp_path_factory.mktemp("chroma"))
    yield running
    running.stop()


@pytest.fixture(name="world")
def _world(database: Database, chroma: Running) -> Iterator[PoolWorld]:
    with closing(StrategyPool(chroma.url)) as pool:
        pool.clear()
        yield PoolWorld(database, pool)


def different(reference: str, count: int, **fields: object) -> list[PoolEntry]:
    return [
        entry(reference, f"{reference}-{place}", techniques=(f"technique_{place}",), **fields)  # type: ignore[arg-type]
        for place in range(count)
    ]


def test_an_entry_comes_back_whole_with_the_reason(world: PoolWorld) -> None:
    world.add(entry("softmax", "e1", techniques=("tiling", "vector_loads"), speedup=3.0))
    (match,) = world.find()
    assert match.entry.strategy.ids() == ("tiling", "vector_loads")
    assert match.entry.speedup == 3.0
    assert match.similarity == pytest.approx(1.0, abs=1e-3)
    assert match.why.embedding == pytest.approx(1.0, abs=1e-3)
    assert match.why.lexical == pytest.approx(1.0)
    assert (match.why.tries, match.why.wins, match.why.failures) == (1, 1, {})
    assert 0 < match.score < match.why.shrunk_gain < match.why.mean_gain
    assert "1 of 1 evaluations count" in match.why.words()


def test_a_corrected_entry_replaces_the_former_one(world: PoolWorld) -> None:
    world.add(entry("softmax", "e1", speedup=2.0))
    world.add(entry("softmax", "e1", speedup=3.0))
    assert [match.entry.speedup for match in world.find()] == [3.0]


def test_what_was_not_the_kernels_fault_teaches_nothing(world: PoolWorld) -> None:
    world.add(entry("softmax", "e1", failure=FailureKind.INFRASTRUCTURE))
    assert world.find() == []


def test_targets_and_policies_are_hard_filters(world: PoolWorld) -> None:
    world.add(entry("softmax", "cpu", target=Target.CPU, device_class="cpu"))
    world.add(*(entry("matmul", each.value, policy=each, techniques=(f"t_{each.value}",)) for each in NumericsPolicy))
    assert world.find(zone=Zone.COMPUTE) == []
    assert world.ids(world.find(target=Target.CPU)) == ["cpu"]
    for policy, expected in (("fp32", 1), ("tf32", 2), ("half", 3)):
        assert len(world.find("matmul", policy=NumericsPolicy(policy))) == expected


def test_techniques_that_cannot_be_applied_leave_their_entry_out(world: PoolWorld) -> None:
    world.add(
        entry("softmax", "rows", techniques=("online_softmax",), speedup=2.0),
        entry("softmax", "coarse", techniques=("thread_coarsening",), speedup=9.0),
        entry("softmax", "odd", techniques=("vector_loads",), speedup=8.0),
    )

    def applicable(strategy: Strategy) -> str | None:
        return "rows are odd" if "vector_loads" in strategy.ids() else None

    answer = world.ask(applicable=applicable)
    assert world.ids(list(answer.matches)) == ["rows"]
    reasons = {world.names[key]: reason for key, reason in answer.left_out.items()}
    assert reasons["odd"] == "rows are odd"
    assert reasons["coarse"] == "thread_coarsening is not for operators of class softmax"


def test_similar_problems_come_before_dissimilar_ones(world: PoolWorld) -> None:
    names = ["relu", "leaky_relu", "gelu", "new_gelu", "swish"]
    world.add(*(entry(name, name, techniques=(f"technique_of_{name}",)) for name in names))
    matches = world.find("gelu")
    assert world.ids(matches)[0] == "gelu"
    similarities = [match.similarity for match in matches]
    assert similarities == sorted(similarities, reverse=True)


def test_the_fastest_kernel_of_each_similar_problem_is_found_by_similarity_alone(world: PoolWorld) -> None:
    world.add(
        entry("gelu", "slow", techniques=("idea_a",), speedup=1.1),
        entry("gelu", "fast", techniques=("idea_b",), speedup=1.2),
        entry("gelu", "failed", techniques=("idea_c",), failure=FailureKind.COMPILE_ERROR),
        entry("gelu", "theirs", techniques=("idea_d",), speedup=50.0, team="red"),
        entry("softmax", "far", techniques=("idea_e",), speedup=9.0),
        entry("new_gelu", "own", techniques=("idea_f",), speedup=9.0),
    )
    asked = question_of(
        facts("new_gelu"), "new_gelu", target=Target.CUDA, zone=Zone.MEMORY, device_class="sm_90"
    ).model_copy(update={"without_problem": "hash of new_gelu"})
    blue = world.team("blue")
    with world.database.transaction() as session:
        found = nearest_solved(session, world.pool, blue, asked, 5)
        nearest = nearest_solved(session, world.pool, blue, asked, 1)
        early = asked.model_copy(update={"before": datetime(2000, 1, 1, tzinfo=UTC)})
        assert nearest_solved(session, world.pool, blue, early, 5) == []
    assert [world.names[item] for item in found] == ["fast", "far"]
    assert nearest == found[:1]


def test_other_families_are_asked_only_when_the_own_one_is_empty(world: PoolWorld) -> None:
    world.add(
        entry("layer_norm", "norm", techniques=("a_norm",)),
        entry("matmul", "matmul", techniques=("a_matmul",), zone=Zone.COMPUTE),
    )
    assert world.ids(world.find(zone=Zone.MEMORY)) == ["norm"]
    world.add(entry("softmax", "softmax", techniques=("a_softmax",), speedup=1.1))
    assert world.ids(world.find(zone=Zone.MEMORY)) == ["softmax"]


def test_failures_come_back_as_warnings(world: PoolWorld) -> None:
    failed = [
        entry("softmax", f"bad-{place}", techniques=("bad",), failure=FailureKind.COMPILE_ERROR) for place in range(3)
    ]
    world.add(
        *different("softmax", 6, speedup=2.0),
        *failed,
        entry("softmax", "once", techniques=("bad",), speedup=1.01),
        entry("softmax", "magic", techniques=("trick",), failure=FailureKind.BELOW_FLOOR, verdict=Verdict.QUARANTINED),
    )
    matches = world.find(limit=8)
    warnings = {world.names[match.entry.id]: match.why.warning for match in matches}
    assert warnings["once"] == "failed 3 of 4 times here: compile_error"
    assert warnings["magic"] == "failed 1 of 1 times here: below_floor"
    assert world.ids(matches)[-2:] == ["once", "magic"]
    assert matches[-1].score < 0 < matches[0].score


def test_one_place_for_one_strategy_and_more_evidence_counts_for_more(world: PoolWorld) -> None:
    world.add(*(entry("softmax", f"often-{place}", techniques=("often",), speedup=2.0) for place in range(6)))
    world.add(entry("softmax", "lucky", techniques=("lucky",), speedup=2.1))
    matches = world.find()
    assert world.ids(matches) == ["often-" + world.ids(matches)[0][-1], "lucky"]
    assert [match.why.tries for match in matches] == [6, 1]


def test_evidence_fades_with_age(world: PoolWorld) -> None:
    world.add(*different("softmax", 2, speedup=2.0))
    with world.database.transaction() as session:
        old = update(PoolRow).where(PoolRow.id == key_of("softmax-0"))
        session.execute(update(PoolRow).values(measured_at=func.now()))
        session.execute(old.values(measured_at=func.now() - func.make_interval(0, 0, 0, 30)))
    new, old_one = world.find(half_life_days=30)
    assert world.ids([new, old_one]) == ["softmax-1", "softmax-0"]
    assert old_one.why.weight == pytest.approx(new.why.weight / 2, rel=0.01)
    assert old_one.score < new.score


def test_imported_gains_are_claims(world: PoolWorld) -> None:
    claim = entry("softmax", "claim", techniques=("claimed",), speedup=50.0)
    world.add(claim.model_copy(update={"provenance": Provenance(imported_from="elsewhere")}))
    (match,) = world.find()
    assert (match.why.tries, match.why.wins, match.why.imported) == (0, 0, 1)
    assert not match.entry.measured_here
    assert match.why.weight == pytest.approx(0.25, rel=0.01)
    assert "imported, which proves little" in match.why.words()


def test_teams_see_others_entries_only_while_these_are_shared(world: PoolWorld) -> None:
    secret = on_builtin(entry("softmax", "secret", team="red", techniques=("online_softmax",))).model_copy(
        update={
            "problem_name": "project_zeus_attention_mask",
            "strategy": Strategy(techniques=(TechniqueUse(id="online_softmax"),), rationale="for zeus"),
            "provenance": Provenance(job="job-of-red", candidate="candidate-of-red"),
        }
    )
    world.add(secret)
    assert world.find(team="blue") == []
    for sharing, shown in ((Sharing.ANONYMOUS, False), (Sharing.OPEN, True)):
        world.add(secret, sharing=sharing)
        (match,) = world.find(team="blue")
        text = match.model_dump_json()
        assert match.why.shared == 1
        assert ("for zeus" in text) is shown
        assert "project_zeus" not in text
        assert (match.entry.problem_name == "softmax") is shown
        assert "job-of-red" not in text
        assert str(world.team("red")) not in text
        assert "red" not in match.entry.team
    (own,) = world.find(team="red")
    assert own.entry.problem_name == "project_zeus_attention_mask"
    with world.database.transaction() as session:
        share(session, session.scalars(select(PoolRow)).all(), Sharing.PRIVATE)
    assert world.find(team="blue") == []
    with world.database.transaction() as session:
        left = session.scalars(select(PoolReference.scope)).all()
        terms = session.scalars(select(PoolTerm.reference_id).where(PoolTerm.term == "zeus")).all()
    assert left == [str(world.team("red"))]
    assert len(terms) == 1


@pytest.mark.parametrize("sharing", [Sharing.ANONYMOUS, Sharing.OPEN])
def test_techniques_that_another_team_invented_are_nobodys_advice(world: PoolWorld, sharing: Sharing) -> None:
    idea = TechniqueUse(id="zeus_trick", meaning="as zeus does", parameters={"how": "zeus"})
    invented = Strategy(techniques=(TechniqueUse(id="online_softmax"), idea))
    theirs = on_builtin(entry("softmax", "theirs", team="red", speedup=9.0)).model_copy(update={"strategy": invented})
    world.add(theirs, sharing=sharing)
    world.add(entry("softmax", "own", techniques=("online_softmax",), speedup=1.5))
    answer = world.ask()
    assert "zeus" not in answer.model_dump_json()
    assert world.ids(answer.matches) == ["own"]
    assert [match.entry.strategy for match in world.find(team="red")] == [invented]


@pytest.mark.parametrize("sharing", Sharing)
def test_others_words_move_no_weight(world: PoolWorld, sharing: Sharing) -> None:
    """Also of entries that their team would share, where they are not on a built-in problem."""
    world.add(*(entry(name, name) for name in ("softmax", "row_softmax")))
    before = [match.why.lexical for match in world.find()]
    others = [entry("log_softmax", f"theirs-{place}", team=f"team-{place}") for place in range(20)]
    world.add(*others, sharing=sharing)
    assert [match.why.lexical for match in world.find()] == before
    with world.database.transaction() as session:
        assert SHARED not in session.scalars(select(PoolReference.scope)).all()


def test_entries_on_own_references_are_found_by_no_other_team_whatever_is_wanted(world: PoolWorld) -> None:
    claim = on_builtin(entry("softmax", "claim", team="red", techniques=("claimed",), speedup=90.0))
    world.add(
        entry("softmax", "lie", team="red", techniques=("lie",), speedup=60.0),
        claim.model_copy(update={"provenance": Provenance(imported_from="elsewhere")}),
        on_builtin(entry("softmax", "honest", team="red", techniques=("vector_loads",), speedup=2.0)),
        sharing=Sharing.OPEN,
    )
    world.add(entry("row_softmax", "own", techniques=("own",), speedup=1.5))
    answer = world.ask()
    assert set(world.ids(answer.matches)) == {"honest", "own"}
    assert {advice.technique for advice in answer.techniques} == {"vector_loads", "own"}
    assert answer.left_out == {}
    assert set(world.ids(world.find(team="red"))) == {"lie", "claim", "honest"}


def test_without_the_index_words_still_find(world: PoolWorld) -> None:
    world.add(entry("softmax", "e1"))
    away = PoolWorld(world.database, StrategyPool("http://127.0.0.1:9"), world.names)
    answer = away.ask()
    assert away.ids(list(answer.matches)) == ["e1"]
    assert answer.matches[0].why.embedding is None
    assert answer.notes[0].startswith("by words only")


def test_techniques_are_advised_from_all_strategies_that_use_them(world: PoolWorld) -> None:
    world.add(
        entry("softmax", "both", techniques=("good", "neutral"), speedup=3.0),
        entry("softmax", "good", techniques=("good",), speedup=2.8),
        entry("softmax", "plain", techniques=("neutral",), speedup=1.0),
        entry("softmax", "bad", techniques=("bad",), failure=FailureKind.TIMEOUT),
    )
    advice = world.ask().techniques
    assert [hint.technique for hint in advice] == ["good", "neutral"]
    assert (advice[0].why.tries, advice[0].why.wins) == (2, 2)


def test_a_problem_can_be_left_out(world: PoolWorld) -> None:
    world.add(entry("softmax", "own"), entry("row_softmax", "other", techniques=("another",)))
    assert world.ids(world.find(without_problem="hash of softmax")) == ["other"]


def test_entries_from_before_the_columns_are_read_again(world: PoolWorld) -> None:
    world.add(entry("softmax", "old"))
    with world.database.transaction() as session:
        session.execute(update(PoolRow).values(reference_id=None, signature="", gain=None))
    assert world.find() == []
    index_references(world.database, world.pool)
    assert world.ids(world.find()) == ["old"]


def test_a_lost_index_is_made_anew_from_rows(world: PoolWorld) -> None:
    world.add(*different("softmax", 5), *different("gelu", 5))
    before = [(match.entry.id, match.similarity) for match in world.find()]
    world.pool.clear()
    assert world.find()[0].why.embedding is None
    assert index_references(world.database, world.pool) == 2
    assert [(match.entry.id, match.similarity) for match in world.find()] == before


def test_ten_thousand_entries_are_weighed_in_the_database(world: PoolWorld) -> None:
    """Rows that come to Python grow with strategies near the question, not with entries."""
    world.add(*different("softmax", 40, speedup=1.5), entry("softmax", "best", techniques=("the_best",), speedup=9.0))
    with world.database.transaction() as session:
        columns = ", ".join(column.name for column in PoolRow.__table__.columns if column.name != "id")
        session.execute(
            text(
                f"INSERT INTO pool_entries (id, {columns}) SELECT gen_random_uuid(), {columns}"
                " FROM pool_entries CROSS JOIN generate_series(1, 250) WHERE gain < 1"
            )
        )
        count = session.execute(select(func.count()).select_from(PoolRow)).scalar_one()
    assert count > 10_000
    rows: list[int] = []
    engine = world.database.engine
    event.listen(engine, "after_cursor_execute", lambda *given: rows.append(max(given[1].rowcount, 0)))
    matches = world.find()
    assert world.ids(matches[:1]) == ["best"]
    assert sum(match.why.tries for match in matches) > 1_500
    assert sum(rows) < 500, "rows that came to Python"


def test_the_pool_can_be_asked_as_it_was(world: PoolWorld) -> None:
    world.add(entry("softmax", "old", techniques=("old",)))
    with world.database.transaction() as session:
        session.execute(update(PoolRow).values(created_at=func.now() - func.make_interval(0, 0, 0, 2)))
        cutoff = session.execute(select(func.now() - func.make_interval(0, 0, 0, 1))).scalar_one()
    world.add(entry("softmax", "new", techniques=("new",)))
    question = question_of(
        facts("softmax"), "softmax", target=Target.CUDA, zone=Zone.MEMORY, device_class="sm_90"
    ).model_copy(update={"before": cutoff})
    with world.database.transaction() as session:
        answer = search(session, world.pool, world.team("blue"), question, half_life_days=1)
    assert world.ids(answer.matches) == ["old"]


def test_a_family_without_proof_is_told_of_those_with_the_same_shape_of_computation(world: PoolWorld) -> None:
    world.add(
        entry("batch_norm", "norm", techniques=("a_norm",), zone=Zone.COMPUTE),
        entry("softmax", "failed", techniques=("a_failure",), failure=FailureKind.COMPILE_ERROR),
        entry("max_pool2d", "pool", techniques=("a_window",), zone=Zone.COMPUTE),
    )
    assert world.ids(world.find("softmax")) == ["norm", "failed"]
    assert world.ids(world.find("conv2d")) == ["pool"]
    assert world.ids(world.find("gelu", zone=Zone.COMPUTE)) != []  # by the zone: nothing has its shape


def test_the_shipped_champions_teach_a_softmax_of_norms(world: PoolWorld) -> None:
    for champion in champions():
        if champion.preparation.facts.op_class == "softmax":
            continue
        made = entry_of(
            champion.evaluation,
            id=champion.problem,
            team="blue",
            problem_name=champion.problem,
            facts=champion.preparation.facts,
            target=champion.target,
            device_class=champion.arch,
            zone=champion.preparation.placement.zone,
            strategy=champion.strategy,
            created_at=champion.measured_at,
        )
        world.add(made)
    found = world.find("softmax", zone=Zone.COMPUTE)
    classes = {match.entry.op_class for match in found}
    assert "norm" in classes
    assert classes <= set(related_classes("softmax"))
