"""Errors of the server that a transaction raises as unavailable, which callers wait out."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from cupilot.domain.errors import Unavailable
from cupilot.storage.db.engine import Database

pytestmark = pytest.mark.service


def test_a_read_only_server_is_unavailable(database: Database) -> None:
    with pytest.raises(Unavailable, match="read-only"), database.transaction() as session:
        session.execute(text("SET TRANSACTION READ ONLY; DELETE FROM drains"))


def test_an_error_of_ours_is_not_taken_for_an_absence(database: Database) -> None:
    with pytest.raises(ProgrammingError), database.transaction() as session:
        session.execute(text("SELECT * FROM nothing_of_this_name"))
