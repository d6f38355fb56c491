"""The playbook's Kernel Revisor: drops or shrinks the techniques that a failure points at, and renders anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agents.interface import Attempt, Briefing, Revision
from agents.playbook.search import Space, replaced
from agents.playbook.translator import PlaybookTranslator, operator_of, with_defaults
from cupilot.domain.evaluation import Failure, FailureKind
from cupilot.domain.strategy import Strategy
from cupilot.domain.technique import Scalar, catalogue

_RESOURCES = (
    "async_copy",
    "tma_loads",
    "cluster_multicast",
    "shared_rows",
    "shared_tiling",
    "register_rows",
    "double_buffering",
    "launch_bounds",
    "rows_per_warp",
    "thread_coarsening",
    "register_blocking",
    "bank_padding",
)
_APPROXIMATIONS = (
    "fast_exp",
    "polynomial_exp",
    "tensor_cores",
    "one_pass_moments",
    "online_softmax",
    "hoisted_division",
    "strassen",
    "minimal_filtering",
)
_ADDRESSING = (
    "vector_loads",
    "nontemporal_stores",
    "prefetch",
    "split_rows",
    "split_k",
    "packing",
    "column_slices",
    "rows_per_warp",
    "thread_coarsening",
    "grid_stride",
)
SUSPECTS: dict[FailureKind, tuple[str, ...]] = {
    FailureKind.COMPILE_ERROR: (*_RESOURCES, "tensor_cores", "simd"),
    FailureKind.LAUNCH_ERROR: _RESOURCES,
    FailureKind.INVALID_PLAN: (*_RESOURCES, "split_rows", "split_k"),
    FailureKind.OUT_OF_MEMORY: ("strassen", "split_rows", "split_k", "packing", *_RESOURCES),
    FailureKind.CRASH: _ADDRESSING,
    FailureKind.ILLEGAL_ACCESS: _ADDRESSING,
    FailureKind.OUT_OF_BOUNDS_WRITE: _ADDRESSING,
    FailureKind.UNWRITTEN_OUTPUT: _ADDRESSING,
    FailureKind.WRONG_VALUE: (*_APPROXIMATIONS, *_ADDRESSING),
    FailureKind.INSENSITIVE: (*_APPROXIMATIONS, *_ADDRESSING),
    FailureKind.NON_DETERMINISTIC: ("split_rows", "split_k", "async_copy", "double_buffering", "threads"),
    FailureKind.POLICY_BREACH: ("tensor_cores", "fast_exp"),
    FailureKind.TIMEOUT: ("rows_per_block", "warp_per_row", "split_rows", "grid_stride", "split_k"),
}
"""For each failure the techniques to blame, likeliest first. Other failures are not the strategy's fault."""
SHRINKABLE = ("shared_tiling", "async_copy", "register_blocking", "thread_coarsening", "rows_per_warp", "launch_bounds")
"""Techniques that are first tried with a smaller parameter where a resource ran out."""
_RESOURCE_FAILURES = (FailureKind.LAUNCH_ERROR, FailureKind.COMPILE_ERROR, FailureKind.INVALID_PLAN)


class PlaybookRevisor:
    """A revisor that stops once no technique is left to blame."""

    def revise(
        self, briefing: Briefing, history: Sequence[Attempt], seed: int, *, lineage: Sequence[Attempt] = ()
    ) -> Revision | None:
        """Return a kernel for a reduced strategy that is new to the candidate and its lineage.

        None where none is left.
        """
        if not history or history[-1].evaluation is None or history[-1].evaluation.failure is None:
            return None
        last, failure = history[-1], history[-1].evaluation.failure
        if failure.kind not in SUSPECTS or not last.strategy.techniques:
            return None
        space = Space(briefing, operator_of(briefing))
        tried = {with_defaults(attempt.strategy).signature() for attempt in (*lineage, *history)}
        for strategy, note in _reductions(space, last.strategy, failure):
            complete = with_defaults(strategy)
            if complete.signature() in tried or not space.valid(complete):
                continue
            kept = Strategy(techniques=complete.techniques, rationale=f"{last.strategy.rationale}\n{note}"[:4000])
            kernel = PlaybookTranslator().translate(briefing, kept, (), seed)
            return Revision(strategy=kept, kernel=kernel, note=note)
        return None

    def improve(
        self,
        briefing: Briefing,  # noqa: ARG002 - see below
        attempt: Attempt,  # noqa: ARG002
        history: Sequence[Attempt],  # noqa: ARG002
        seed: int,  # noqa: ARG002
    ) -> Revision | None:
        """Return None: within a strategy a template has nothing to change that the sweep of tunables does not try."""
        return None


def _reductions(space: Space, strategy: Strategy, failure: Failure) -> Iterator[tuple[Strategy, str]]:
    """Yield smaller strategies, the most likely cure first; the plain kernel last."""
    suspects = [name for name in SUSPECTS[failure.kind] if strategy.use(name) is not None]
    why = f"after {failure.kind.value}"
    if failure.kind in _RESOURCE_FAILURES:
        for name in suspects:
            for smaller, change in _shrunk(strategy, name):
                yield space.fitted(smaller)[0], f"{change} {why}"
    for name in suspects:
        yield _without(space, strategy, name), f"{name} dropped {why}"
    for use in reversed(strategy.techniques):
        if use.id not in suspects:
            yield _without(space, strategy, use.id), f"{use.id} dropped {why}, no likelier cause being left"
    yield Strategy(techniques=()), f"everything dropped {why}"


def _shrunk(strategy: Strategy, name: str) -> Iterator[tuple[Strategy, str]]:
    """Yield the strategy with one parameter of the technique one choice lower."""
    technique, use = catalogue().get(name), strategy.use(name)
    if name not in SHRINKABLE or technique is None or use is None:
        return
    for parameter, entry in technique.parameters.items():
        value: Scalar = use.parameters.get(parameter, entry.default)
        place = entry.choices.index(value) if value in entry.choices else 0
        if place > 0:
            lower = entry.choices[place - 1]
            yield replaced(strategy, name, parameter, lower), f"{name}.{parameter} lowered to {lower}"


def _without(space: Space, strategy: Strategy, name: str) -> Strategy:
    return space.fitted(Strategy(techniques=tuple(use for use in strategy.techniques if use.id != name)))[0]
