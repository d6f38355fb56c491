"""``python -m api``: serve on ``CUPILOT_API_HOST`` and ``CUPILOT_API_PORT``. Everything is set by the environment."""

from __future__ import annotations

import argparse
import os
import sys

import uvicorn

from api.app import create_app
from api.serving import server_config
from cupilot.domain.errors import CupilotError
from cupilot.logs import set_up_logs
from cupilot.production import check_environment
from cupilot.settings import settings
from cupilot.tracing import set_up_tracing


def main() -> int:
    """Serve until a signal says stop; return the exit status."""
    try:
        config = settings()
        if config.environment == "production":
            check_environment("the API", os.environ)
    except CupilotError as error:
        sys.stderr.write(f"{error.message}\n{error.hint}\n")
        return 1
    secrets = (config.database_url.get_secret_value(), config.redis_url.get_secret_value())
    set_up_logs(config.log_level, config.log_format, secrets)
    set_up_tracing(config.traces, "api")
    uvicorn.Server(server_config(create_app(config), config)).run()
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m api", description=__doc__, epilog="docs/configuration.md").parse_args()
    sys.exit(main())
