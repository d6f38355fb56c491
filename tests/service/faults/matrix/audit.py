"""Rules for the rows after any faults: everything final, each result once, no call paid twice, no lease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from tests.service.faults.matrix.messages import UNSENT
from tests.service.faults.matrix.service import Service

RULES = {
    "a step is open": "SELECT id, key, state FROM steps WHERE finished_at IS NULL AND job_id = ANY(:jobs)",
    "a lease is left": "SELECT id, lease_owner FROM steps WHERE lease_owner IS NOT NULL AND job_id = ANY(:jobs)",
    "a candidate is active": "SELECT id FROM candidates WHERE state = 'active' AND job_id = ANY(:jobs)",
    "a generation is open": (
        "SELECT id FROM generations WHERE (state <> 'finished' OR pending <> 0) AND job_id = ANY(:jobs)"
    ),
    "a step did not succeed once": (
        "SELECT s.key, s.state, count(e.id) FROM steps s LEFT JOIN events e ON e.step_id = s.id"
        " AND e.kind = 'step.succeeded' WHERE s.job_id = ANY(:jobs) GROUP BY s.id"
        " HAVING count(e.id) <> CASE WHEN s.state = 'succeeded' THEN 1 ELSE 0 END"
    ),
    "a measurement is not there once": (
        "SELECT s.key, count(v.id) FROM steps s LEFT JOIN evaluations v ON v.step_id = s.id"
        " WHERE s.job_id = ANY(:jobs) AND s.kind IN ('evaluate', 'confirm') GROUP BY s.id"
        " HAVING count(v.id) <> CASE WHEN s.state = 'succeeded' THEN 1 ELSE 0 END"
    ),
    "a job did not end once": (
        "SELECT j.id, count(e.id) FROM jobs j LEFT JOIN events e ON e.job_id = j.id AND e.kind IN"
        " ('job.succeeded', 'job.failed', 'job.cancelled', 'job.budget_exhausted')"
        " WHERE j.id = ANY(:jobs) GROUP BY j.id HAVING count(e.id) <> 1"
    ),
    "a generation did not finish once": (
        "SELECT g.id FROM generations g LEFT JOIN events e ON e.job_id = g.job_id AND e.kind = 'generation.finished'"
        " AND (e.data->>'number')::int = g.number WHERE g.job_id = ANY(:jobs) AND g.state = 'finished'"
        " GROUP BY g.id HAVING count(e.id) <> 1"
    ),
    "a job's counter is wrong": (
        "SELECT j.id FROM jobs j WHERE j.id = ANY(:jobs)"
        " AND candidates <> (SELECT count(*) FROM candidates WHERE job_id = j.id)"
    ),
    "an answer was paid twice": (
        "SELECT step_id, purpose, count(*) FROM llm_calls WHERE job_id = ANY(:jobs)"
        " AND state = 'answered' AND NOT cached GROUP BY 1, 2 HAVING count(*) > 1"
    ),
    "a job was charged wrongly": (
        "SELECT j.id, j.cost_usd, sum(c.cost_usd) FROM jobs j JOIN llm_calls c ON c.job_id = j.id"
        " AND c.state = 'answered' WHERE j.id = ANY(:jobs) GROUP BY j.id"
        " HAVING abs(j.cost_usd - sum(c.cost_usd)) > 1e-9"
    ),
}
"""Sentence of the breach, and a query whose every row is one."""

TOLD = "SELECT id FROM events WHERE job_id = ANY(:jobs) AND kind LIKE 'job.%'"
"""Events of which the team wants to be told."""


@dataclass(frozen=True)
class Calls:
    """Requests to the model's provider, and the calls on record."""

    paid: int
    """Requests that the provider answered, and so charges."""
    answered: int
    """Calls whose answer is stored."""
    in_flight: int
    """Calls whose worker died between asking and storing: recorded before they were made, reserved in the budget. Of
    some the answer was paid and lost; no service can know which."""

    @property
    def unrecorded(self) -> int:
        """Paid calls that no row knows of: must be none."""
        return max(self.paid - self.answered - self.in_flight, 0)


class Rows(Protocol):
    """Whatever has the database."""

    def rows(self, query: str, **parameters: object) -> Sequence[Sequence[Any]]:
        """Return the rows of a query."""
        ...


def row_breaches(service: Rows, jobs: list[UUID]) -> list[str]:
    """Every breach of a rule about rows, as a sentence with its row."""
    return [f"{rule}: {row}" for rule, query in RULES.items() for row in service.rows(query, jobs=jobs)]


def breaches(service: Service, jobs: list[UUID]) -> list[str]:
    """Every breach of a rule, as a sentence: about rows, and about what the team was told."""
    told = [event for (event,) in service.rows(TOLD, jobs=jobs)]
    unsent = [f"a message was not delivered: {row}" for row in service.rows(UNSENT, jobs=jobs)]
    return row_breaches(service, jobs) + unsent + service.inbox.missing(told) + service.inbox.breaches()


def model_calls(service: Service) -> Calls:
    """The account of all model calls so far."""
    count = "SELECT count(*) FROM llm_calls WHERE state = :state AND NOT cached"
    answered, started, lost = (int(service.rows(count, state=state)[0][0]) for state in ("answered", "started", "lost"))
    return Calls(len(service.model.paid), answered, started + lost)
