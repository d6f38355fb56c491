"""Kill every kind of process and flush Redis at random: every job still ends, and each result is stored once."""

from __future__ import annotations

import time
from collections import Counter
from random import Random
from uuid import UUID

import pytest

from tests.service.faults.stack import Stack, ran_through, wait_until

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

SEED = 20260725
SMALL = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return {body}


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return []
"""
BODIES = ("torch.softmax(x, dim=1)", "torch.relu(x)", "x / torch.norm(x, p=2, dim=1, keepdim=True)")


def submit(stack: Stack, number: int) -> UUID:
    body = BODIES[number % len(BODIES)]
    return stack.submit(
        problem={"name": f"chaos {number}", "source": SMALL.format(body=body)},
        target="cpu",
        method={"population": 2, "generations": 2, "elites": 1},
        learning={"cheap_attribution": False},
        seed=number,
    )


def hurt(stack: Stack, victim: str, rng: Random) -> bool:
    if victim == "flush":
        return stack.flush_redis()
    if victim.endswith(" child"):
        return stack.kill_descendant(victim.removesuffix(" child"), rng)
    stack.kill(victim)
    return True


@pytest.fixture(scope="module")
def jobs(stack: Stack) -> list[UUID]:
    """Jobs that ran while every kind of process was killed."""
    rng = Random(SEED)
    parts = stack.parts()
    workers = [part for part in parts if part.startswith(("gpu", "agent"))]
    victims = [*parts, "flush", "flush", *(f"{worker} child" for worker in workers)]
    assert {"api", "scheduler", "agent", "postgres", "valkey", "chroma"} <= set(parts)
    plan = rng.sample(victims, len(victims))
    submitted: list[UUID] = []
    hit: Counter[str] = Counter()
    for number, victim in enumerate(plan):
        if len([job for job in submitted if not stack.client.get(job).final]) < 2:
            submitted.append(submit(stack, number))
        time.sleep(rng.uniform(0.3, 2.0))
        deadline = time.monotonic() + 60
        while not hurt(stack, victim, rng) and time.monotonic() < deadline:
            time.sleep(0.1)
        hit[victim] += 1
    assert set(hit) == set(victims)
    wait_until(stack.all_ready, "every part is up again")
    submitted.append(submit(stack, len(plan)))
    for job in submitted:
        stack.wait(job)
    return submitted


def test_every_job_ends_well(stack: Stack, jobs: list[UUID]) -> None:
    """With attempts to spare, no kill may cost a job its result: the work is done again."""
    ended = [stack.client.get(job) for job in jobs]
    lost = [(view.problem.name, view.state, view.reason, view.message) for view in ended if not ran_through(view)]
    assert lost == []


def test_nothing_is_left_open(stack: Stack, jobs: list[UUID]) -> None:
    assert jobs
    assert stack.rows("SELECT key, state FROM steps WHERE finished_at IS NULL") == []
    assert stack.rows("SELECT id FROM candidates WHERE state = 'active'") == []
    assert stack.rows("SELECT id FROM generations WHERE state <> 'finished' OR pending <> 0") == []
    wait_until(lambda: not stack.rows("SELECT id FROM outbox WHERE sent_at IS NULL"), "the outbox is empty")


def test_each_result_is_stored_once(stack: Stack, jobs: list[UUID]) -> None:
    assert jobs
    once = """
        SELECT s.key, count(DISTINCT v.id), count(DISTINCT e.id)
        FROM steps s
        LEFT JOIN evaluations v ON v.step_id = s.id
        LEFT JOIN events e ON e.step_id = s.id AND e.kind = 'step.succeeded'
        WHERE s.state = 'succeeded' AND s.kind = :kind GROUP BY s.id, s.key
    """
    evaluations = [row for kind in ("evaluate", "confirm") for row in stack.rows(once, kind=kind)]
    assert len(evaluations) >= 2 * len(jobs)
    assert [row for row in evaluations if row[1:] != (1, 1)] == []
    others = [row for kind in ("prepare", "initialise", "translate") for row in stack.rows(once, kind=kind)]
    assert [row for row in others if row[1:] != (0, 1)] == []
    stray = "SELECT v.id FROM evaluations v JOIN steps s ON s.id = v.step_id WHERE s.state <> 'succeeded'"
    assert stack.rows(stray) == []


def test_each_job_and_generation_ended_once(stack: Stack, jobs: list[UUID]) -> None:
    ends = stack.rows(
        "SELECT job_id, count(*) FROM events WHERE kind IN ('job.succeeded', 'job.failed') GROUP BY job_id"
    )
    assert sorted(ends, key=str) == sorted(((job, 1) for job in jobs), key=str)
    generations = stack.rows("SELECT job_id, count(*) FROM generations GROUP BY job_id")
    finished = stack.rows("SELECT job_id, count(*) FROM events WHERE kind = 'generation.finished' GROUP BY job_id")
    assert sorted(generations, key=str) == sorted(finished, key=str)
    counters = stack.rows(
        "SELECT j.id FROM jobs j WHERE candidates <> (SELECT count(*) FROM candidates WHERE job_id = j.id)"
    )
    assert counters == []


def test_the_kills_were_felt(stack: Stack, jobs: list[UUID]) -> None:
    """Otherwise the tests above would have proved nothing."""
    assert jobs
    assert stack.rows("SELECT id FROM steps WHERE attempt > 1") != []


def test_no_process_lost_its_parent_and_lived(stack: Stack, jobs: list[UUID]) -> None:
    assert jobs
    wait_until(lambda: not stack.orphans(), f"no orphans, but: {stack.orphans()}", 30.0)
