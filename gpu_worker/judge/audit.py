"""Audits a kernel: blocks of launches like those that are timed, in which launches are compared with exact answers.

Audits happen before timing (every law), between timed pairs and after them. An audited block differs in nothing that a
kernel could see: its slots, laws and length are drawn at random, and which one is compared only this process knows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from cupilot.domain.evaluation import FailureKind, LawResult
from gpu_worker.judge import laws
from gpu_worker.judge.blocks import Blocks
from gpu_worker.judge.cases import Case, Cases
from gpu_worker.judge.comparison import Bounds, Comparer
from gpu_worker.judge.fillings import weights
from gpu_worker.judge.runner_link import KernelFailed

WHOLE_BLOCKS = 0.25
"""Share of audited blocks that are as long as timed ones; the others are of any length up to that."""


class Auditor:
    """Audits one loaded kernel."""

    def __init__(
        self, blocks: Blocks, comparer: Comparer, cases: Cases, bounds: Bounds, admitted: Sequence[str]
    ) -> None:
        """Audit under the laws that the problem was ``admitted`` with."""
        self._blocks = blocks
        self._comparer = comparer
        self._cases = cases
        self._bounds = bounds
        self._admitted = admitted
        self._random = random.Random()

    def check(self, law: str, seconds: float, timeout: float | None = None) -> tuple[LawResult, float]:
        """Audit the law's case in a block of launches that take about ``seconds``; also return how long one took.

        ``timeout`` is for one launch. Raises :class:`KernelFailed`.
        """
        case = self._cases.get(law)
        error, took = self._block(case, self._length(seconds), timeout)
        result = LawResult(
            law=law,
            passed=True,
            error=error,
            tolerance=self._bounds.tolerances[law],
            reference_error=self._bounds.reference_error(law),
        )
        return result, took

    def check_again(self, law: str, seconds: float) -> None:
        """Audit a law that passed once more, over other poison."""
        try:
            self.check(law, seconds)
        except KernelFailed as failure:
            if failure.kind in (FailureKind.WRONG_VALUE, FailureKind.UNWRITTEN_OUTPUT):
                message = f"the second run on the same inputs failed where the first had passed: {failure}"
                raise KernelFailed(FailureKind.NON_DETERMINISTIC, message, **failure.details) from failure
            raise

    def spot_check(self, seconds: float) -> None:
        """Audit a block of fresh inputs, in which a launch under the law that was compared least is looked at."""
        compared = self._comparer.compared
        order = self._blocks.some_slots(self._length(seconds))
        filling = self._blocks.fill(
            order,
            weights(self._admitted, compared),
            lambda drawn: [min(order, key=lambda slot: (compared[drawn[slot]], self._random.random()))],
        )
        self._blocks.run(order)
        self._comparer.with_exact(filling.compared[0], filling)
        self._blocks.probe(order)
        self._blocks.refuse_trespass(filling)
        self._blocks.release()

    def _length(self, seconds: float) -> int:
        whole = self._blocks.length(seconds)
        return whole if self._random.random() < WHOLE_BLOCKS else self._random.randint(1, whole)

    def _block(self, case: Case, length: int, timeout: float | None) -> tuple[float, float]:
        """Run a block in which one random slot holds the case; return its error and the seconds of a launch."""
        order = self._blocks.some_slots(length)
        slot = self._random.choice(order)
        placed = {slot: (case.law, case.given)}
        filling = self._blocks.fill(order, weights(self._admitted, {}), lambda _: [slot], placed)
        took = self._blocks.run(order, timeout)
        error = self._comparer.with_case(slot, filling, case)
        self._blocks.probe(order)
        self._blocks.refuse_trespass(filling)
        self._blocks.release()
        return error, took.host / length


def in_order(results: Sequence[LawResult], admitted: Sequence[str]) -> tuple[LawResult, ...]:
    """Return results in the order in which laws were admitted."""
    return tuple(sorted(results, key=lambda result: admitted.index(result.law)))


def drawn_order(admitted: Sequence[str], chance: random.Random) -> list[str]:
    """Return laws in the order in which they are audited: the problem's own first, whose failures say most."""
    others = [law for law in admitted if law != laws.OWN]
    return [laws.OWN, *chance.sample(others, len(others))]
