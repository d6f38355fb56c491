"""Name the field of a request that failed validation, as the request itself names it, and what is spelt like it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel

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


def unknown_field(annotation: Any, loc: Sequence[str | int]) -> str:
    """Return the message for a field that a request of this type does not have at ``loc``, with one that it may mean.

    That is one of nearly the same name beside it, else one of the same name further inside.
    """
    here = list(_models(annotation))
    for part in loc[:-1]:
        inside = [field for model in here if (field := model.model_fields.get(str(part))) is not None]
        if inside:  # else the place in a list, or the name of a member of a union
            here = [model for field in inside for model in _models(field.annotation)]
    name = str(loc[-1])
    beside = sorted({field for model in here for field in model.model_fields})
    near = get_close_matches(name, beside, n=1) or [path for model in here for path in _within(model, name)]
    if near:
        return f"unknown field; did you mean {near[0]}?"
    return f"unknown field; there are {', '.join(beside)}" if beside else "unknown field"


def _within(model: type[BaseModel], name: str) -> Iterator[str]:
    """Yield the paths of fields of this name in the model's own fields."""
    for field, info in model.model_fields.items():
        if any(name in inner.model_fields for inner in _models(info.annotation)):
            yield f"{field}.{name}"


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation: itself, members of a union, items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
