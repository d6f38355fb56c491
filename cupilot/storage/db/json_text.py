"""Write JSON that Postgres accepts: JSONB takes neither infinite numbers nor all characters of messages."""

from __future__ import annotations

import json
import math
from typing import Any


def to_json(value: Any) -> str:
    """Return JSON of ``value``. A number that is not finite becomes ``"Infinity"``, ``"-Infinity"`` or ``"NaN"``, which
    pydantic reads as a float again; U+0000 and lone surrogates become U+FFFD.
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_storable(value), allow_nan=False)
    # Only these escapes can stand for what Postgres refuses; most documents have none and are not walked.
    return json.dumps(_storable(value)) if "\\u0000" in text or "\\ud" in text else text


def _storable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value
