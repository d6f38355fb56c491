"""Seeds: everything random in a job comes from the job's seed, whichever process draws it and in whatever order.

Each draw has a name (stage, candidate, round); its seed is a hash of the job's seed and that name, so a repeated
step repeats its draws and a step more or less changes no other's.
"""

from __future__ import annotations

import hashlib
from random import Random

from cupilot.domain.evolution.pipeline import Next

SEED_BITS = 31
"""Seeds fit a signed 32-bit integer, which model providers and numpy accept."""


def derive(job_seed: int, *name: str | int) -> int:
    """Return the seed, 0 to 2**31 - 1, of the draw of this name; equal in every process and Python version."""
    text = "\0".join(str(part) for part in (job_seed, *name))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> (32 - SEED_BITS)


def stage_seed(job_seed: int, ordinal: int, stage: Next) -> int:
    """Return the seed of one stage of the candidate with this ordinal."""
    repeated = (stage.repeats,) if stage.repeats else ()
    return derive(job_seed, "candidate", ordinal, stage.stage.value, stage.round, *repeated)


def initialise_seed(job_seed: int, generation: int) -> int:
    """Return the seed with which the SCE Manager writes a generation's initial strategies."""
    return derive(job_seed, "initialise", generation)


def generation_rng(job_seed: int, generation: int) -> Random:
    """Return the generator from which a method draws the proposals of one generation."""
    return Random(derive(job_seed, "propose", generation))
