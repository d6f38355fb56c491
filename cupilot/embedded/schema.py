"""Migrate the database, then make the folder's API key valid in it: a one-shot process between servers and roles.

Run as ``python -m cupilot.embedded.schema KEY_FILE``. Knows no DDL: that is Alembic's, in ``migrations``.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

from cupilot.domain.people import Role, Scope
from cupilot.embedded.folder import write_private
from cupilot.embedded.launch import wait_for_gate
from cupilot.storage.db.engine import database
from cupilot.storage.people.teams import adopt_api_key, create_api_key, ensure_team, ensure_user, set_role

TEAM = "local"
USER = "local"
"""Whoever runs the stack: its cluster admin."""
KEY_NAME = "embedded stack"


def main() -> None:
    """Return when schema and key are in place; a failed migration ends the process with its own exit code."""
    key_file = Path(sys.argv[1])
    importlib.import_module("alembic.command")
    wait_for_gate()
    _migrate()
    _make_key_valid(key_file)


def _migrate() -> None:
    sys.argv = ["migrations"]
    try:
        runpy.run_module("migrations", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise


def _make_key_valid(key_file: Path) -> None:
    """Make a key where the folder has none; the folder's key survives a database that was made anew.

    Whatever was done to it or its user over REST is undone: who has the folder owns the stack, and needs a way in.
    """
    with database().transaction() as session:
        team, user = ensure_team(session, TEAM), ensure_user(session, USER)
        user.cluster_admin, user.disabled_at = True, None
        set_role(session, team, user, Role.ADMIN)
        if key_file.exists():
            # A key from before there were users belongs to an account of its own: it becomes this user's.
            key = adopt_api_key(session, team, KEY_NAME, key_file.read_text().strip(), user=user)
            key.user_id, key.scope, key.revoked_at, key.expires_at = user.id, Scope.ADMIN, None, None
        else:
            _, secret = create_api_key(session, team, KEY_NAME, user=user)
            write_private(key_file, secret + "\n")


if __name__ == "__main__":
    main()
