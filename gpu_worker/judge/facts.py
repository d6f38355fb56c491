"""The facts of a problem as the judge takes them over from the reference process, where user code has run."""

from __future__ import annotations

import math
import re

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import ProblemFacts, Role
from gpu_worker.judge.exchange import MAX_TENSORS, NotALayout, layouts_from_json
from gpu_worker.judge.refusal import UnusableReference

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
"""Names become C identifiers in ``problem.h``."""

OP_CLASS_CHARACTERS = 100
MAX_SCALARS = 2000


class InvalidFacts(ValueError):
    """No reference has such facts."""


def check_facts(facts: ProblemFacts, most_bytes: int) -> None:
    """Raise :class:`InvalidFacts` where the facts describe no problem, or tensors of more than ``most_bytes``."""
    names = [spec.name for spec in facts.tensors]
    if not names or len(names) > MAX_TENSORS or len(set(names)) < len(names):
        raise InvalidFacts("no tensors, too many, or two of one name")
    if not any(spec.role is Role.OUTPUT for spec in facts.tensors):
        raise InvalidFacts("no outputs")
    for name in (*names, *facts.scalars):
        if _NAME.fullmatch(name) is None:
            raise InvalidFacts(f"the name {name[:100]!r}")
    if len(facts.scalars) > MAX_SCALARS or not all(math.isfinite(value) for value in facts.scalars.values()):
        raise InvalidFacts("its scalars")
    _check_counts(facts)
    if len(facts.op_class) > OP_CLASS_CHARACTERS:
        raise InvalidFacts("the name of its family")
    for node in facts.graph.nodes:
        if not len(node.results) == len(node.shapes) == len(node.dtypes):
            raise InvalidFacts(f"results without shapes ({node.op[:100]})")
        if any(not 0 <= size < 2**48 for shape in node.shapes for size in shape):
            raise InvalidFacts(f"the shapes of {node.op[:100]}")
    layouts = [[spec.dtype.value, list(spec.shape), list(spec.strides)] for spec in facts.tensors]
    try:
        layouts_from_json(layouts, most_bytes)
    except NotALayout as error:
        raise InvalidFacts(str(error)) from error


def _check_counts(facts: ProblemFacts) -> None:
    for count in (facts.flops, facts.matmul_flops, facts.compulsory_bytes):
        if not (math.isfinite(count) and count >= 0):
            raise InvalidFacts("counts that are negative or infinite")
    if facts.least_matmul_flops is None or not 0 <= facts.least_matmul_flops <= facts.matmul_flops:
        raise InvalidFacts("no least count, or one above the direct count")


def check_same(facts: ProblemFacts, prepared: ProblemFacts) -> None:
    """Refuse to judge by a preparation whose tensors are not those that the reference has here."""
    if facts.tensors != prepared.tensors:
        raise UnusableReference(
            "the reference has other tensors here than when it was prepared: give all workers of a class one torch",
            FailureKind.INFRASTRUCTURE,
        )
