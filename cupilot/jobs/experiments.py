"""Make an experiment from a matrix. Refuses everything that can be refused without running anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.orm import Session

from cupilot.domain.counted import counted, size_words
from cupilot.domain.errors import Conflict, InvalidInput
from cupilot.domain.evolution.methods import read_config
from cupilot.domain.experiments.matrix import (
    MAX_JOBS,
    Arm,
    ExperimentSpec,
    at_most,
    check_arms,
    configuration,
    crossed,
    merged,
    own_answers,
    shared,
)
from cupilot.domain.experiments.statistics import CONFIDENCE, MIN_SAMPLES, sign_test
from cupilot.domain.people import Caller
from cupilot.domain.problem import Problem, Target
from cupilot.domain.states import WorkerKind
from cupilot.domain.value import digest, stated
from cupilot.jobs.submission import check_agents, problem_of
from cupilot.schemas import ExperimentPlan, ExperimentRequest
from cupilot.storage.db.tables.experiments import Experiment
from cupilot.storage.experiments.experiments import create_experiment, earlier_experiment
from cupilot.storage.queue.cluster import live_workers


class ClassesDiffer(Conflict):
    """Live GPUs are of several classes, and an experiment must run on one."""

    code = "device_class_needed"
    status = 422


@dataclass(frozen=True)
class Draft:
    """Checked matrix with its problems and jobs, not stored yet."""

    spec: ExperimentSpec
    problems: Sequence[Problem]
    """In the order of the specification's names."""


def draft(session: Session, team: UUID, request: ExperimentRequest) -> Draft:
    """Return the experiment that a request asks for; InvalidInput and its kin where there cannot be such a one."""
    arms = _arms(request)
    problems = [problem_of(session, team, wanted, request.target) for wanted in request.problems]
    for arm in arms:
        check_agents(session, read_config(arm.method), arm.agents, *problems)
    _check_distinct([problem.content_hash() for problem in problems], "problems")
    _check_distinct(request.seeds, "seeds")
    jobs = len(arms) * len(problems) * len(request.seeds)
    if jobs > MAX_JOBS:
        raise InvalidInput(
            f"{size_words(len(arms), len(problems), len(request.seeds))} are {jobs} jobs; "
            f"an experiment has at most {MAX_JOBS}",
            hint="split it by problems: reports of disjoint problems can be read side by side",
            where="body",
        )
    reference = request.reference or arms[0].name
    if reference not in {arm.name for arm in arms}:
        raise InvalidInput(
            f"no arm is called {reference!r}",
            hint=f"arms: {', '.join(arm.name for arm in arms)}",
            where="body.reference",
        )
    spec = ExperimentSpec(
        target=request.target,
        device_class=_device_class(session, request),
        arms=tuple(arms),
        reference=reference,
        problems=tuple(_names(problems)),
        seeds=tuple(request.seeds),
        budgets=shared(own_answers(request.budgets), request.total, jobs),
        live_pool=request.live_pool,
        priority=request.priority,
        labels=dict(request.labels),
    )
    return Draft(spec, problems)


def submit(session: Session, caller: Caller, request: ExperimentRequest, key: str | None) -> tuple[Experiment, bool]:
    """Return the experiment that the request asks for, and whether it is new.

    A repeated key is answered first: workers may have gone meanwhile.
    """
    team, fingerprint = caller.team_id, digest(stated(request))
    if key is not None:
        earlier = earlier_experiment(session, team, key, fingerprint)
        if earlier is not None:
            return earlier, False
    drafted = draft(session, team, request)
    return create_experiment(
        session,
        team,
        request.name,
        drafted.spec,
        drafted.problems,
        idempotency_key=key,
        request_hash=fingerprint,
        author=caller.user,
    )


def plan(drafted: Draft) -> ExperimentPlan:
    """Return what the experiment would be, without making it."""
    spec = drafted.spec
    blocks = len(spec.problems) * len(spec.seeds)
    return ExperimentPlan(
        jobs=len(spec.arms) * blocks,
        arms=list(spec.arms),
        reference=spec.reference,
        problems=list(spec.problems),
        seeds=list(spec.seeds),
        budgets=spec.budgets,
        at_most=at_most(spec.arms, spec.budgets, blocks),
        device_class=spec.device_class,
        notes=_notes(spec, blocks),
    )


def _arms(request: ExperimentRequest) -> list[Arm]:
    base = request.method
    if request.arms:
        arms = [
            Arm(
                name=arm.name,
                method=configuration(merged(base, arm.method), f"body.arms.{place}.method"),
                agents=arm.agents or request.agents,
            )
            for place, arm in enumerate(request.arms)
        ]
    else:
        method = configuration(base, "body.method")
        arms = [Arm(name=str(method.get("name", "method")), method=method, agents=request.agents)]
    if request.switches:
        arms = crossed(arms, request.switches)
    check_arms(arms)
    return arms


def _device_class(session: Session, request: ExperimentRequest) -> str | None:
    if request.target is not Target.CUDA:
        if request.device_class is not None:
            raise InvalidInput("only the target cuda has classes of devices", where="body.device_class")
        return None
    if request.device_class is not None:
        return request.device_class
    queues = {
        queue
        for worker in live_workers(session)
        if worker.kind is WorkerKind.GPU and worker.device and worker.device.target is Target.CUDA
        for queue in worker.queues
    }
    if len(queues) == 1:
        return queues.pop().removeprefix("gpu.")
    if queues:
        classes = sorted(queue.removeprefix("gpu.") for queue in queues)
        raise ClassesDiffer(
            f"there are GPUs of several classes: {', '.join(classes)}",
            hint="name one as device_class: all arms must run on the same kind",
            where="body.device_class",
        )
    raise InvalidInput(
        "no live worker has a GPU, so no class of devices can be chosen",
        hint='start a worker, or name the device_class to wait for, e.g. "sm_90"',
        where="body.device_class",
    )


def _names(problems: Sequence[Problem]) -> list[str]:
    """Return the problems' names; where several are called alike, numbered."""
    totals, seen = Counter(problem.name for problem in problems), Counter[str]()
    names = []
    for problem in problems:
        seen[problem.name] += 1
        names.append(f"{problem.name} #{seen[problem.name]}" if totals[problem.name] > 1 else problem.name)
    return names


def _check_distinct(values: Sequence[object], what: str) -> None:
    if len(set(values)) != len(values):
        raise InvalidInput(
            f"{what} lists the same value twice",
            hint="two jobs with the same seed are not two samples; add other seeds instead",
            where=f"body.{what}",
        )


def _notes(spec: ExperimentSpec, blocks: int) -> list[str]:
    notes = []
    if len(spec.arms) == 1:
        notes.append("There is one arm, so nothing is compared.")
    if blocks < MIN_SAMPLES:
        notes.append(
            f"{counted(blocks, 'matched job')} a comparison: too few: no 95 % interval exists below {MIN_SAMPLES}"
            " (problems x seeds)."
        )
    clearest = (len(spec.arms) - 1) * sign_test(blocks, 0)
    if blocks >= MIN_SAMPLES and clearest > 1 - CONFIDENCE:
        notes.append(
            f"With {len(spec.arms)} arms, {blocks} matched jobs a comparison cannot support a claim: a clean sweep has"
            f" p = {clearest:.2g} after adjustment for the other arms. Add seeds or problems, or drop arms."
        )
    if len(spec.seeds) < MIN_SAMPLES:
        notes.append(f"With fewer than {MIN_SAMPLES} seeds, medians of single problems have a range, no interval.")
    return notes
