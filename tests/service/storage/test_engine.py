"""Connections to a server that is away, read-only or gone, and the errors that callers wait out."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from cupilot.domain.errors import Unavailable
from cupilot.storage.db.engine import KEEPALIVES, TCP_USER_TIMEOUT_MS, Database

pytestmark = pytest.mark.service


def test_a_read_only_server_is_unavailable(database: Database) -> None:
    with pytest.raises(Unavailable, match="read-only"), database.transaction() as session:
        session.execute(text("SET TRANSACTION READ ONLY; DELETE FROM drains"))


def test_an_error_of_ours_is_not_taken_for_an_absence(database: Database) -> None:
    with pytest.raises(ProgrammingError), database.transaction() as session:
        session.execute(text("SELECT * FROM nothing_of_this_name"))


def test_a_host_that_vanishes_is_noticed_while_a_query_is_under_way(database: Database) -> None:
    """Keepalives are not sent while bytes wait for their acknowledgement: threads waited for minutes."""
    with database.transaction() as session:
        raw: Any = session.connection().connection.dbapi_connection
        with socket.socket(fileno=os.dup(raw.fileno())) as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == TCP_USER_TIMEOUT_MS


def test_a_host_that_vanishes_is_noticed_by_the_server_too(database: Database) -> None:
    """A lost scheduler's lock, and rows that a lost worker had locked, would be held for two hours, Linux' default."""
    with database.transaction() as session:
        shown = {name: session.scalar(text(f"SHOW tcp_keepalives_{name}")) for name in KEEPALIVES}
        assert shown == {name: str(value) for name, value in KEEPALIVES.items()}
        assert session.scalar(text("SHOW tcp_user_timeout")) == f"{TCP_USER_TIMEOUT_MS}"
