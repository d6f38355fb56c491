"""Refuse settings in production: defaults that are right on a laptop and wrong where others can reach it.

Of a role's own environment: model keys belong to agent workers only, and are not sent in the clear to a host outside.
The sandbox of kernels has no switch: a GPU worker that has none refuses to work, everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Protocol
from urllib.parse import urlsplit

from pydantic import SecretStr

from cupilot.domain.errors import CupilotError
from cupilot.domain.webhooks import networks

KNOWN_PASSWORDS = frozenset({"", "cupilot", "postgres", "redis", "password", "secret", "changeme", "admin"})
LEAST_TOKEN_LENGTH = 16
NEVER_CALLED = tuple(
    ip_network(text)
    for text in ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "::/127", "fe80::/10", "ff00::/8")
)
"""Loopback, link-local (where clouds keep their metadata and credentials) and multicast."""
MODEL_KEYS = re.compile(
    r"CUPILOT_LLM_(API_KEY|MODELS_FILE)|(OPENAI|ANTHROPIC|AZURE|GEMINI|GOOGLE|MISTRAL|COHERE|GROQ|TOGETHERAI|OPENROUTER"
    r"|DEEPSEEK|XAI|FIREWORKS_AI|HUGGINGFACE|REPLICATE|PERPLEXITYAI)_API_KEY|HF_TOKEN"
)
"""Variables that hold a model's key, or name a file with some: ours, and those that LiteLLM reads."""
OWN_NAMES = re.compile(r"[^.]+|.+\.(local|internal|svc|lan|intranet|home\.arpa)|.+\.svc\.[^.]+\.[^.]+")
"""Names that mean something inside one network only."""


class UnsafeProduction(CupilotError):
    """A process of production must not run with this environment."""

    code = "unsafe_production"
    status = 500


class CheckedSettings(Protocol):
    """The settings that these rules look at; see :class:`cupilot.settings.Settings`."""

    database_url: SecretStr
    redis_url: SecretStr
    metrics_token: SecretStr | None
    webhook_networks: str
    trusted_proxies: str
    oidc_issuer: str | None
    oidc_redirect_url: str | None
    heartbeat_seconds: float
    lease_seconds: float
    visibility_timeout_seconds: int
    prepare_timeout_seconds: float
    evaluate_timeout_seconds: float
    confirm_timeout_seconds: float
    agent_timeout_seconds: float

    @property
    def log_level(self) -> str:
        """Least level of what is logged."""


def unsafe(settings: CheckedSettings) -> list[str]:
    """Return a sentence for each setting that production must not have; empty where it may start."""
    wrong = []
    if _password(settings.database_url.get_secret_value()) in KNOWN_PASSWORDS:
        wrong.append("CUPILOT_DATABASE_URL has no password, a built-in one or a well-known one")
    if _password(settings.redis_url.get_secret_value()) in KNOWN_PASSWORDS:
        wrong.append("CUPILOT_REDIS_URL has no password or a well-known one: whoever reaches Redis could send messages")
    token = settings.metrics_token
    if token is not None and len(token.get_secret_value()) < LEAST_TOKEN_LENGTH:
        wrong.append(f"CUPILOT_METRICS_TOKEN is shorter than {LEAST_TOKEN_LENGTH} characters")
    if settings.log_level == "DEBUG":
        wrong.append("CUPILOT_LOG_LEVEL is DEBUG: libraries then log what they send")
    return [*wrong, *_provider(settings), *_networks(settings), *_times(settings)]


def check_environment(role: str, environment: Mapping[str, str]) -> None:
    """Refuse model keys in the environment of a role that calls no model (any but ``agent``)."""
    keys = sorted(name for name, value in environment.items() if value and MODEL_KEYS.fullmatch(name))
    if keys and role != "agent":
        raise UnsafeProduction(
            f"production refuses to start {role}: its environment holds {', '.join(keys)}",
            hint="give them to agent workers only: GPU workers run foreign code, webhooks call foreign addresses",
        )


def check_model_urls(urls: Iterable[str]) -> None:
    """Refuse to send keys and prompts in the clear to a host outside the own network."""
    wrong = sorted({urlsplit(url).hostname or url for url in urls if _is_unencrypted(url)})
    if wrong:
        raise UnsafeProduction(
            f"production refuses to send keys and prompts to {', '.join(wrong)} without TLS",
            hint="use https in CUPILOT_LLM_API_BASE or the models file, or a private address or name (.internal, .svc)",
        )


def _provider(settings: CheckedSettings) -> Iterator[str]:
    if settings.oidc_issuer is None:
        return
    for name in ("oidc_issuer", "oidc_redirect_url"):
        if urlsplit(getattr(settings, name) or "").scheme != "https":
            yield f"CUPILOT_{name.upper()} is no https address: who signs in could be another"


def _networks(settings: CheckedSettings) -> Iterator[str]:
    wrong = [
        str(network)
        for network in networks(settings.webhook_networks)
        if any(network.version == forbidden.version and network.overlaps(forbidden) for forbidden in NEVER_CALLED)
    ]
    if wrong:
        yield (
            f"CUPILOT_WEBHOOK_NETWORKS allows {', '.join(wrong)}: users could call this machine or the cloud's "
            "metadata service; list the receivers' own networks"
        )
    trusted = {part.strip() for part in settings.trusted_proxies.split(",")}
    if trusted & {"*", "0.0.0.0/0", "::/0"}:
        yield (
            "CUPILOT_TRUSTED_PROXIES trusts everybody: any client could pass for another address, in rate limits and "
            "in the audit log; list the proxies"
        )


def _times(settings: CheckedSettings) -> Iterator[str]:
    if settings.heartbeat_seconds * 2 > settings.lease_seconds:
        yield (
            "CUPILOT_HEARTBEAT_SECONDS is more than half of CUPILOT_LEASE_SECONDS: one late heartbeat loses the step; "
            "a sixth is right"
        )
    longest = max(
        settings.prepare_timeout_seconds,
        settings.evaluate_timeout_seconds,
        settings.confirm_timeout_seconds,
        settings.agent_timeout_seconds,
    )
    if settings.visibility_timeout_seconds <= longest:
        yield (
            f"CUPILOT_VISIBILITY_TIMEOUT_SECONDS is not above the longest step ({longest:.0f} s): the broker would "
            "deliver messages again while their steps still run"
        )


def _password(url: str) -> str:
    return (urlsplit(url).password or "").lower()


def _is_unencrypted(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme != "http":
        return False
    host = (parts.hostname or "").lower()
    try:
        return ip_address(host).is_global
    except ValueError:
        return OWN_NAMES.fullmatch(host) is None
