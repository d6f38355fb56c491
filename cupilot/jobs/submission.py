"""Make a job from a request. Refuses everything that can be refused without running the user's code.

What a repeated key has made is looked up before anything is checked: workers may have gone, and kernels been pruned,
since the first request was accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from sqlalchemy.orm import Session

from cupilot.domain import problems as builtin
from cupilot.domain.champions import matching
from cupilot.domain.errors import CupilotError, InvalidInput, NotFound
from cupilot.domain.evolution.methods import MethodConfig
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import AgentKind, JobSpec, check_playable
from cupilot.domain.kernel import Kernel
from cupilot.domain.people import Caller
from cupilot.domain.problem import Problem, Target, check_source
from cupilot.domain.problems import Size
from cupilot.domain.strategy import Strategy
from cupilot.domain.value import digest, stated
from cupilot.schemas import JobRequest, ProblemInput
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.jobs.jobs import earlier_job, submit_job
from cupilot.storage.jobs.problems import get_problem, problem_value
from cupilot.storage.jobs.steering import add_injection
from cupilot.storage.pool.solved import fastest_proven
from cupilot.storage.queue.cluster import anyone_listens, live_workers
from cupilot.storage.queue.steps import MODELS_QUEUE

DEFAULT_NAME = "unnamed"
RELEASE = "release"
"""Author of injected champions in a job's directives."""
POOL = "pool"
"""Author of injected kernels of the team's earlier jobs."""


class AgentsUnavailable(CupilotError):
    """No live agent worker has a model configured, so only the playbook can work."""

    code = "agents_unavailable"
    status = 422


def submit(session: Session, caller: Caller, request: JobRequest, idempotency_key: str | None) -> tuple[Job, bool]:
    """Return the job that the request asks for, and whether it is new."""
    request_hash = digest(stated(request))

    def make() -> tuple[Job, bool]:
        spec = spec_of(session, caller.team_id, request)
        job, is_new = submit_job(
            session,
            caller.team_id,
            spec,
            idempotency_key=idempotency_key,
            request_hash=request_hash,
            author=caller.user,
        )
        if is_new:
            inject_known_kernels(session, job, spec)
        return job, is_new

    return once(session, caller.team_id, idempotency_key, request_hash, make)


def inject_known_kernels(session: Session, job: Job, spec: JobSpec) -> None:
    """Let a new job begin from the best kernels that are known for its problem, policy and target.

    Those are the fastest that the team's earlier jobs reproduced, one for each class of devices that live workers have
    (all, where none lives), and the champion that ships, of each architecture. Only of ``sce``, and not where it learns
    from no pool. The kernels are measured like any other; agents write one more at least.
    """
    if not isinstance(spec.method, SceConfig) or not spec.method.pool:
        return
    problem = spec.problem.content_hash()
    devices = (worker.device for worker in live_workers(session))
    classes = {device.device_class for device in devices if device is not None and device.target is spec.target}
    own = fastest_proven(session, job.team_id, problem, spec.target, classes or None)
    shipped = matching(problem, spec.target, policy=spec.problem.policy)
    known: dict[str, tuple[str, Strategy, Kernel]] = {}
    for author, kernels in ((POOL, own), (RELEASE, shipped)):
        for item in kernels:
            known.setdefault(item.kernel.content_hash(), (author, item.strategy, item.kernel))
    for author, strategy, kernel in list(known.values())[: spec.budgets.candidates - 1]:
        add_injection(session, job, author, strategy=strategy, kernel=kernel)


def once(
    session: Session,
    team: UUID,
    idempotency_key: str | None,
    request_hash: str,
    make: Callable[[], tuple[Job, bool]],
) -> tuple[Job, bool]:
    """Return the job that this key has made before, else what ``make`` makes; and whether it is new.

    Every way to start a job goes through here, before anything else is checked.
    """
    earlier = earlier_job(session, team, idempotency_key, request_hash)
    return make() if earlier is None else (earlier, False)


def spec_of(session: Session, team: UUID, request: JobRequest) -> JobSpec:
    """Return what a request asks for, checked as far as it can be.

    Raises :class:`InvalidInput` and its kin where no job can be made of it.
    """
    problem = problem_of(session, team, request.problem, request.target)
    check_agents(session, request.method, request.agents, problem)
    return JobSpec(
        problem=problem,
        **{name: getattr(request, name) for name in JobSpec.model_fields if name != "problem"},
    )


def check_agents(session: Session, method: MethodConfig, agents: AgentKind, *problems: Problem) -> None:
    """Raise where the agents cannot play the method or one of the problems, or no live worker has the model they need.

    Every way to start a search goes through here.
    """
    check_playable(method, agents)
    if agents is AgentKind.PLAYBOOK and any(problem.workloads() for problem in problems):
        raise InvalidInput(
            "the playbook writes kernels for one shape, and this problem has several workloads",
            hint="let agents of kind llm write it, or judge a kernel of your own (cupilot judge, POST /v1/imports)",
            where="body.agents",
        )
    if agents is not AgentKind.PLAYBOOK and not anyone_listens(session, MODELS_QUEUE):
        raise AgentsUnavailable(
            f"agents of kind {agents.value} are not available here",
            hint="take the playbook, which needs no model, or start an agent worker with CUPILOT_LLM_MODEL set",
            where="body.agents",
        )


def suiting_size(target: Target) -> Size:
    """Return the size that a built-in problem has on a target, where a request names none."""
    return "full" if target is Target.CUDA else "small"


def problem_of(session: Session, team: UUID, request: ProblemInput, target: Target) -> Problem:
    """Return the problem that a request means: its source, a built-in of the size that suits, or one of the team's."""
    if request.source is not None:
        check_source(request.source)
        return Problem(name=request.name or DEFAULT_NAME, source=request.source, policy=request.policy)
    assert request.id is not None
    if builtin.is_name(request.id):
        problem = builtin.load(request.id, size=request.size or suiting_size(target))
    elif request.size is not None:
        raise InvalidInput("only built-in problems have sizes", where="body.problem.size")
    else:
        problem = _own_problem(session, team, request.id)
    return Problem(name=request.name or problem.name, source=problem.source, policy=request.policy)


def _own_problem(session: Session, team: UUID, reference: str) -> Problem:
    try:
        return problem_value(get_problem(session, team, reference))
    except NotFound as error:
        raise InvalidInput(error.message, hint=error.hint, where="body.problem.id") from error
