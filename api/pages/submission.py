"""The page that starts jobs: a form, what the job would use at most, and the way to send it."""

from __future__ import annotations

from typing import Any

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
from cupilot.domain.job import AgentKind, Budgets, Priority
from cupilot.domain.people import Caller
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.jobs.planning import plan
from cupilot.jobs.submission import submit
from cupilot.schemas import JobRequest, ProblemInput
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
def form(session: Transaction, caller: Visitor, problem: str | None = None) -> Response:
    """Show the form, empty but for the defaults."""
    given = Form("")
    given["problem"] = problem if problem in builtin.names() else ""
    return _page(session, caller, given)


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
    """Return the method; the default number of elites would not fit into a population of two."""
    elites = min(SceConfig().elites, max(population - 1, 0))
    return SceConfig(population=population, generations=generations, elites=elites)


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
        **dict.fromkeys(("problem", "name", "source", "labels"), ""),
    }
    return page(
        "submit",
        caller,
        status=shown["error"].status if "error" in shown else 200,
        given={**defaults, **{name: value for name, value in given.items() if value}},
        choices=CHOICES,
        problems=sorted(builtin.names()),
        live=[target.value for target in cluster.targets],
        **{"plan": None, "error": None, **shown},
    )
