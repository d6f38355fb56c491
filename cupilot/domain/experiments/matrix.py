"""Expand a matrix into matched jobs: arms, the order in which they take turns, and what they may cost at most.

Jobs are *matched*: in a block (one problem and one seed) every arm has one job, with the same target, budgets and seed.
Blocks are worked through one after the other, and within a block the arms take turns at being first (a Latin square
over problems and seeds), so that a machine that warms up or gets busy hits all arms alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import floor
from typing import Annotated, Any

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from cupilot.domain.counted import counted
from cupilot.domain.errors import InvalidInput
from cupilot.domain.evolution.methods import MethodConfig
from cupilot.domain.job import AgentKind, Budgets, Priority
from cupilot.domain.problem import Target
from cupilot.domain.value import BUILD_LATER, Value

MAX_ARMS = 24
MAX_JOBS = 500
"""Of one experiment: they are made in one transaction."""

METHODS: TypeAdapter[Any] = TypeAdapter(MethodConfig, config=ConfigDict(defer_build=BUILD_LATER))
"""Whatever configuration a job's method can have."""


class Arm(Value):
    """Arm of a comparison: a method with its switches, and the kind of agents."""

    name: str = Field(min_length=1, max_length=100)
    method: dict[str, JsonValue]
    """The whole configuration, defaults written out."""
    agents: AgentKind

    @property
    def pays(self) -> bool:
        """True if its jobs may call a model."""
        return self.agents is not AgentKind.PLAYBOOK


class Total(Value):
    """Limits of a whole experiment. Each is shared equally by the jobs, so that an early one starves no later one."""

    candidates: Annotated[int, Field(ge=1)] | None = None
    wall_seconds: Annotated[float, Field(gt=0)] | None = None
    """Of all jobs added up."""
    cost_usd: Annotated[float, Field(ge=0)] | None = None


@dataclass(frozen=True)
class Cell:
    """One job of the matrix, by the places of its arm, problem and seed."""

    arm: int
    problem: int
    seed: int


class ExperimentSpec(Value):
    """Definition of an experiment without its problems' sources, which its jobs refer to."""

    target: Target
    device_class: str | None = None
    arms: tuple[Arm, ...]
    reference: str
    problems: tuple[str, ...]
    """Names, different from each other."""
    seeds: tuple[int, ...]
    budgets: Budgets
    """Of each job."""
    live_pool: bool = False
    priority: Priority = Priority.NORMAL
    labels: dict[str, str] = {}

    def cells(self) -> list[Cell]:
        """Return the jobs in the order of work."""
        return cells(len(self.arms), len(self.problems), len(self.seeds))


def configuration(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a method's configuration with its defaults; InvalidInput where it is none."""
    try:
        config = METHODS.validate_python(dict(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        # pydantic also names the member of the union and the validator that it looked into.
        inner = [str(part) for part in first["loc"] if str(part) != data.get("name") and "[" not in str(part)]
        path = ".".join([where, *inner])
        raise InvalidInput(f"{path}: {first['msg']}", where=path) from error
    written: dict[str, Any] = config.model_dump(mode="json")
    return written


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a method's configuration over the experiment's common one, which counts for arms of the same method
    only.
    """
    if changes.get("name", base.get("name")) != base.get("name"):
        return dict(changes)
    return {**base, **changes}


def crossed(arms: Sequence[Arm], switches: Mapping[str, Sequence[JsonValue]]) -> list[Arm]:
    """Cross every arm with the switches, named after both; raise InvalidInput where an arm lacks a switch."""
    crossings = []
    for arm, values in product(arms, product(*switches.values())):
        chosen = dict(zip(switches, values, strict=True))
        words = [f"{name}={_word(value)}" for name, value in chosen.items()]
        name = " ".join([arm.name, *words])
        method = configuration({**arm.method, **chosen}, f"switches for {arm.name}")
        crossings.append(Arm(name=name[:100], method=method, agents=arm.agents))
    return crossings


def check_arms(arms: Sequence[Arm]) -> None:
    """Raise InvalidInput unless there are arms, not too many, of different names and contents."""
    if not 1 <= len(arms) <= MAX_ARMS:
        raise InvalidInput(f"{len(arms)} arms: between 1 and {MAX_ARMS} are possible", where="body.arms")
    names: dict[str, str] = {}
    contents: dict[str, str] = {}
    for arm in arms:
        content = Value.content_hash(arm.model_copy(update={"name": "-"}))
        if arm.name in names:
            raise InvalidInput(f"two arms are called {arm.name!r}", hint="give each a name", where="body.arms")
        if content in contents:
            raise InvalidInput(
                f"the arms {contents[content]!r} and {arm.name!r} are the same", hint="drop one", where="body.arms"
            )
        names[arm.name] = contents[content] = arm.name


def cells(arms: int, problems: int, seeds: int) -> list[Cell]:
    """Return all jobs in the order in which they are to be worked on."""
    return [
        Cell(arm=(place + problem + seed) % arms, problem=problem, seed=seed)
        for seed in range(seeds)
        for problem in range(problems)
        for place in range(arms)
    ]


def own_answers(budgets: Budgets) -> Budgets:
    """Return the budgets with every job paying for its own model answers, unless they say otherwise.

    An answer that another arm's job has paid for would hide what an arm costs, and how long its model takes.
    """
    chosen = "reuse_answers" in budgets.model_fields_set
    return budgets if chosen else budgets.model_copy(update={"reuse_answers": False})


def shared(budgets: Budgets, total: Total | None, jobs: int) -> Budgets:
    """Return each job's budgets: its own, or an equal share of the total where that is less.

    Raises InvalidInput where a share would not do for one kernel.
    """
    if total is None:
        return budgets
    values = budgets.model_dump()
    for name, limit in total.model_dump(exclude_none=True).items():
        share = limit / jobs
        values[name] = min(values[name], floor(share) if isinstance(values[name], int) else share)
    if values["candidates"] < 1:
        raise InvalidInput(
            f"a total of {counted(total.candidates or 0, 'candidate')} is too few for {counted(jobs, 'job')}",
            hint="raise the total, or ask for fewer arms, problems or seeds",
            where="body.total.candidates",
        )
    return Budgets(**values)


def at_most(arms: Sequence[Arm], budgets: Budgets, jobs_per_arm: int) -> Total:
    """Return what all jobs together can use: no sum of their budgets can exceed it."""
    jobs = len(arms) * jobs_per_arm
    paying = sum(arm.pays for arm in arms) * jobs_per_arm
    return Total(
        candidates=jobs * budgets.candidates,
        wall_seconds=jobs * budgets.wall_seconds,
        cost_usd=paying * budgets.cost_usd,
    )


def _word(value: JsonValue) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
