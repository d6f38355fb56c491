"""A compiler's log, cut to what a person or an agent can act on. Text only; runs nothing."""

from __future__ import annotations

import re

_ERROR = re.compile(r"^[^\s(]+\(\d+\): (?:catastrophic )?error\b")
_NOISE = re.compile(
    r'^(ptxas info|ptxas +\. |"unit\.cu": (creating|using) precompiled|[Cc]ompilation terminated'
    r"| +\d+ bytes stack frame|\d+ errors? detected in)"
)
MAX_CHARACTERS = 16_000
"""What a build report holds. Not imported from there: pydantic would make every build 0.1 s longer."""

MAX_ERRORS = 20
"""More than this never helped anyone; the rest usually follow from the first."""


def digest(log: str) -> str:
    """The log without resource chatter, bounded to what a build report may hold; errors come first."""
    messages = _messages(log)
    errors = [message for message in messages if _ERROR.match(message)][:MAX_ERRORS]
    others = [message for message in messages if not _ERROR.match(message)]
    text = "\n".join([*errors, *others])
    if len(text) <= MAX_CHARACTERS:
        return text
    mark = "\n[cut]"
    return text[: MAX_CHARACTERS - len(mark)] + mark


def _messages(log: str) -> list[str]:
    """Lines joined with the indented lines (source and caret) that belong to them."""
    messages: list[str] = []
    for line in log.replace("\0", "").splitlines():
        if not line.strip() or _NOISE.match(line):
            continue
        if line[0].isspace() and messages:
            messages[-1] += "\n" + line.rstrip()
        else:
            messages.append(line.rstrip())
    return messages
