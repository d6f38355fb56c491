"""Crossover of code without a model: two kernels' texts, aligned line by line, each difference taken from one of them.

This is the homologous crossover of genetic programming over lines. It knows nothing of what the code means, which is
the point of having it: it is what strategy-level crossover is to be compared with where no model is to be asked. Many
of its children do not compile; the judge says so, and the Revisor falls back on a template.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from random import Random

from cupilot.domain.kernel import Kernel


def spliced(first: Kernel, second: Kernel, seed: int) -> Kernel:
    """Return a child of both texts; where more lines come from the second parent, so does the launch plan.

    At least one difference comes from each parent where there are two or more, so that the child is no copy.
    """
    mine, other = first.source.splitlines(), second.source.splitlines()
    blocks = SequenceMatcher(None, mine, other, autojunk=False).get_opcodes()
    differing = [place for place, (tag, *_) in enumerate(blocks) if tag != "equal"]
    rng = Random(seed)
    taken = {place for place in differing if rng.random() < 0.5}
    if len(differing) > 1 and len(taken) in (0, len(differing)):
        taken ^= {rng.choice(differing)}
    lines: list[str] = []
    foreign = own = 0
    for place, (_, low, high, other_low, other_high) in enumerate(blocks):
        lines += other[other_low:other_high] if place in taken else mine[low:high]
        if place in differing:
            foreign, own = (foreign + 1, own) if place in taken else (foreign, own + 1)
    plan = second.plan if foreign > own else first.plan
    return Kernel(target=first.target, source="\n".join(lines) + "\n", plan=plan)
