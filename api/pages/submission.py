"""The page that starts jobs: a form, what the job would use at most, and the way to send it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from fastapi import APIRouter
from pydantic import ValidationError
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.dependencies import Transaction
from api.foresight import foreseen
from api.pages.visits import HOME, Actor, Fields, Form, PageRoute, Visitor, invalid_form, page, seen
from cupilot.domain import problems as builtin
from cupilot.domain.errors import CupilotError, InvalidInput, Unavailable
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import AgentKind, Budgets, JobSpec, Priority
from cupilot.domain.people import Caller
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.jobs.planning import plan
from cupilot.jobs.submission import submit, suiting_size
from cupilot.schemas import JobRequest, ProblemInput
from cupilot.storage.jobs.jobs import get_job, job_spec
from cupilot.storage.people.people import team_of_job
from cupilot.storage.queue.cluster_views import cluster_view

router = APIRouter(prefix=HOME, route_class=PageRoute, include_in_schema=False)

AS_WRITTEN = "as written"
"""Tensors of the types that the problem's file gives them."""

CHOICES = {
    "target": [target.value for target in Target],
    "tensors": [AS_WRITTEN, *builtin.HALF_TYPES],
    "policy": [policy.value for policy in NumericsPolicy],
    "agents": [agents.value for agents in AgentKind],
    "priority": [priority.value for priority in Priority],
}


@router.get("/submit")
def form(session: Transaction, caller: Visitor, problem: str | None = None, like: UUID | None = None) -> Response:
    """Show the form, empty but for the defaults, or filled in as for a job that is there."""
    if like is not None:
        spec = job_spec(session, get_job(session, team_of_job(session, caller, like), like))
        given = _fields_of(spec)
        return _page(session, caller, given, left_out=_left_out(spec, _request(given)))
    given = Form("")
    given["problem"] = problem if problem in builtin.names() else ""
    return _page(session, caller, given)


def _fields_of(spec: JobSpec) -> Form:
    """Return what to fill in for such a job, as far as the form has fields for it."""
    budgets, method = spec.budgets, spec.method
    fields = Form("")
    fields |= _problem_fields(spec)
    fields |= {
        "policy": spec.problem.policy.value,
        "target": spec.target.value,
        "agents": spec.agents.value,
        "priority": spec.priority.value,
        "seed": str(spec.seed),
        "candidates": str(budgets.candidates),
        "minutes": str(budgets.wall_seconds / 60),
        "cost_usd": str(budgets.cost_usd),
        "gpu_seconds": "" if budgets.gpu_seconds is None else str(budgets.gpu_seconds),
        "labels": ", ".join(f"{name}={value}" for name, value in spec.labels.items() if "," not in name + value),
    }
    if isinstance(method, SceConfig):
        fields |= {"population": str(method.population), "generations": str(method.generations)}
    return fields


def _problem_fields(spec: JobSpec) -> dict[str, str]:
    """Return the name of a built-in problem, with the type at its end apart, or the text of any other."""
    problem = spec.problem
    known = builtin.name_of(problem.content_hash())
    if known is None or builtin.load(known, size=suiting_size(spec.target)).source != problem.source:
        return {"name": problem.name, "source": problem.source}
    name = {} if problem.name == known else {"name": problem.name}
    base, _, tensors = known.rpartition("_")
    if known not in builtin.names():
        return {"problem": base, "tensors": tensors, **name}
    return {"problem": known, **name}


def _left_out(spec: JobSpec, request: JobRequest) -> list[str]:
    """Return the parts of a job that the form cannot ask for."""
    return [
        part for part in ("method", "budgets", "labels", "learning") if getattr(spec, part) != getattr(request, part)
    ]


@router.post("/submit")
def send(session: Transaction, caller: Actor, fields: Fields) -> Response:
    """Start the job and show it; or only plan it and show the form again."""
    try:
        request = _request(fields)
        if fields.text("action") == "plan":
            return _page(session, caller, fields, plan=plan(session, caller.team_id, request, foreseen))
        with session.begin_nested():
            job, _ = submit(session, caller, request, None)
    except ValidationError as error:
        return _page(session, caller, fields, error=invalid_form(error))
    except Unavailable:
        raise
    except CupilotError as error:
        return _page(session, caller, fields, error=error)
    return seen(f"/jobs/{job.id}")


def _request(fields: Form) -> JobRequest:
    """Return the job that the form describes; InvalidInput names the field that cannot be."""
    minutes = fields.given(minutes=float)
    budgets = Budgets(
        **fields.given(candidates=int, cost_usd=float, gpu_seconds=float),
        **({"wall_seconds": 60 * minutes["minutes"]} if minutes else {}),
    )
    return JobRequest(
        problem=_problem(fields),
        target=fields.given(target=Target).get("target", Target.CUDA),
        method=_method(**fields.given(population=int, generations=int)),
        budgets=budgets,
        labels=_labels(fields.text("labels") or ""),
        **fields.given(agents=AgentKind, priority=Priority, seed=int),
    )


def _problem(fields: Form) -> ProblemInput:
    source, known, tensors = fields.text("source"), fields.text("problem"), fields.text("tensors") or AS_WRITTEN
    if (source is None) == (known is None):
        raise InvalidInput("choose a built-in problem, or paste one of your own", where="problem")
    named = {"name": fields.text("name"), **fields.given(policy=NumericsPolicy)}
    if tensors == AS_WRITTEN:
        return ProblemInput(source=source, id=known, **named)
    if source is not None:
        raise InvalidInput("your own file names its tensors' types: leave them as written", where="tensors")
    if not builtin.is_name(typed := f"{known}_{tensors}"):
        raise InvalidInput(f"{known} comes with tensors as written only", where="tensors")
    return ProblemInput(id=typed, **named)


def _method(population: int = SceConfig().population, generations: int = SceConfig().generations) -> SceConfig:
    return SceConfig(population=population, generations=generations)


def _labels(text: str) -> dict[str, str]:
    labels = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not part.strip():
            continue
        if not (name and equals):
            raise InvalidInput("labels look like key=value, with commas between", where="labels")
        labels[name] = value
    return labels


def _page(session: Session, caller: Caller, given: Form, **shown: Any) -> Response:
    cluster = cluster_view(session)
    defaults = {
        "target": next((target.value for target in cluster.targets), Target.CUDA.value),
        "agents": AgentKind.PLAYBOOK.value,
        "tensors": AS_WRITTEN,
        "policy": NumericsPolicy.FP32.value,
        "priority": Priority.NORMAL.value,
        "population": str(SceConfig().population),
        "generations": str(SceConfig().generations),
        "candidates": str(Budgets().candidates),
        "minutes": f"{Budgets().wall_seconds / 60:g}",
        "cost_usd": f"{Budgets().cost_usd:g}",
        "seed": "0",
        **dict.fromkeys(("problem", "name", "source", "labels", "gpu_seconds"), ""),
    }
    return page(
        "submit",
        caller,
        status=shown["error"].status if "error" in shown else 200,
        given={**defaults, **{name: value for name, value in given.items() if value}},
        choices=CHOICES,
        problems=sorted(builtin.names()),
        live=[target.value for target in cluster.targets],
        **{"plan": None, "error": None, "left_out": [], **shown},
    )
