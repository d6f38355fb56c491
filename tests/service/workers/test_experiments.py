"""An experiment through the workers: interleaved, reported as it runs, whole after a crash, not taught by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from cupilot.domain.errors import InvalidInput
from cupilot.domain.experiments.matrix import Arm, ExperimentSpec, configuration
from cupilot.domain.job import AgentKind, Budgets
from cupilot.domain.problem import Target
from cupilot.domain.states import JobState, LlmCallState, WorkerKind
from cupilot.jobs.experiments import ClassesDiffer, draft
from cupilot.reports.outcomes import OutcomeState
from cupilot.schemas import ExperimentRequest, ProblemInput
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.experiments import Experiment
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.models import LlmCall
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import lock_job, move_job
from cupilot.storage.experiments.experiments import cancel_experiment, create_experiment
from cupilot.storage.experiments.report import experiment_report
from cupilot.storage.jobs.endings import end_job
from cupilot.storage.jobs.jobs import request_cancels
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.queue.cluster import beat, register_worker
from cupilot.storage.queue.steps import device_queue
from tests.service.doubles import device, problem, strategy
from tests.service.rig import Rig

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[3]
SMALL = {"name": "sce", "population": 2, "generations": 2, "elites": 1, "repair_rounds": 0}
KEY = "the same experiment"


def spec(problems: int = 2, seeds: int = 3, **changes: object) -> ExperimentSpec:
    arms = {"short": {"generations": 1}, "long": {}}
    values = {
        "target": Target.CPU,
        "arms": tuple(
            Arm(name=name, method=configuration({**SMALL, **method}, name), agents=AgentKind.PLAYBOOK)
            for name, method in arms.items()
        ),
        "reference": "short",
        "problems": tuple(f"softmax {number}" for number in range(problems)),
        "seeds": tuple(range(seeds)),
        "budgets": Budgets(candidates=20),
        **changes,
    }
    return ExperimentSpec.model_validate(values)


def create(database: Database, of: ExperimentSpec) -> tuple[uuid.UUID, uuid.UUID]:
    """(team, experiment)."""
    with database.transaction() as session:
        team = ensure_team(session, "blue")
        problems = [problem(name) for name in of.problems]
        made, _ = create_experiment(
            session, team.id, "short or long", of, problems, idempotency_key=KEY, request_hash="0" * 64
        )
        return team.id, made.id


def work(rig: Rig) -> None:
    """Until nothing is dispatched any more; the workers report themselves meanwhile, since it may take a while."""
    while messages := rig.publish():
        for message in messages:
            rig.do(message)
        with rig.database.transaction() as session:
            for name in ("agent-1", "gpu-1"):
                beat(session, name)


def test_an_experiment_runs_block_by_block_and_reports(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("t1"), strategy("t2"), strategy("broken")])
    team, experiment = create(database, spec())
    with database.transaction() as session:
        early = experiment_report(session, team, experiment)
    assert not early.experiment.final
    assert {outcome.standing for outcome in early.outcomes} == {OutcomeState.OPEN}
    assert {item.claim for item in early.comparisons} == {"too few pairs to say"}

    work(rig)
    with database.transaction() as session:
        assert not any(learning.cheap_attribution for learning in session.scalars(select(Job.learning)))
        report = experiment_report(session, team, experiment)
        begun = session.scalars(select(Job.arm).order_by(Job.started_at)).all()
        steps = session.execute(select(func.count()).select_from(Step)).scalar_one()
    assert report.experiment.state == "finished"
    turns = ["short", "long"], ["long", "short"]
    assert begun == [arm for block in (0, 1, 1, 0, 0, 1) for arm in turns[block]]
    assert {outcome.standing for outcome in report.outcomes} == {OutcomeState.SOLVED}
    assert [(item.finished, item.solved, item.lost) for item in report.arms] == [(6, 6, 0), (6, 6, 0)]
    (comparison,) = report.comparisons
    assert (comparison.subject, comparison.reference, comparison.blocks) == ("long", "short", 6)
    assert (comparison.wins, comparison.losses) == (6, 0)  # a crossover of t1 and t2 is faster than either
    assert comparison.interval is not None
    assert comparison.ratio == pytest.approx(1.3 / 1.2)
    assert comparison.claim == "faster"
    points = {(curve.arm, curve.problem, curve.generation): curve.speedup for curve in report.convergence}
    assert points["long", "softmax 0", 1] == pytest.approx(1.2)
    assert points["long", "softmax 0", 2] == pytest.approx(1.3)
    assert ("short", "softmax 0", 2) not in points
    assert steps == sum(len(rig.steps(uuid.UUID(outcome.job))) for outcome in report.outcomes)


@pytest.mark.parametrize(
    ("reason", "standing"),
    [
        ("team_gpu_quota", OutcomeState.LOST),
        ("team_budget", OutcomeState.LOST),
        ("candidates_budget", OutcomeState.UNSOLVED),
    ],
)
def test_what_its_team_had_used_up_is_no_fault_of_an_arm(
    database: Database, reason: str, standing: OutcomeState
) -> None:
    team, experiment = create(database, spec(problems=1, seeds=1))
    with database.transaction() as session:
        for job in session.scalars(select(Job).where(Job.experiment_id == experiment)).all():
            move_job(session, lock_job(session, job.id), JobState.PREPARING)
            end_job(session, job, JobState.BUDGET_EXHAUSTED, reason=reason)
        report = experiment_report(session, team, experiment)
    assert {outcome.standing for outcome in report.outcomes} == {standing}


def test_jobs_of_an_experiment_do_not_teach_each_other(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("t1"), strategy("t2")])
    rig.submit()
    work(rig)
    create(database, spec(problems=1, seeds=1))
    rig.players.initial = [strategy("t3"), strategy("t4")]
    work(rig)
    seen = {name for match in rig.players.shown for name in match.entry.strategy.ids()}
    assert {"t1", "t2"} <= seen, "what was there before is seen, by the second arm too"
    assert not seen & {"t3", "t4"}, "what the first arm learned is not"
    rig.submit()
    work(rig)
    seen = {name for match in rig.players.shown for name in match.entry.strategy.ids()}
    assert seen & {"t3", "t4"}, "a job outside sees it"


def test_money_whose_use_nobody_knows_is_reported_beside_the_cost(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings)
    team, experiment = create(database, spec(problems=1, seeds=2))
    rig.do(rig.publish()[0])
    states = (LlmCallState.LOST, LlmCallState.STARTED, LlmCallState.ANSWERED)
    with database.transaction() as session:
        step = session.scalars(select(Step).limit(1)).one()
        arm = session.get_one(Job, step.job_id).arm
        for number, state in enumerate(states):
            session.add(
                LlmCall(
                    team_id=team,
                    job_id=step.job_id,
                    step_id=step.id,
                    role="manager",
                    purpose="initial",
                    sequence=number,
                    state=state,
                    model="test/model",
                    request=None,
                    request_hash=str(number),
                    cost_usd=0.25 * 2**number,
                )
            )
    with database.transaction() as session:
        report = experiment_report(session, team, experiment)
    assert {item.arm: item.reserved_usd for item in report.arms if item.reserved_usd} == {arm: 0.75}


def test_cancel_while_jobs_run_ends_each_of_them_once(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings)
    team, experiment = create(database, spec(problems=1, seeds=2))
    for message in rig.publish():
        rig.do(message)
    with database.transaction() as session:
        cancel_experiment(session, team, experiment)
        cancel_experiment(session, team, experiment)
    work(rig)
    with database.transaction() as session:
        report = experiment_report(session, team, experiment)
    assert report.experiment.state == "cancelled"
    assert {outcome.standing for outcome in report.outcomes} == {OutcomeState.LOST}
    for outcome in report.outcomes:
        assert rig.events(uuid.UUID(outcome.job)).count("job.cancelled") == 1


@pytest.mark.parametrize("together", [True, False])
def test_cancelling_many_jobs_does_not_deadlock_with_a_bundle_of_theirs(database: Database, together: bool) -> None:
    """A bundle locks its jobs by id; here the first one that was made has the last id."""
    team, experiment = create(database, spec(problems=1, seeds=1))
    with database.transaction() as session:
        low, high = session.scalars(select(Job).order_by(Job.id)).all()
        low.created_at, high.created_at = sorted((low.created_at, high.created_at), reverse=True)

    def cancel() -> None:
        with database.transaction() as session:
            if together:
                cancel_experiment(session, team, experiment)
            else:
                request_cancels(session, team, [high.id, low.id])

    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as session:
            lock_job(session, low.id)
            cancelled = pool.submit(cancel)
            while not (session.execute(waiting).scalar_one() or cancelled.done()):
                time.sleep(0.01)
            lock_job(session, high.id)
        cancelled.result()
    with database.transaction() as session:
        assert set(session.scalars(select(Job.state))) == {JobState.CANCELLED}


def test_an_experiment_stays_on_one_class_of_gpus(database: Database) -> None:
    request = ExperimentRequest(
        name="one class",
        target=Target.CUDA,
        problems=[ProblemInput(id="softmax")],
        seeds=[0],
        switches={"pool": [True, False]},
    )
    with database.transaction() as session:
        team = ensure_team(session, "blue").id
        with pytest.raises(InvalidInput, match="no live worker has a GPU"):
            draft(session, team, request)
        _gpu(session, "h200", "sm_90")
        assert draft(session, team, request).spec.device_class == "sm_90"
        _gpu(session, "a100", "sm_80")
        with pytest.raises(ClassesDiffer, match="sm_80, sm_90"):
            draft(session, team, request)
        chosen = draft(session, team, request.model_copy(update={"device_class": "sm_80"}))
        assert chosen.spec.device_class == "sm_80"


def _gpu(session: Session, name: str, arch: str) -> None:
    found = device(Target.CUDA, arch=arch, uid=name)
    queues = [device_queue(found)]
    register_worker(session, name, WorkerKind.GPU, queues=queues, slots=1, version="test", device=found)


CRASH = """
import os, signal, sys
from cupilot.storage.experiments import experiments
from cupilot.schemas import ExperimentRequest, ProblemInput
from cupilot.storage.queue.cluster import beat, register_worker
from cupilot.storage.db.engine import Database
from tests.service.workers import test_experiments as flow

made, whole = 0, experiments.submit_job
def dies(*args, **options):
    global made
    made += 1
    if made == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(*args, **options)
experiments.submit_job = dies
flow.create(Database(sys.argv[1]), flow.spec())
"""


def test_a_process_that_dies_between_two_jobs_leaves_nothing(database: Database, settings: Settings) -> None:
    url = settings.database_url.get_secret_value()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", CRASH, url], cwd=ROOT, env=environment, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL

    def count() -> tuple[int, int]:
        with database.transaction() as session:
            sizes = [
                session.execute(select(func.count()).select_from(table)).scalar_one() for table in (Experiment, Job)
            ]
            return sizes[0], sizes[1]

    assert count() == (0, 0)
    assert create(database, spec()) == create(database, spec())
    assert count() == (1, 12)
