"""Champions: proven kernels for built-in problems that ship with the release."""

from __future__ import annotations

from datetime import datetime

from cupilot.domain.evaluation import Interval
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.schemas.base import Response


class ChampionSummary(Response):
    """A champion in a list."""

    kernel: str
    """Content hash."""
    problem: str
    """The problem's hash, which covers source and policy."""
    name: str
    """Of the built-in problem."""
    size: str
    """``small`` or ``full``."""
    policy: NumericsPolicy
    target: Target
    arch: str
    """Architecture that it is a champion on; on another it is a seed."""
    device: str
    """Model that it was measured on, e.g. ``NVIDIA H200``."""
    speedup: Interval
    """Over PyTorch eager, reproduced in fresh processes."""
    speedup_over_compile: Interval | None = None
    speedup_over_max_autotune: Interval | None = None
    kernel_us: Interval
    author: str
    """``model`` or ``playbook``."""
    generation: int
    """Counted from 1."""
    techniques: list[str]
    measured_at: datetime


class ChampionList(Response):
    """Every champion of the service's release, by problem, policy, target and architecture."""

    items: list[ChampionSummary]
