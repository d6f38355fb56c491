"""Seeds: stable across processes, independent of each other, in range."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from cupilot.domain.evolution.pipeline import Next, Stage
from cupilot.domain.evolution.seeds import derive, generation_rng, initialise_seed, stage_seed


@given(st.integers(0, 2**31 - 1), st.lists(st.text() | st.integers()))
def test_seeds_fit_31_bits(job_seed: int, name: list[str | int]) -> None:
    assert 0 <= derive(job_seed, *name) < 2**31


def test_a_seed_never_changes_between_versions() -> None:
    """A recorded job must evolve the same after an upgrade, so the value itself is pinned."""
    assert stage_seed(7, 12, Next(Stage.REVISE, 1)) == 1204524647


def test_another_process_with_another_hash_seed_agrees() -> None:
    code = "from cupilot.domain.evolution.seeds import derive; print(derive(7, 'candidate', 12, 'revise', 1))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "99"}, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == derive(7, "candidate", 12, "revise", 1)


def test_every_draw_of_a_job_has_its_own_seed() -> None:
    seeds = [
        stage_seed(job, ordinal, Next(stage, repair))
        for job in range(3)
        for ordinal in range(20)
        for stage in Stage
        for repair in range(3)
    ] + [initialise_seed(job, generation) for job in range(3) for generation in range(10)]
    assert len(set(seeds)) == len(seeds)


def test_parts_of_a_name_do_not_run_together() -> None:
    assert derive(1, "a", "bc") != derive(1, "ab", "c")


def test_generations_draw_differently_and_repeatably() -> None:
    first, again, other = generation_rng(5, 0), generation_rng(5, 0), generation_rng(5, 1)
    drawn = [first.random() for _ in range(5)]
    assert drawn == [again.random() for _ in range(5)]
    assert drawn != [other.random() for _ in range(5)]
