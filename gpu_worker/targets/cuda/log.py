"""A compiler's log, cut to what a person or an agent can act on. Text only; runs nothing."""

from __future__ import annotations

_NOISE = (
    *("ptxas info", '"unit.cu": creating precompiled', '"unit.cu": using precompiled'),
    *("Compilation terminated", "compilation terminated"),
)
_ADVICE = "Potential Performance Loss"
"""Remark of ptxas where it makes warpgroup products wait for each other."""

MAX_CHARACTERS = 16_000
"""Limit of a build report. Not imported from there: pydantic would make every build 0.1 s longer."""

MAX_ERRORS = 20
"""More than this never helped anyone; the rest usually follow from the first."""


def digest(log: str) -> str:
    """Return the log without resource chatter, bounded to what a build report may hold; errors come first."""
    messages = _messages(log)
    if not messages:
        return ""
    import re  # most builds have no messages, and the module takes 8 ms to import

    error = re.compile(r"^[^\s(]+\(\d+\): (?:catastrophic )?error\b")
    errors = [message for message in messages if error.match(message)][:MAX_ERRORS]
    others = [message for message in messages if not error.match(message)]
    text = "\n".join([*errors, *others])
    if len(text) <= MAX_CHARACTERS:
        return text
    mark = "\n[cut]"
    return text[: MAX_CHARACTERS - len(mark)] + mark


def _messages(log: str) -> list[str]:
    """Return lines joined with the indented lines (source and caret) that belong to them."""
    messages: list[str] = []
    for line in log.replace("\0", "").splitlines():
        if not line.strip() or _noise(line):
            continue
        if line[0].isspace() and messages:
            messages[-1] += "\n" + line.rstrip()
        else:
            messages.append(line.rstrip())
    return messages


def _noise(line: str) -> bool:
    words = line.split()
    if line[0] == " ":
        return words[0].isdigit() and words[1:3] == ["bytes", "stack"]
    if words[0].isdigit():
        return words[1:3] in (["error", "detected"], ["errors", "detected"])
    return (line.startswith(_NOISE) and _ADVICE not in line) or words[:2] == ["ptxas", "."]
