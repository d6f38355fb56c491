"""Bounds for data that a less trusted process sent: short lists, short strings, few bytes, at any depth."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel

from cupilot.domain.evaluation import MAX_LOG_CHARACTERS
from gpu_worker.channel import levels

MAX_ITEMS = 200
"""Of any list or object but the problem's facts. A problem has about 20 input distributions and null kernels."""

MAX_FACTS_BYTES = 2**18
"""Of the facts that a runner reports about its kernels, and of a failure's details, as JSON."""

_T = TypeVar("_T")


def modest(data: _T) -> _T:
    """Return the data, unless a list, an object or a string in it is long: then raise ValueError."""
    for values in levels(data):
        for value in values:
            if isinstance(value, str) and len(value) > MAX_LOG_CHARACTERS:
                raise ValueError(f"a string of {len(value)} characters")
            if isinstance(value, list | dict) and len(value) > MAX_ITEMS:
                raise ValueError(f"a list or an object of {len(value)} items")
    return data


def small(data: _T) -> _T:
    """Return the data, unless it has many bytes as JSON: then raise ValueError. Validated values pass."""
    if not isinstance(data, BaseModel) and len(json.dumps(data)) > MAX_FACTS_BYTES:
        raise ValueError(f"more than {MAX_FACTS_BYTES} bytes")
    return data


def is_bounded(data: Any) -> bool:
    """Return whether the supervisor accepts such data."""
    try:
        small(modest(data))
    except (ValueError, RecursionError):
        return False
    return True
