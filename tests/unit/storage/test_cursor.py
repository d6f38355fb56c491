"""Keyset cursors come back as they went, and nothing else is taken for one."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupilot.domain.errors import InvalidInput
from cupilot.storage.db.cursor import decode_cursor, encode_cursor

moments = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-3, minutes=-30))]))


@given(moments, st.uuids())
def test_a_cursor_comes_back_as_it_went(moment: datetime, row: UUID) -> None:
    cursor = encode_cursor(moment, row)
    assert decode_cursor(cursor) == (moment, row)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,200}", cursor)


@given(moments, st.uuids(), st.sampled_from([("", "oldest"), ("oldest", ""), ("oldest", "newest")]))
def test_a_cursor_is_bound_to_its_order(moment: datetime, row: UUID, orders: tuple[str, str]) -> None:
    cursor = encode_cursor(moment, row, orders[0])
    assert decode_cursor(cursor, orders[0]) == (moment, row)
    with pytest.raises(InvalidInput, match="another order"):
        decode_cursor(cursor, orders[1])


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_anything_else_is_refused_as_input(text: str) -> None:
    with suppress(InvalidInput):
        decode_cursor(text)
