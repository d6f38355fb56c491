"""Keyset cursors: a position in a list as an opaque text."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from uuid import UUID

from cupilot.errors import InvalidInput


def encode_cursor(created_at: datetime, row: UUID, order: str = "") -> str:
    """A keyset position as an opaque, URL-safe text, bound to an ``order`` other than the list's usual one."""
    text = f"{created_at.isoformat()}|{row}" + (f"|{order}" if order else "")
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, order: str = "") -> tuple[datetime, UUID]:
    """The position that :func:`encode_cursor` wrote for this order; InvalidInput for anything else."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
        created_at, row, bound = [*text.split("|"), ""][:3]
        moment = datetime.fromisoformat(created_at)
        if moment.tzinfo is None:
            raise ValueError("a cursor's time has a zone")
        position = moment, UUID(row)
    except (ValueError, binascii.Error) as error:
        raise InvalidInput(
            "this is not a cursor of this service", hint="use next_cursor of the page before", where="query.cursor"
        ) from error
    if bound != order:
        raise InvalidInput(
            "the cursor is of a list in another order",
            hint="ask for the order of the page before, or begin without a cursor",
            where="query.cursor",
        )
    return position
