"""Techniques as a team sees them: their standing, and the results of kernels with them."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from cupilot.domain.problem import Target
from cupilot.domain.standing import Standing
from cupilot.schemas.base import Response


class TechniqueEffect(Response):
    """Speed of kernels with a technique, against your team's kernels without it on the same problems."""

    factor: float
    """1.2 means 20 % faster; shrunk towards 1 the more, the less is known."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    places: int
    """Problems, each on one class of device, where both were tried."""


class TechniqueView(Response):
    """A technique on one target."""

    id: str
    target: Target
    kind: Standing
    """``catalogued``; or invented: ``novel``, ``promoted`` by results and offered to agents, or ``demoted`` by them."""
    meaning: str
    """Description. Of an invented one in the words of its inventor, usually a model."""
    tries: int
    """Evaluations of kernels with it, by your team's jobs."""
    wins: int
    """Those of them whose kernel counts: audited or reproduced."""
    problems: int
    """Different problems that it won on."""
    families: list[str]
    """Their operator classes."""
    failures: dict[str, int]
    """The others, by kind."""
    effect: TechniqueEffect | None
    """None where no problem was tried with it and without it."""
    origin: str | None = None
    """Origin of an invented one: ``idea``, ``crossover`` or ``alignment``."""
    job: UUID | None = None
    """The job in which it was first named."""
    since: datetime | None = None
    """Time of that first naming."""


class TechniquePage(Response):
    """Techniques in the order of their ids."""

    items: list[TechniqueView]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""
