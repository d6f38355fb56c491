"""Define the options of a submission, which several commands share, and make the request from them."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from pydantic import ValidationError

from cupilot.cli.flags import invalid
from cupilot.cli.labels import parse_labels
from cupilot.cli.problems import resolve
from cupilot.domain.attribution import MAX_EXTRA_EVALUATIONS
from cupilot.domain.errors import InvalidInput
from cupilot.domain.evolution.methods import CONFIGS, DEFAULT
from cupilot.domain.job import MAX_MINUTES, MAX_USD, AgentKind, Learning, Priority
from cupilot.domain.problem import NumericsPolicy, Target, best_target
from cupilot.domain.problems import Size
from cupilot.schemas import ImportRequest, JobRequest, ProblemInput

if TYPE_CHECKING:
    from cupilot.client import Client

Asked = TypeVar("Asked", JobRequest, ImportRequest)

_SWITCHES = {"pool": "pool", "alignment": "alignment", "roofline": "roofline_guidance"}


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Options of a submission, as the user gave them."""

    problem: Annotated[str, typer.Argument(metavar="PROBLEM", help="A file, -, a built-in, or an id of problems.")]
    target: Annotated[
        str, typer.Option(metavar="auto|cuda|cpu", help="What to run on; auto is cuda where the service has it.")
    ] = "auto"
    policy: Annotated[
        NumericsPolicy, typer.Option(help="What arithmetic kernels may use; PyTorch is timed under the same.")
    ] = NumericsPolicy.FP32
    name: Annotated[str | None, typer.Option(help="The problem's name.")] = None
    size: Annotated[
        str | None, typer.Option(metavar="small|full", help="Of a built-in problem; by default what suits the target.")
    ] = None
    method: Annotated[
        str, typer.Option(metavar="|".join(CONFIGS), help="The evolution algorithm; all but sce need a model.")
    ] = DEFAULT
    set: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A parameter of the method, e.g. crossover=code; repeat."),
    ] = None
    population: Annotated[int | None, typer.Option(min=2, max=200, help="Candidates a generation.")] = None
    generations: Annotated[int | None, typer.Option(min=1, max=100, help="Rounds of selection.")] = None
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of all random choices.")] = 0
    candidates: Annotated[int | None, typer.Option(min=1, max=10_000, help="Budget: kernels to evaluate.")] = None
    minutes: Annotated[
        float | None, typer.Option(max=MAX_MINUTES, help="Budget: time from the start of preparation.")
    ] = None
    cost: Annotated[float | None, typer.Option(min=0, max=MAX_USD, help="Budget: US dollars for model calls.")] = None
    priority: Annotated[Priority, typer.Option(help="Order within your team's share.")] = Priority.NORMAL
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="To list jobs by; repeat.")] = None
    attribute: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_EXTRA_EVALUATIONS,
            help="Kernels to measure for each technique's worth; a few by itself where that is cheap, 0 for none.",
        ),
    ] = None
    agents: Annotated[AgentKind, typer.Option(help="Who writes the kernels.")] = AgentKind.PLAYBOOK
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="pool|alignment|roofline", help="Ablation: switch a part off; repeat."),
    ] = None

    def request(self) -> JobRequest:
        """Return the request, checked as far as it can be without a server; InvalidInput otherwise.

        ``auto`` is ``cpu`` here, until :func:`on_chosen_target` has asked the service.
        """
        if self.target not in ("auto", *Target):
            raise InvalidInput(f"{self.target!r} is not a target", hint="auto, cuda or cpu", where="--target")
        seconds = None if self.minutes is None else self.minutes * 60
        fields = {
            "problem": self._problem(),
            "target": Target.CPU if self.target == "auto" else Target(self.target),
            "method": self._method(),
            "agents": self.agents,
            "budgets": _given(candidates=self.candidates, wall_seconds=seconds, cost_usd=self.cost),
            "seed": self.seed,
            "priority": self.priority,
            "labels": parse_labels(self.label),
        }
        try:
            return JobRequest.model_validate(fields | _given(learning=self._learning()))
        except ValidationError as error:
            raise invalid(error) from error

    def _learning(self) -> Learning | None:
        if self.attribute is None:
            return None
        return Learning(attribution=self.attribute, cheap_attribution=self.attribute > 0)

    def _method(self) -> dict[str, Any]:
        if self.method not in CONFIGS:
            raise InvalidInput(f"{self.method!r} is not a method", hint=", ".join(CONFIGS), where="--method")
        parameters = set(CONFIGS[self.method].model_fields)
        chosen = _given(population=self.population, generations=self.generations)
        chosen |= _switched_off(self.without or []) | _settings(self.set or [])
        unknown = sorted(chosen.keys() - parameters)
        if unknown:
            hint = f"it has {', '.join(sorted(parameters - {'name'}))}"
            raise InvalidInput(f"{self.method} has no parameter {unknown[0]!r}", hint=hint, where="--set")
        return {"name": self.method, **chosen}

    def _problem(self) -> ProblemInput:
        if self.size is not None and self.size not in get_args(Size):
            raise InvalidInput(f"{self.size!r} is not a size", hint="small or full", where="--size")
        size: Size | None = self.size  # type: ignore[assignment]
        return resolve(self.problem, name=self.name, policy=self.policy, size=size)


def takes_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of :class:`JobOptions` to a command whose first parameter is ``options``."""
    own = inspect.signature(command, eval_str=True)
    types = get_type_hints(JobOptions, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=types[field.name],
        )
        for field in fields(JobOptions)
    ]
    others = [parameter for name, parameter in own.parameters.items() if name != "options"]

    @functools.wraps(command)
    def with_options(**arguments: Any) -> None:
        options = JobOptions(**{parameter.name: arguments.pop(parameter.name) for parameter in shared})
        command(options, **arguments)

    with_options.__signature__ = inspect.Signature([*shared, *others])  # type: ignore[attr-defined]
    with_options.__annotations__ = {item.name: item.annotation for item in (*shared, *others)}
    return with_options


def on_chosen_target(request: Asked, wanted: str, client: Client) -> Asked:
    """Return the request; for ``auto`` on the best target that the service has a live worker for."""
    if wanted != "auto":
        return request
    return request.model_copy(update={"target": best_target(client.cluster().targets)})


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _settings(texts: list[str]) -> dict[str, Any]:
    """Return ``key=value`` texts as fields; what is JSON is read as such, anything else is a text."""
    settings: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or key == "name":
            raise InvalidInput(f"{text!r} is not an assignment", hint="e.g. --set crossover=code", where="--set")
        try:
            settings[key] = json.loads(value)
        except json.JSONDecodeError:
            settings[key] = value
    return settings


def _switched_off(parts: list[str]) -> dict[str, Any]:
    unknown = [part for part in parts if part not in _SWITCHES]
    if unknown:
        raise InvalidInput(f"{unknown[0]!r} cannot be switched off", hint=", ".join(_SWITCHES), where="--without")
    return {_SWITCHES[part]: False for part in parts}
