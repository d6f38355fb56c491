"""``python -m migrations [upgrade | downgrade REVISION | revision MESSAGE]``; without arguments: upgrade to head."""

from __future__ import annotations

import argparse
import sys

from cupilot.domain.errors import CupilotError
from cupilot.logs import set_up_logs
from cupilot.settings import settings
from migrations import downgrade, new_revision, upgrade


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m migrations", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("upgrade", help="to the newest revision (the default)")
    commands.add_parser("downgrade", help="back to a revision, or to 'base'").add_argument("revision")
    commands.add_parser("revision", help="write a new revision from the tables").add_argument("message")
    arguments = parser.parse_args()
    try:
        config = settings()
        url = config.database_url.get_secret_value()
        set_up_logs(config.log_level, config.log_format, [url])
        _run(arguments, url)
    except CupilotError as error:
        sys.exit(f"{error.message}\n{error.hint}")


def _run(arguments: argparse.Namespace, url: str) -> None:
    if arguments.command == "downgrade":
        downgrade(url, arguments.revision)
    elif arguments.command == "revision":
        new_revision(url, arguments.message)
    else:
        upgrade(url)


if __name__ == "__main__":
    main()
