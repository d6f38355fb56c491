"""Keyset cursors: a position in a list as an opaque text, which rows added meanwhile do not move."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from cupilot.domain.errors import InvalidInput

T = TypeVar("T")

MOST = 2**53
"""The largest number in a key: it fits columns, and microseconds that are added to a time."""


def cut(rows: Sequence[T], limit: int | None, cursor_of: Callable[[T], str]) -> tuple[Sequence[T], str | None]:
    """Return a page of rows of which one more than ``limit`` was asked for, and the cursor where there is more."""
    page = rows[:limit]
    return page, cursor_of(page[-1]) if len(rows) > len(page) else None


def encode_key(listed: str, *key: str | float) -> str:
    """Return the key of a row by which ``listed``, a list in one order, is sorted."""
    return _packed(json.dumps([listed, *key], ensure_ascii=False))


def decode_key(cursor: str, listed: str, *kinds: type) -> tuple[Any, ...]:
    """Return what :func:`encode_key` wrote for this list, of these kinds; InvalidInput for anything else."""
    try:
        named, *key = json.loads(_unpacked(cursor))
        fits = [type(value) is kind for value, kind in zip(key, kinds, strict=True)]
        if not all(fits) or any("\0" in str(part) or (type(part) is int and abs(part) > MOST) for part in key):
            raise ValueError("not a key of this list")
    except (ValueError, TypeError) as error:
        raise _no_cursor() from error
    if named != listed:
        raise _other_list()
    return tuple(key)


def identifier(text: str) -> UUID:
    """Return the id in a decoded key; InvalidInput where it is none."""
    try:
        return UUID(text)
    except ValueError as error:
        raise _no_cursor() from error


def encode_cursor(created_at: datetime, row: UUID, order: str = "") -> str:
    """Return a keyset position as an opaque, URL-safe text, bound to an ``order`` other than the list's usual one."""
    text = f"{created_at.isoformat()}|{row}" + (f"|{order}" if order else "")
    return _packed(text)


def decode_cursor(cursor: str, order: str = "") -> tuple[datetime, UUID]:
    """Return the position that :func:`encode_cursor` wrote for this order; InvalidInput for anything else."""
    try:
        created_at, row, bound = [*_unpacked(cursor).split("|"), ""][:3]
        moment = datetime.fromisoformat(created_at)
        if moment.tzinfo is None:
            raise ValueError("a cursor's time has a zone")
        position = moment, UUID(row)
    except ValueError as error:
        raise _no_cursor() from error
    if bound != order:
        raise _other_list()
    return position


def _packed(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _unpacked(cursor: str) -> str:
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except binascii.Error as error:
        raise ValueError("not base64") from error


def _no_cursor() -> InvalidInput:
    return InvalidInput(
        "this is not a cursor of this service", hint="use next_cursor of the previous page", where="query.cursor"
    )


def _other_list() -> InvalidInput:
    return InvalidInput(
        "the cursor belongs to a list in another order",
        hint="use the order of the previous page, or start without a cursor",
        where="query.cursor",
    )
