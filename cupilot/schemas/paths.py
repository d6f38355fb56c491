"""Name the field of a request that failed validation, as the request itself names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cupilot.domain.evolution.methods import CONFIGS


def field_path(problem: Mapping[str, Any]) -> str:
    """Return the path of a field, e.g. ``body.method.population``, for one of pydantic's errors.

    Pydantic puts the chosen method's name into the path, where the request has none (nor anything before it, where the
    method is checked alone), and points to the method itself where the name is unknown.
    """
    parts = list(problem["loc"])
    if not parts or parts[0] in CONFIGS:
        parts.insert(0, "method")
    named = {place for place in range(1, len(parts)) if parts[place - 1] == "method" and parts[place] in CONFIGS}
    kept = [str(part) for place, part in enumerate(parts) if place not in named]
    return ".".join([*kept, "name"] if problem["type"] == "union_tag_invalid" else kept)
