"""From a request to a job: everything that can be refused without running the user's code is refused here.

What a repeated key has made is looked up before anything is checked: workers may have gone, and kernels been pruned,
since the first request was accepted.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy.orm import Session

from cupilot.domain import problems as builtin
from cupilot.domain.errors import CupilotError, InvalidInput, NotFound
from cupilot.domain.imported import MAX_SOURCE_BYTES as MAX_IMPORT_BYTES
from cupilot.domain.imported import ImportedKernel, check_import, with_function
from cupilot.domain.job import AgentKind, JobSpec, Learning, check_playable
from cupilot.domain.people import Caller
from cupilot.domain.problem import Problem, Target, check_source
from cupilot.domain.problems import Size
from cupilot.domain.value import digest
from cupilot.jobs.continuing import fork_job, retry_job
from cupilot.jobs.importing import submit_import
from cupilot.jobs.remeasuring import request_hash, submit_remeasurement
from cupilot.schemas import ImportRequest, JobRequest, ProblemInput
from cupilot.schemas.steering import ForkRequest, RetryRequest
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.jobs.candidate_views import find_candidate
from cupilot.storage.jobs.jobs import earlier_job, get_job, job_spec, submit_job
from cupilot.storage.jobs.measurements import check_measurable
from cupilot.storage.jobs.problem_views import get_problem
from cupilot.storage.jobs.problems import problem_value
from cupilot.storage.people.people import team_of_job
from cupilot.storage.queue.cluster import anyone_listens
from cupilot.storage.queue.steps import MODELS_QUEUE

DEFAULT_NAME = "unnamed"


class AgentsUnavailable(CupilotError):
    """No live agent worker has a model configured, so only the playbook can work."""

    code = "agents_unavailable"
    status = 422


def submit(session: Session, caller: Caller, request: JobRequest, idempotency_key: str | None) -> tuple[Job, bool]:
    """The job that the request asks for, and whether it is new."""
    asked = digest(request.model_dump(mode="json"))
    earlier = earlier_job(session, caller.team_id, idempotency_key, asked)
    if earlier is not None:
        return earlier, False
    return submit_job(
        session,
        caller.team_id,
        spec_of(session, caller.team_id, request),
        idempotency_key=idempotency_key,
        request_hash=asked,
        author=caller.user,
    )


def spec_of(session: Session, team: UUID, request: JobRequest) -> JobSpec:
    """What a request asks for, checked as far as it can be; InvalidInput and its kin where no job can be made of it."""
    check_playable(request.method, request.agents)
    check_agents(session, request.agents, "body.agents")
    return JobSpec(
        problem=problem_of(session, team, request.problem, request.target),
        **{name: getattr(request, name) for name in JobSpec.model_fields if name != "problem"},
    )


def submit_file(
    session: Session, caller: Caller, request: ImportRequest, idempotency_key: str | None
) -> tuple[Job, bool]:
    """The job that judges a file, and whether it is new; InvalidImport for what is no such file."""
    asked = digest(["import", request.model_dump(mode="json")])
    earlier = earlier_job(session, caller.team_id, idempotency_key, asked)
    if earlier is not None:
        return earlier, False
    check_import(request.source)
    source = with_function(request.source, request.function)
    if len(source.encode()) > MAX_IMPORT_BYTES:
        raise InvalidInput(f"the file is larger than {MAX_IMPORT_BYTES} bytes", where="body.source")
    return submit_import(
        session,
        caller.team_id,
        problem_of(session, caller.team_id, request.problem, request.target),
        ImportedKernel(target=request.target, source=source),
        author=caller.user,
        labels=request.labels,
        priority=request.priority,
        learning=Learning(sharing=request.sharing),
        idempotency_key=idempotency_key,
        request_hash=asked,
    )


def remeasure(
    session: Session, caller: Caller, job: UUID, candidate: str, idempotency_key: str | None
) -> tuple[Job, bool]:
    """The job that measures a candidate's kernel again, in the job's own team, and whether it is new."""
    team = team_of_job(session, caller, job)
    row = find_candidate(session, team, job, candidate)
    earlier = earlier_job(session, team, idempotency_key, request_hash(row.id))
    if earlier is not None:
        return earlier, False
    check_measurable(session, team, job, candidate)
    return submit_remeasurement(session, team, row, author=caller.user, idempotency_key=idempotency_key)


def retry(
    session: Session, caller: Caller, job: UUID, request: RetryRequest, idempotency_key: str | None
) -> tuple[Job, bool]:
    """The job that goes on with an ended one, and whether it is new."""
    asked = digest(["retry", str(job), request.model_dump(mode="json")])
    earlier = earlier_job(session, caller.team_id, idempotency_key, asked)
    if earlier is not None:
        return earlier, False
    spec = _changed(session, caller, job, request)
    return retry_job(
        session,
        caller.team_id,
        job,
        spec,
        author=caller.user,
        idempotency_key=idempotency_key,
        request_hash=asked,
    )


def fork(
    session: Session, caller: Caller, job: UUID, candidate: str, request: ForkRequest, *, idempotency_key: str | None
) -> tuple[Job, bool]:
    """The job that goes on from a candidate, and whether it is new."""
    asked = digest(["fork", str(job), candidate, request.model_dump(mode="json")])
    earlier = earlier_job(session, caller.team_id, idempotency_key, asked)
    if earlier is not None:
        return earlier, False
    spec = _changed(session, caller, job, request)
    return fork_job(
        session,
        caller.team_id,
        job,
        candidate,
        spec,
        author=caller.user,
        idempotency_key=idempotency_key,
        request_hash=asked,
    )


def _changed(session: Session, caller: Caller, job: UUID, request: RetryRequest) -> JobSpec:
    known = job_spec(session, get_job(session, caller.team_id, job))
    changes = {name: getattr(request, name) for name in request.model_fields_set if getattr(request, name) is not None}
    spec = known.model_copy(update=changes)
    check_playable(spec.method, spec.agents)
    check_agents(session, spec.agents, "body.agents")
    return spec


def check_agents(session: Session, agents: AgentKind, where: str) -> None:
    """AgentsUnavailable where the agents need a model and no live worker has one."""
    if agents is not AgentKind.PLAYBOOK and not anyone_listens(session, MODELS_QUEUE):
        raise AgentsUnavailable(
            f"agents of kind {agents.value} are not available here",
            hint='use "agents": "playbook", which needs no model, or start an agent worker with CUPILOT_LLM_MODEL set',
            where=where,
        )


def problem_of(session: Session, team: UUID, given: ProblemInput, target: Target) -> Problem:
    """The problem that a request means: its source, a built-in of the size that suits, or one of the team's."""
    if given.source is not None:
        check_source(given.source)
        return Problem(name=given.name or DEFAULT_NAME, source=given.source, policy=given.policy)
    assert given.id is not None
    if given.id in builtin.names():
        default: Size = "full" if target is Target.CUDA else "small"
        known = builtin.load(given.id, size=given.size or default)
    elif given.size is not None:
        raise InvalidInput("only built-in problems have sizes", where="body.problem.size")
    else:
        known = _own_problem(session, team, given.id)
    return Problem(name=given.name or known.name, source=known.source, policy=given.policy)


def _own_problem(session: Session, team: UUID, reference: str) -> Problem:
    try:
        return problem_value(get_problem(session, team, reference))
    except NotFound as error:
        raise InvalidInput(error.message, hint=error.hint, where="body.problem.id") from error
