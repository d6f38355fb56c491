"""Names what is counted as one or as several."""

from __future__ import annotations


def counted(number: int, one: str, several: str = "") -> str:
    """Return a number with its noun, e.g. ``1 job``, ``2 jobs``; ``several`` where the plural takes more than an s."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def size_words(arms: int, problems: int, seeds: int) -> str:
    """Return the size of an experiment, e.g. ``2 arms x 1 problem x 3 seeds``."""
    return f"{counted(arms, 'arm')} x {counted(problems, 'problem')} x {counted(seeds, 'seed')}"
