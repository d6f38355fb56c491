"""Collect a transaction's changes of settings and rights for the audit log: ``{"team.weight": [1.0, 2.0]}``.

Rows tell it themselves when SQLAlchemy writes them; what a statement writes is told with :func:`note`. Only a session
that is watched keeps count, and no request changes two rows of one kind. No secret is in it, only that it changed.
Sources, strategies and kernels are not watched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pydantic_core
from sqlalchemy import event, inspect
from sqlalchemy.orm import Session

from cupilot.domain.quota import Quota
from cupilot.storage.db.base import Json
from cupilot.storage.db.json_columns import to_json
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.people import ApiKey, Membership, Team, User
from cupilot.storage.db.tables.webhooks import WebhookEndpoint

LONGEST = 1_000
"""Characters of a value as JSON; of a longer one the beginning is kept."""
_WATCH = "watch"
_HIDDEN = "(secret)"


def _host_only(url: str) -> str:
    """Return a URL without its path, into which chat services put the secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}/..."


_AUDITED: Mapping[type, tuple[str, Sequence[str]]] = {
    Team: ("team", ("weight", *Quota.model_fields)),
    User: ("user", ("cluster_admin", "disabled_at")),
    Membership: ("member", ("role",)),
    ApiKey: ("key", ("prefix", "name", "scope", "expires_at", "revoked_at")),
    WebhookEndpoint: ("webhook", ("url", "description", "events", "enabled", "secret")),
    Job: ("job", ("labels", "priority")),
}
"""Name of a table's rows, and the columns that are reported."""
_SHOWN: Mapping[str, Callable[[Any], str]] = {"webhook.secret": lambda _: _HIDDEN, "webhook.url": _host_only}


@dataclass
class _Watch:
    noted: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    rows: dict[tuple[int, str], tuple[Any, Any]] = field(default_factory=dict)
    """(row, the value before), by the row's identity and column. The first value before is the one that counts."""


def watch(session: Session) -> None:
    """Collect the session's changes from now on."""
    session.info[_WATCH] = _Watch()


def note(session: Session, name: str, before: Any, after: Any) -> None:
    """Record a change that a statement makes; of several the first ``before`` and the last ``after`` are kept."""
    watched: _Watch | None = session.info.get(_WATCH)
    if watched is not None:
        watched.noted[name] = (watched.noted.get(name, (before,))[0], after)


def changes(session: Session) -> Json:
    """Return what has changed since :func:`watch`; writes what is not written yet."""
    session.flush()
    watched: _Watch = session.info[_WATCH]
    noted = dict(watched.noted)
    for (_, column), (row, before) in watched.rows.items():
        noun, _ = _AUDITED[type(row)]
        gone = inspect(row).deleted
        noted[f"{noun}.{column}"] = (before, None if gone else getattr(row, column))
    return {
        name: [_shown(name, before), _shown(name, after)] for name, (before, after) in noted.items() if before != after
    }


def _shown(name: str, value: Any) -> Any:
    if value is not None and name in _SHOWN:
        return _SHOWN[name](value)
    plain = pydantic_core.to_jsonable_python(value)
    text = to_json(plain)
    return plain if len(text) <= LONGEST else text[:LONGEST] + "..."


@event.listens_for(Session, "before_flush")
def _collect_changes(session: Session, _context: object, _instances: object) -> None:
    watched: _Watch | None = session.info.get(_WATCH)
    if watched is None:
        return
    for row in (*session.new, *session.dirty, *session.deleted):
        _, columns = _AUDITED.get(type(row), ("", ()))
        for column in columns:
            history = inspect(row).attrs[column].history
            if row in session.deleted:
                before = getattr(row, column)
            elif history.added:
                before = history.deleted[0] if history.deleted else None
            else:
                continue
            watched.rows.setdefault((id(row), column), (row, before))
