"""Logging of the workers' processes, by the settings."""

from __future__ import annotations

from cupilot import logs
from cupilot.settings import settings


def set_up_logs() -> None:
    """Set up logging; call it in every process of a worker, before anything else logs."""
    config = settings()
    secrets = (config.database_url.get_secret_value(), config.redis_url.get_secret_value())
    logs.set_up_logs(config.log_level, config.log_format, secrets)
