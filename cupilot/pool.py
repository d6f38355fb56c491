"""What the strategy pool remembers and returns. Storing and finding is :mod:`cupilot.storage.pool`'s business."""

from __future__ import annotations

from cupilot.attribution import Credit
from cupilot.evaluation import Evaluation, FailureKind, Verdict
from cupilot.problem import NumericsPolicy, ProblemFacts, Role, Target
from cupilot.roofline import Zone
from cupilot.strategy import Strategy
from cupilot.value import Value


class PoolEntry(Value):
    """One evaluated kernel, win or failure, as later jobs may learn from it."""

    id: str
    """Evaluation id: one entry an evaluation."""
    team: str
    """Entries are private to the team that paid for them."""
    problem_name: str
    problem_hash: str
    op_class: str
    operators: tuple[str, ...]
    """ATen operators of the reference, in order: what the embedding is made of, together with the name."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Shapes of inputs and parameters, in order."""
    target: Target
    policy: NumericsPolicy
    dtype: str
    device_class: str
    zone: Zone
    strategy: Strategy
    """After alignment: what the code really does."""
    kernel_hash: str | None
    verdict: Verdict
    speedup: float | None
    """Over eager; only of a kernel that counts."""
    failure: FailureKind | None
    created_at: str
    """ISO 8601, UTC."""
    credits: tuple[Credit, ...] = ()
    """What each technique was measured to be worth, of a winner whose job attributed its gain."""

    @property
    def informative(self) -> bool:
        """Whether it says anything about its strategy: not what failed for reasons that are not the kernel's."""
        return self.failure not in (FailureKind.INFRASTRUCTURE, FailureKind.INVALID_PROBLEM)


class PoolMatch(Value):
    """An entry that was retrieved for a problem."""

    entry: PoolEntry
    similarity: float
    """Cosine of the references' embeddings, 0 to 1."""
    score: float
    """What entries are ranked by: similarity times what the strategy gained."""


def operators(facts: ProblemFacts) -> tuple[str, ...]:
    """The reference's ATen operators, in order of execution."""
    return tuple(node.op for node in facts.graph.nodes)


def shapes(facts: ProblemFacts) -> tuple[tuple[int, ...], ...]:
    """Shapes of the reference's inputs and parameters, in order."""
    return tuple(spec.shape for spec in facts.with_role(Role.INPUT, Role.PARAMETER))


def entry_of(
    evaluation: Evaluation,
    *,
    id: str,
    team: str,
    problem_name: str,
    facts: ProblemFacts,
    target: Target,
    device_class: str,
    zone: Zone,
    strategy: Strategy,
    created_at: str,
) -> PoolEntry:
    """What the pool remembers of an evaluation; ``strategy`` after alignment, where it was aligned."""
    inputs = facts.with_role(Role.INPUT) or facts.tensors
    return PoolEntry(
        id=id,
        team=team,
        problem_name=problem_name,
        problem_hash=evaluation.problem_hash,
        op_class=facts.op_class,
        operators=operators(facts),
        shapes=shapes(facts),
        target=target,
        policy=facts.policy,
        dtype=inputs[0].dtype.value,
        device_class=device_class,
        zone=zone,
        strategy=strategy,
        kernel_hash=evaluation.kernel_hash,
        verdict=evaluation.verdict,
        speedup=evaluation.speedup,
        failure=evaluation.failure.kind if evaluation.failure else None,
        created_at=created_at,
    )
