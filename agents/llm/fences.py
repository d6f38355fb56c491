"""Fenced blocks in models' answers, and the prose around them, in time in proportion to the answer's length."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(
    r"(?<!`)(?P<mark>`{3,}+|^~{3,}+)[ \t]*(?P<language>[A-Za-z0-9+#]*)[^\n`]*\n"
    r"(?P<body>.*?)(?:(?P<end>(?P=mark))|\Z)",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    """In lower case; empty where the fence names none."""
    body: str
    closed: bool
    """False of a last block that goes on to the end of the answer: it may have been cut off."""


def blocks(text: str) -> list[Block]:
    """Return the blocks of an answer, in order, without empty ones."""
    return [
        Block(match["language"].lower(), match["body"], closed=match["end"] is not None)
        for match in _FENCE.finditer(text)
        if match["body"].strip()
    ]


def prose(text: str) -> str:
    """Return the answer with each block emptied."""
    return _FENCE.sub("```\n```", text)
