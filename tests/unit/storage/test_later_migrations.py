"""Migrations from 0020 on: code from before them goes on writing rows while they are there already."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

VERSIONS = Path(__file__).parents[3] / "migrations/versions"
HELD_FROM = "0020"


def demands(source: str) -> list[str]:
    """What ``upgrade`` demands of existing tables' rows that older code does not write: NOT NULL without a default."""
    (upgrade,) = [one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef) and one.name == "upgrade"]
    calls = [one for one in ast.walk(upgrade) if isinstance(one, ast.Call)]
    return [ast.unparse(call) for call in calls if _called(call) in ("add_column", "alter_column") and _demands(call)]


def _demands(call: ast.Call) -> bool:
    columns = [one for one in call.args if isinstance(one, ast.Call) and _called(one) == "Column"]
    return any(_obligatory(one) for one in (call, *columns))


def _obligatory(call: ast.Call) -> bool:
    given = {word.arg: ast.unparse(word.value) for word in call.keywords}
    return given.get("nullable") == "False" and given.get("server_default", "None") == "None"


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)


def test_later_migrations_demand_nothing_that_older_code_does_not_write() -> None:
    later = [path for path in VERSIONS.glob("[0-9]*.py") if path.name >= HELD_FROM]
    assert {path.name: demands(path.read_text()) for path in later if demands(path.read_text())} == {}


@pytest.mark.parametrize("number", ["0008", "0013"])
def test_the_earlier_ones_that_did_are_seen(number: str) -> None:
    (path,) = VERSIONS.glob(f"{number}_*.py")
    assert demands(path.read_text())


@pytest.mark.parametrize(
    ("change", "demanding"),
    [
        ("op.add_column('jobs', sa.Column('x', sa.Text(), nullable=False))", True),
        ("op.add_column('jobs', sa.Column('x', sa.Text(), nullable=False, server_default=None))", True),
        ("op.add_column('jobs', sa.Column('x', sa.Text(), nullable=False, server_default=''))", False),
        ("op.add_column('jobs', sa.Column('x', sa.Text(), nullable=True))", False),
        ("op.alter_column('jobs', 'x', nullable=False)", True),
        ("op.alter_column('jobs', 'x', nullable=True)", False),
        ("op.create_table('new', sa.Column('x', sa.Text(), nullable=False))", False),
    ],
)
def test_what_is_demanded(change: str, demanding: bool) -> None:
    assert bool(demands(f"def upgrade():\n    {change}\n\n\ndef downgrade():\n    pass\n")) is demanding
