"""All settings of all processes, in one class: environment variables with the prefix ``CUPILOT_``.

Not for ``gpu_worker``, which takes plain arguments: a GPU box needs neither this module nor its dependency.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from cupilot.domain.errors import CupilotError
from cupilot.domain.webhooks import networks
from cupilot.production import unsafe

DRIVER = "postgresql+psycopg2"
DEFAULT_DATABASE_URL = f"{DRIVER}://cupilot:cupilot@127.0.0.1:5432/cupilot"
EVERYBODY = "0.0.0.0/0, ::/0"


class WrongSettings(CupilotError):
    """The environment holds settings with which no process can start."""

    code = "wrong_settings"
    status = 500


class Settings(BaseSettings):
    """All settings of a process: addresses of the parts, limits, secrets."""

    model_config = SettingsConfigDict(env_prefix="CUPILOT_", extra="ignore", hide_input_in_errors=True)

    environment: Literal["development", "production"] = "development"
    """``production`` refuses to start with unsafe settings."""

    database_url: SecretStr = SecretStr(DEFAULT_DATABASE_URL)
    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    chroma_url: str = "http://127.0.0.1:8000"

    api_host: str = "127.0.0.1"
    api_port: int = Field(default=8080, ge=1, le=65_535)
    api_docs: Literal["on", "off"] = "on"
    """``on`` serves ``/docs`` and ``/openapi.json`` to anybody who reaches the API. They hold no data."""
    max_body_bytes: int = Field(default=1_048_576, gt=0)
    """A job request is a problem file (at most 256 KiB) and a few numbers."""

    oidc_issuer: str | None = None
    """Identity provider whose people may sign in to the pages, if they are users here; none without it."""
    oidc_client_id: str | None = None
    oidc_client_secret: SecretStr | None = None
    """None for a public client: PKCE alone."""
    oidc_redirect_url: str | None = None
    """``https://HOST/ui/sso/callback`` as the provider knows it; None for the address that the browser asked."""
    oidc_name: str = "single sign-on"
    """Name of the provider on its button: "Sign in with ..."."""

    rate_limit_key: int = Field(default=1_200, ge=0)
    """Requests a minute of one API key; 0 for no limit."""
    rate_limit_address: int = Field(default=300, ge=0)
    """Requests a minute of an address without a key, and wrong keys a minute from one; 0 for no limit."""
    trusted_proxies: str = ""
    """Whose ``X-Forwarded-For`` says who the client is; nobody's where it is empty."""
    connections_per_address: int = Field(default=512, ge=0)
    """Open connections of an address that is no trusted proxy's; 0 for no limit."""
    audit_keep_days: float = Field(default=365.0, gt=0)
    job_keep_days: float | None = Field(default=None, gt=0)
    """After which logs, prompts, answers and unproven kernels' sources of a final job are pruned; None keeps them."""
    streams: int = Field(default=500, ge=0)
    """Open event streams of one API process, and requests that wait for events..."""
    streams_per_team: int = Field(default=100, ge=0)
    """...and of one team among them."""
    stream_seconds: float = Field(default=600.0, gt=0)
    """A stream ends after so long and its client connects again: its key may have been revoked meanwhile."""

    webhook_networks: str = ""
    """Networks that webhooks may call although they are private, also without TLS, e.g. ``10.20.0.0/16``."""
    webhook_seconds: float = Field(default=10.0, gt=0, le=60)
    webhook_disable_hours: float = Field(default=72.0, gt=0)
    webhook_keep_days: float = Field(default=30.0, gt=0)

    lease_seconds: float = Field(default=30.0, gt=0)
    """A worker that is silent for this long has lost its step."""
    heartbeat_seconds: float = Field(default=5.0, gt=0)
    scheduler_tick_seconds: float = Field(default=1.0, gt=0)
    """Longest wait between looks at the database; notifications shorten it."""
    redispatch_seconds: float = Field(default=60.0, gt=0)
    """A published step that nobody claims for this long is published again (covers a flushed Redis)."""
    bundle_seconds: float = Field(default=0.25, ge=0, le=10)
    """Steps that are short on average travel together, as many as take so long; 0 sends each by itself."""
    step_attempts: int = Field(default=3, ge=1, le=20)
    visibility_timeout_seconds: int = Field(default=7_200, gt=0)
    """Above the longest step's hard limit; the same in every process on the broker (reference: Celery on Redis)."""

    pool_half_life_days: float = Field(default=180.0, gt=0)
    """Age at which what the strategy pool learned counts half: drivers, libraries and devices change."""
    pool_sharing: Literal["private", "anonymous", "open"] = "private"
    """Default sharing between teams of new entries of the strategy pool on built-in problems."""

    prepare_timeout_seconds: float = Field(default=300.0, gt=0)
    evaluate_timeout_seconds: float = Field(default=180.0, gt=0)
    confirm_timeout_seconds: float = Field(default=300.0, gt=0)
    agent_timeout_seconds: float = Field(default=3_600.0, gt=0)
    """Of a whole agent step: model calls, tries and waits for a provider. Thinking models take minutes a call."""

    sweep_points: int | None = Field(default=None, ge=0, le=64)
    """Values of a kernel's tunables that an evaluation may try beside its own; None for what suits the target."""

    compile_baseline: bool = True
    """If true, confirmations also compare with ``torch.compile``, in any mode: it takes longer than all else there."""

    max_autotune: bool | None = None
    """If true, confirmations also compare with ``torch.compile max-autotune``; None for what suits the target."""

    build_ahead: int | None = Field(default=None, ge=0, le=64)
    """Waiting kernels that a GPU worker has built while another is measured; None for what suits the target."""

    cuda_builder: Literal["nvrtc", "nvcc"] = "nvrtc"
    """Compiler of a GPU worker: NVRTC, or a toolkit's nvcc, which has the headers of the host too."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["console", "json"] = "console"
    traces: Literal["off", "otlp"] = "off"
    """Destination of spans: none, or to the collector of ``OTEL_EXPORTER_OTLP_ENDPOINT``."""
    health_file: str | None = None
    """File for the sign of progress of scheduler, workers and webhooks, one a process."""
    health_seconds: float = Field(default=120.0, gt=0)
    """Above the longest round of a loop: a few statements that each run into their 30 s limit."""
    metrics_token: SecretStr | None = None
    """Bearer token of ``/metrics``; without one it is open in development and absent in production."""
    metrics_seconds: float = Field(default=5.0, gt=0)
    """Largest age in seconds of the database snapshot behind ``/metrics``."""
    team_model_usd: float | None = Field(default=None, ge=0)
    """Default limit of a team's spending on models in a period; None for no limit."""
    team_model_period: Literal["day", "week", "month"] = "month"

    work_dir: str = ".cupilot/work"
    """Scratch, build cache and measured peaks of a GPU worker."""

    @field_validator("database_url")
    @classmethod
    def _database_is_postgres(cls, url: SecretStr) -> SecretStr:
        """Name the driver, which addresses that others hand out leave open."""
        scheme, separator, rest = url.get_secret_value().partition("://")
        if not separator or scheme not in ("postgres", "postgresql", DRIVER):
            raise ValueError(f"is no address of Postgres; write {DRIVER}://USER:PASSWORD@HOST:5432/DATABASE")
        return SecretStr(f"{DRIVER}://{rest}")

    @field_validator("redis_url")
    @classmethod
    def _broker_is_redis(cls, url: SecretStr) -> SecretStr:
        if url.get_secret_value().partition("://")[0] not in ("redis", "rediss"):
            raise ValueError("is no address of Redis; write redis://:PASSWORD@HOST:6379/0, or rediss:// with TLS")
        return url

    @field_validator("trusted_proxies")
    @classmethod
    def _proxies_are_networks(cls, text: str) -> str:
        text = EVERYBODY if text.strip() == "*" else text
        networks(text)
        return text

    @field_validator("webhook_networks")
    @classmethod
    def _networks_are_networks(cls, text: str) -> str:
        networks(text)
        return text

    @model_validator(mode="after")
    def _provider_is_whole(self) -> Settings:
        if (self.oidc_issuer is None) != (self.oidc_client_id is None):
            raise ValueError("CUPILOT_OIDC_ISSUER and CUPILOT_OIDC_CLIENT_ID go together")
        return self

    @model_validator(mode="after")
    def _safe_in_production(self) -> Settings:
        wrong = unsafe(self) if self.environment == "production" else []
        if wrong:
            raise ValueError(f"production refuses to start: {'; '.join(wrong)}")
        return self


@cache
def settings() -> Settings:
    """Return the settings of this process, read from its environment once.

    :class:`WrongSettings` names all that is wrong.
    """
    try:
        return Settings()
    except ValidationError as error:
        raise WrongSettings(_sentence(error), hint="docs/configuration.md has all of them") from None


def _sentence(error: ValidationError) -> str:
    """Describe what is wrong, by variables and without their values."""
    sentences = []
    for mistake in error.errors(include_url=False, include_input=False):
        name = "_".join(str(part) for part in mistake["loc"]).upper()
        reason = mistake["msg"].removeprefix("Value error, ")
        sentences.append(f"CUPILOT_{name}: {reason}" if name else reason)
    return "; ".join(sentences)
