"""Keys of a service that people run themselves: ``python -m cupilot.storage.keys create TEAM NAME | revoke PREFIX``.

For whoever may reach the database; the REST API hands out no keys. The embedded stack makes its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sqlalchemy import func, select

from cupilot.storage.database import Database, database
from cupilot.storage.tables import ApiKey
from cupilot.storage.teams import create_api_key, ensure_team


def main(arguments: Sequence[str] | None = None, opened: Database | None = None) -> int:
    """Run the command line on the settings' database, or on an opened one; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m cupilot.storage.keys", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    create = commands.add_parser("create", help="print a new key of a team, which is made where there is none")
    create.add_argument("team")
    create.add_argument("name", help="what the key is for")
    commands.add_parser("revoke", help="refuse a key from now on").add_argument(
        "prefix", help="its start: cpk_12345678"
    )
    given = parser.parse_args(arguments)
    with (opened or database()).transaction() as session:
        if given.command == "create":
            _, secret = create_api_key(session, ensure_team(session, given.team), given.name)
            sys.stdout.write(f"{secret}\n")
            return 0
        key = session.scalars(select(ApiKey).where(ApiKey.prefix == given.prefix)).one_or_none()
        if key is None:
            sys.stderr.write(f"no key begins with {given.prefix}\n")
            return 1
        key.revoked_at = func.now()
        return 0


if __name__ == "__main__":
    sys.exit(main())
