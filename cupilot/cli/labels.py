"""Read labels as commands take them."""

from __future__ import annotations

from cupilot.domain.errors import InvalidInput


def parse_labels(texts: list[str] | None) -> dict[str, str]:
    """Return ``key=value`` texts as a mapping."""
    labels: dict[str, str] = {}
    for label in texts or []:
        key, equals, value = label.partition("=")
        if not equals or not key:
            raise InvalidInput(f"{label!r} is not a label", hint="a label looks like key=value", where="--label")
        labels[key] = value
    return labels
