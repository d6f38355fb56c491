"""Word what was noted about a problem when it was prepared."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cupilot.domain.evaluation import Preparation
    from cupilot.schemas import PreparationSummary

_LAW = re.compile(r"^law (?=\w)")


def preparation_notes(preparation: Preparation | PreparationSummary | None) -> list[str]:
    """Return the notes as people read them, to whom a law is an input distribution; none before the preparation."""
    return [_LAW.sub("input distribution ", note) for note in preparation.notes] if preparation is not None else []


def remarks(preparation: Preparation) -> str:
    """Return warnings and notes as Markdown."""
    paragraphs = [f"**Warning**: {warning}." for warning in preparation.warnings]
    paragraphs += [f"- {note}" for note in preparation_notes(preparation)]
    return "\n".join(paragraphs)
