"""Counts with their nouns, singular or plural."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, e.g. ``1 job``, ``2 jobs``; ``plural`` where it takes more than an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def size_words(arms: int, problems: int, seeds: int) -> str:
    """Return the size of an experiment, e.g. ``2 arms x 1 problem x 3 seeds``."""
    return f"{counted(arms, 'arm')} x {counted(problems, 'problem')} x {counted(seeds, 'seed')}"
