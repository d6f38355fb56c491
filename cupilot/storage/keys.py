"""Make and revoke API keys directly in the database, for those who run the service.

    python -m cupilot.storage.keys bootstrap ann                    the first cluster admin, and a key for her
    python -m cupilot.storage.keys create TEAM NAME --role member   a service account of a team, and a key for it
    python -m cupilot.storage.keys revoke cpk_12345678

Keys expire after 90 days, or as ``--days`` says, and over REST make none that expires later. Everything else about
people is done over REST with the first admin's key. The embedded stack makes its own, which does not expire: nobody
else could let its owner in again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cupilot.domain.errors import CupilotError
from cupilot.domain.people import Role, Scope
from cupilot.storage.db.changes import changes, watch
from cupilot.storage.db.engine import Database, database
from cupilot.storage.db.tables.people import ApiKey, User
from cupilot.storage.people.audit import add_own_entry
from cupilot.storage.people.teams import create_api_key, ensure_account, ensure_team, ensure_user, set_role

OPERATORS = "operators"
"""The team that a first cluster admin's key is for, where none is named."""
DAYS, MOST_DAYS = 90.0, 3_650.0
"""Until a key expires, where nothing else is said and at most: as over REST."""


def main(arguments: Sequence[str] | None = None, opened: Database | None = None) -> int:
    """Run the command line on the settings' database, or on an opened one; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options, opened or database())
    except CupilotError as error:
        sys.stderr.write(f"{error.message}\n{error.hint or ''}\n")
        return 1


def _run(options: argparse.Namespace, opened: Database) -> int:
    command = {"bootstrap": _bootstrap, "create": _create, "revoke": _revoke}[options.command]
    with opened.transaction() as session:
        watch(session)
        status = command(session, options)
        if status == 0:
            about = options.prefix if options.command == "revoke" else options.team
            add_own_entry(session, "operator", "COMMAND", f"keys {options.command}", about, changes=changes(session))
    return status


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m cupilot.storage.keys", description=__doc__, formatter_class=formatter)
    commands = parser.add_subparsers(dest="command", required=True)
    bootstrap = commands.add_parser("bootstrap", help="make the first cluster admin and print a key")
    bootstrap.add_argument("user")
    bootstrap.add_argument("--team", default=OPERATORS, help="the key's team; created if it does not exist")
    bootstrap.add_argument(
        "--again", action="store_true", help="also if there is a cluster admin, for example because all keys are lost"
    )
    create = commands.add_parser("create", help="print a new key of a team; the team is created if it does not exist")
    create.add_argument("team")
    create.add_argument("name", help="what the key is for; the name of its service account")
    create.add_argument("--role", choices=[role.value for role in Role], default=Role.MEMBER.value)
    create.add_argument(
        "--scope",
        choices=[scope.value for scope in Scope],
        help="what the key may be used for, even if the role changes later (default: all that the role may do)",
    )
    for command in (bootstrap, create):
        command.add_argument(
            "--days", type=_lifetime, default=str(DAYS), help="until the key expires; 0 for never (90)"
        )
    commands.add_parser("revoke", help="revoke a key").add_argument("prefix", help="its start: cpk_12345678")
    return parser


def _lifetime(days: str) -> timedelta | None:
    lifetime = float(days)
    if not 0 <= lifetime <= MOST_DAYS:
        raise argparse.ArgumentTypeError(f"not between 0 and {MOST_DAYS:.0f}: {days}")
    return timedelta(days=lifetime) if lifetime else None


def _bootstrap(session: Session, options: argparse.Namespace) -> int:
    active = select(User.name).where(User.cluster_admin, User.disabled_at.is_(None))
    admin = session.scalars(active.order_by(User.created_at)).first()
    if admin is not None and not options.again:
        sys.stderr.write(f"there is a cluster admin already: {admin}; --again makes another one\n")
        return 1
    team, user = ensure_team(session, options.team), ensure_user(session, options.user)
    user.cluster_admin, user.disabled_at = True, None
    set_role(session, team, user, Role.ADMIN)
    _, secret = create_api_key(session, team, "bootstrap", user=user, lifetime=options.days)
    sys.stdout.write(f"{secret}\n")
    return 0


def _create(session: Session, options: argparse.Namespace) -> int:
    team = ensure_team(session, options.team)
    account = ensure_account(session, options.name, team)
    set_role(session, team, account, Role(options.role))
    scope = (
        Scope(options.scope) if options.scope else next(scope for scope in Scope if scope.role is Role(options.role))
    )
    _, secret = create_api_key(session, team, options.name, user=account, scope=scope, lifetime=options.days)
    sys.stdout.write(f"{secret}\n")
    return 0


def _revoke(session: Session, options: argparse.Namespace) -> int:
    key = session.scalars(select(ApiKey).where(ApiKey.prefix == options.prefix)).one_or_none()
    if key is None:
        sys.stderr.write(f"no key begins with {options.prefix}\n")
        return 1
    key.revoked_at = func.now()
    return 0


if __name__ == "__main__":
    sys.exit(main())
