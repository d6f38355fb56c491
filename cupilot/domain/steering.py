"""Directives by which a person steers a running job: what to keep, what to avoid, what to try. Pure values."""

from __future__ import annotations

from enum import StrEnum


class DirectiveKind(StrEnum):
    """Kind of demand that a directive makes on the job's evolution."""

    PIN = "pin"
    """A candidate survives every selection."""
    BAN = "ban"
    """A technique or a strategy is not proposed again."""
    INJECT = "inject"
    """A strategy, perhaps with its kernel, becomes a candidate of the next generation."""
