"""``python -m api``: serve on the settings' host and port."""

from __future__ import annotations

import logging

import uvicorn

from api.app import create_app
from cupilot.settings import settings


def main() -> None:
    """Serve until a signal says stop."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    config = settings()
    uvicorn.run(
        create_app(config),
        host=config.api_host,
        port=config.api_port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )


if __name__ == "__main__":
    main()
