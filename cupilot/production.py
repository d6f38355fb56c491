"""What production refuses to start with: defaults that are right on a laptop and wrong where others can reach it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from cupilot.settings import Settings

KNOWN_PASSWORDS = frozenset({"", "cupilot", "postgres", "redis", "password", "secret", "changeme", "admin"})
LEAST_TOKEN_LENGTH = 16


def unsafe(settings: Settings) -> list[str]:
    """A sentence for each setting that production must not have; empty where it may start."""
    found = []
    if _password(settings.database_url.get_secret_value()) in KNOWN_PASSWORDS:
        found.append("CUPILOT_DATABASE_URL has no password, a built-in one or a well-known one")
    if _password(settings.redis_url.get_secret_value()) in KNOWN_PASSWORDS:
        found.append("CUPILOT_REDIS_URL has no password or a well-known one: whoever reaches Redis could send messages")
    token = settings.metrics_token
    if token is not None and len(token.get_secret_value()) < LEAST_TOKEN_LENGTH:
        found.append(f"CUPILOT_METRICS_TOKEN is shorter than {LEAST_TOKEN_LENGTH} characters")
    if settings.log_level == "DEBUG":
        found.append("CUPILOT_LOG_LEVEL is DEBUG: libraries then log what they send")
    return found


def _password(url: str) -> str:
    return (urlsplit(url).password or "").lower()
