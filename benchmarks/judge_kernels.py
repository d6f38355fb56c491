"""Problems and honest kernels that the judge's own numbers are taken with: named, distinct, the same each time.

A problem is a built-in one, a file, or one of a few operators over rows of a chosen size (``gelu:8192x4096``). Kernels
are those of the playbook's templates, from its strategies in the order in which it would try them; where it has none,
those written here, else its compiler's. Measures nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from agents.interface import Briefing, NoTemplate
from agents.playbook.manager import PlaybookManager
from agents.playbook.operators import Launches
from agents.playbook.translator import PlaybookTranslator, operator_of
from benchmarks import row_kernels, window_kernels
from cupilot.domain import problems
from cupilot.domain.evaluation import Preparation
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import NumericsPolicy, Problem, Target, check_source
from cupilot.domain.problems import Size

SEED = 0

_ROWS = re.compile(r"(?P<operator>\w+):(?P<rows>\d+)x(?P<cols>\d+)")

_OPERATORS = {
    "gelu": "F.gelu(x)",
    "layer_norm": "F.layer_norm(x, (COLS,))",
    "log_softmax": "F.log_softmax(x, dim=1)",
    "relu": "F.relu(x)",
    "softmax": "F.softmax(x, dim=1)",
    "square": "torch.mm(x, x)",
    "row_maximum": "torch.amax(x, dim=1)",
    "row_sum": "torch.sum(x, dim=1)",
}

_FILE = """import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = {rows}
COLS = {cols}


class Model(nn.Module):
    def forward(self, x):
        return {result}


def get_inputs():
    return [torch.rand(ROWS, COLS)]


def get_init_inputs():
    return []
"""


@dataclass(frozen=True)
class NamedKernel:
    """A kernel and what it is called in tables: its techniques."""

    name: str
    kernel: Kernel


def problem_of(name: str, size: Size, policy: NumericsPolicy) -> Problem:
    """Return a problem from a file (``*.py``), a small operator over rows (``gelu:8192x4096``), or a name.

    A name is that of a built-in problem.
    """
    path = Path(name)
    if path.suffix == ".py":
        source = path.read_text(encoding="utf-8")
        check_source(source)
        return Problem(name=path.stem, source=source, policy=policy)
    small = _ROWS.fullmatch(name)
    if small is None:
        return problems.load(name, size=size, policy=policy)
    rows, cols = small["rows"], small["cols"]
    source = _FILE.format(rows=rows, cols=cols, result=_OPERATORS[small["operator"]])
    return Problem(name=f"{small['operator']}_{rows}x{cols}", source=source, policy=policy)


def kernels_for(problem: Problem, preparation: Preparation, target: Target, count: int) -> list[NamedKernel]:
    """Return up to ``count`` different kernels; none if nothing is known for the operator."""
    return kernels_of(_briefing(problem, preparation, target), count)


def kernels_of(briefing: Briefing, count: int) -> list[NamedKernel]:
    """Return kernels as :func:`kernels_for` does, from what agents know of a problem."""
    written = [] if _has_template(briefing) else _written(briefing, count)
    return _different(written or _playbook(briefing, count), count)


def playbook_kernels(problem: Problem, preparation: Preparation, target: Target, count: int) -> list[NamedKernel]:
    """Return up to ``count`` different kernels that the playbook tries first; none if it has none."""
    return _different(_playbook(_briefing(problem, preparation, target), count), count)


def _briefing(problem: Problem, preparation: Preparation, target: Target) -> Briefing:
    return Briefing(
        problem=problem,
        facts=preparation.facts,
        target=target,
        device=preparation.environment.device,
        placement=preparation.placement,
    )


def _different(kernels: list[tuple[str, Kernel]], count: int) -> list[NamedKernel]:
    different: dict[str, NamedKernel] = {}
    for name, kernel in kernels:
        different.setdefault(kernel.content_hash(), NamedKernel(name, kernel))
    return list(different.values())[:count]


def _has_template(briefing: Briefing) -> bool:
    try:
        return not isinstance(operator_of(briefing), Launches)
    except NoTemplate:
        return False


def _playbook(briefing: Briefing, count: int) -> list[tuple[str, Kernel]]:
    translator = PlaybookTranslator()
    try:
        ideas = PlaybookManager().initial_strategies(briefing, [], 2 * count, SEED)
    except NoTemplate:
        return []
    return [
        (", ".join(idea.strategy.ids()) or "plain", translator.translate(briefing, idea.strategy, (), SEED))
        for idea in ideas
    ]


def _written(briefing: Briefing, count: int) -> list[tuple[str, Kernel]]:
    if briefing.target is not Target.CUDA:
        return []
    return [
        *row_kernels.kernels(briefing.problem.name, count),
        *window_kernels.kernels(briefing.facts, count),
    ]
