"""Teams and their API keys. A key is shown once; only its SHA-256 is kept."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import uuid
from datetime import timedelta

from sqlalchemy import func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.storage.tables import ApiKey, Team

KEY_MARK = "cpk"
USE_RESOLUTION = timedelta(minutes=1)
"""How often ``last_used_at`` is written at most: a key in use would otherwise cost a write a request."""


def ensure_team(session: Session, name: str) -> Team:
    """The team of this name, made where there is none."""
    session.execute(insert(Team).values(id=uuid.uuid4(), name=name).on_conflict_do_nothing())
    return session.scalars(select(Team).where(Team.name == name)).one()


def create_api_key(session: Session, team: Team, name: str) -> tuple[ApiKey, str]:
    """A new key for a team, and its secret, which cannot be had again."""
    prefix = f"{KEY_MARK}_{secrets.token_hex(4)}"
    secret = f"{prefix}_{secrets.token_urlsafe(32)}"
    key = ApiKey(team_id=team.id, name=name, prefix=prefix, hash=_hash(secret))
    session.add(key)
    session.flush()
    return key, secret


def adopt_api_key(session: Session, team: Team, name: str, secret: str) -> ApiKey:
    """Make a secret that exists already (in a file, in a secret store) a key of the team; repeating it is harmless."""
    prefix = _prefix(secret)
    if prefix is None:
        raise ValueError(f"not an API key: it must look like {KEY_MARK}_<8 hex digits>_<32 or more characters>")
    values = {"id": uuid.uuid4(), "team_id": team.id, "name": name, "prefix": prefix, "hash": _hash(secret)}
    session.execute(insert(ApiKey).values(values).on_conflict_do_nothing())
    return session.scalars(select(ApiKey).where(ApiKey.prefix == prefix, ApiKey.hash == _hash(secret))).one()


def authenticate(session: Session, secret: str) -> ApiKey | None:
    """The key that this secret is, unless it is unknown or revoked."""
    prefix = _prefix(secret)
    if prefix is None:
        return None
    key = session.scalars(select(ApiKey).where(ApiKey.prefix == prefix, ApiKey.revoked_at.is_(None))).one_or_none()
    if key is None or not hmac.compare_digest(key.hash, _hash(secret)):
        return None
    stale = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < func.now() - USE_RESOLUTION)
    session.execute(
        update(ApiKey)
        .where(ApiKey.id == key.id, stale)
        .values(last_used_at=func.now())
        .execution_options(synchronize_session=False)
    )
    return key


def _prefix(secret: str) -> str | None:
    parts = secret.split("_", 2)
    if len(parts) != 3 or parts[0] != KEY_MARK or len(parts[1]) != 8 or len(parts[2]) < 32:
        return None
    return f"{parts[0]}_{parts[1]}"


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
