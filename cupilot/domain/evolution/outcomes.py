"""The outcomes of a job's strategies, in a word each, as prompts name them."""

from __future__ import annotations

from collections.abc import Iterable

from cupilot.domain.strategy import Strategy


def outcomes(results: Iterable[tuple[Strategy, float | None, str | None]]) -> dict[str, str]:
    """Return by signature each strategy's best speedup (``1.57x``), or why its last kernel has none (``wrong_value``).

    ``results`` are strategies with a speedup or a reason, the oldest first; one strategy may have several.
    """
    speedups: dict[str, float] = {}
    words: dict[str, str] = {}
    for strategy, speedup, reason in results:
        signature = strategy.signature()
        if speedup is not None:
            speedups[signature] = max(speedup, speedups.get(signature, 0.0))
        words[signature] = reason or "failed"
    return words | {signature: f"{speedup:.2f}x" for signature, speedup in speedups.items()}
