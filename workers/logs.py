"""Logs of the workers' processes, as the settings say."""

from __future__ import annotations

from cupilot import logs
from cupilot.settings import settings


def set_up_logs() -> None:
    """For every process of a worker, before anything else logs."""
    config = settings()
    secrets = (config.database_url.get_secret_value(), config.redis_url.get_secret_value())
    logs.set_up_logs(config.log_level, config.log_format, secrets)
