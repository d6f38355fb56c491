"""One of everything that a route can name, and with it a request of every route that succeeds.

What is in the requests says ``role_matrix``; whether a role may send them is ``test_roles``'s business.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl

import httpx
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from cupilot.domain.model_call import Call
from cupilot.domain.people import Role
from cupilot.domain.problem import Target
from cupilot.domain.states import BatchState, JobState, StepState
from cupilot.domain.steering import DirectiveKind
from cupilot.storage.db.tables import people as tables
from cupilot.storage.db.tables.jobs import Directive, Job
from cupilot.storage.db.tables.models import LlmCall
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.tables.webhooks import WebhookDelivery
from cupilot.storage.people.teams import create_api_key, ensure_user, set_role
from cupilot.storage.pool.rows import remember
from cupilot.storage.queue.batches import add_batch
from tests.service.api.role_matrix import EXPERIMENT, MATRIX, WEBHOOK
from tests.service.api.world import Team, World, evolved
from tests.unit.storage.references import entry as pool_entry


@dataclass(frozen=True)
class Asked:
    """The parts of a request."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    """None for none."""


class Things:
    """One of everything that a path can name, of one team. Each is made when it is asked for, and only for that."""

    def __init__(
        self, world: World, team: uuid.UUID, http: httpx.Client, state: JobState, job: uuid.UUID | None = None
    ) -> None:
        """``state``: the job's; ``job``: one that there is, not a new one; ``http``: an admin's of the team."""
        self._world = world
        self._team = team
        self._http = http
        self._state = state
        self._known: dict[str, str] = {} if job is None else {"job": str(job)}

    def __getitem__(self, name: str) -> str:
        makers: dict[str, Callable[[Session], Any]] = {
            "job": self._job,
            "candidate": lambda _: "0",
            "webhook": lambda _: self._webhook(),
            "entry": self._entry,
            "delivery": self._delivery,
            "step": self._step,
            "call": self._call,
            "form": lambda _: "kernelbench",
            "table": lambda _: "arms",
            "figure": lambda _: "convergence",
            "directive": self._directive,
            "team": lambda session: session.get_one(tables.Team, self._team).name,
            "user": self._user,
            "key": self._key,
            "experiment": lambda _: self._posted("/v1/experiments", EXPERIMENT),
            "batch": self._batch,
            "problem": lambda session: session.get_one(Job, uuid.UUID(self["job"])).problem_id,
        }
        if name not in self._known:
            assert name in makers, f"things.Things does not know what {{{name}}} in a path stands for"
            with self._world.database.transaction() as session:
                self._known[name] = str(makers[name](session))
        return self._known[name]

    def asked(self, route: str) -> Asked:
        """The request of a route that its line of the matrix tells, of these things."""
        _, path = route.split(" ")
        line = MATRIX[route]
        return Asked(
            path={name: self[name] for name in re.findall(r"\{([a-z_]+)\}", path)},
            query=dict(parse_qsl(self._filled(line.query))),
            body=None if line.body is None else json.loads(self._filled(json.dumps(line.body))),
        )

    def _filled(self, text: str) -> str:
        """``{name}`` replaced by what it stands for; ``{new}`` is a name that nothing has yet."""
        for name in set(re.findall(r"\{([a-z_]+)\}", text)):
            text = text.replace(f"{{{name}}}", f"new-{uuid.uuid4().hex[:8]}" if name == "new" else self[name])
        return text

    def _posted(self, path: str, body: Any) -> str:
        """The id of what the team's admin makes over REST."""
        response = self._http.post(path, json=body)
        assert response.status_code < 300, response.text
        return str(response.json()["id"])

    def _batch(self, session: Session) -> uuid.UUID:
        row = add_batch(
            session, target=Target.CPU, device_class="cpu", limit=1, lease_seconds=3_600, job_id=None, author="test"
        )
        row.state, row.manifest, row.expires_at = BatchState.OPEN, "{}", func.now() + timedelta(hours=1)
        return row.id

    def _directive(self, session: Session) -> uuid.UUID:
        job = uuid.UUID(self["job"])
        row = Directive(id=uuid.uuid4(), job_id=job, kind=DirectiveKind.BAN, technique="simd", author="test")
        session.add(row)
        return row.id

    def _user(self, session: Session) -> str:
        user = ensure_user(session, f"member-{uuid.uuid4().hex[:12]}")
        set_role(session, session.get_one(tables.Team, self._team), user, Role.MEMBER)
        return user.name

    def _key(self, session: Session) -> uuid.UUID:
        key, _ = create_api_key(session, session.get_one(tables.Team, self._team), uuid.uuid4().hex)
        return key.id

    def _webhook(self) -> str:
        """A team has few of them, so the ones of earlier requests go first."""
        listed = self._http.get("/v1/webhooks")
        assert listed.status_code == 200, listed.text
        for one in listed.json()["items"]:
            self._http.delete(f"/v1/webhooks/{one['id']}")
        return self._posted("/v1/webhooks", WEBHOOK)

    def _delivery(self, session: Session) -> str:
        """A message that was given up, so that it can be sent again."""
        made = self._posted(f"/v1/webhooks/{self['webhook']}/ping", None)
        session.execute(
            update(WebhookDelivery)
            .where(WebhookDelivery.id == uuid.UUID(made))
            .values(outcome="failed", finished_at=func.now())
        )
        return made

    def _step(self, session: Session) -> uuid.UUID:
        return session.scalars(select(Step.id).where(Step.job_id == uuid.UUID(self["job"]))).first()

    def _call(self, session: Session) -> uuid.UUID:
        job = uuid.UUID(self["job"])
        step = session.scalars(select(Step.id).where(Step.job_id == job)).first()
        row = LlmCall(
            id=uuid.uuid4(),
            team_id=self._team,
            job_id=job,
            step_id=step,
            role="translator",
            purpose="translate",
            model="test",
            request=Call(
                role="translator",
                purpose="translate",
                model="test",
                messages=(),
                prompt_hash="0",
                parameters={},
                worst_cost_usd=0.0,
            ),
            request_hash="0" * 64,
        )
        session.add(row)
        return row.id

    def _entry(self, session: Session) -> uuid.UUID:
        identity = uuid.uuid4()
        remember(session, pool_entry("softmax", str(identity), team=str(self._team)))
        return identity

    def _job(self, session: Session) -> uuid.UUID:
        """Its steps are done, so that workers, where there are some, leave it as it is."""
        job = evolved(session, self._team, self._state)
        done = {"state": StepState.SUCCEEDED, "finished_at": func.now()}
        session.execute(update(Step).where(Step.job_id == job.id).values(done))
        return job.id


Asker = Callable[[str], Asked]
"""Tells a request of a route, of things that exist."""


def asker(world: World, team: Team, ended: uuid.UUID) -> Asker:
    """Of a team's things: the job that ended where an ended one will do, and new ones of everything else."""

    def ask(route: str) -> Asked:
        state = MATRIX[route].job
        job = ended if state is JobState.SUCCEEDED else None
        return Things(world, team.id, team.http, state, job).asked(route)

    return ask
