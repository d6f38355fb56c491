"""Check that an object is one that Kubernetes' API accepts: known fields of the right types, none missing.

Goes by the models of the official client, generated from the API's own description. It is installed with Chroma.
"""

from __future__ import annotations

from typing import Any

from kubernetes import client
from pydantic import ValidationError

BUILT_IN = {"v1", "apps/v1", "batch/v1", "networking.k8s.io/v1", "policy/v1"}
_QUANTITIES = {"limits", "requests"}


def problems(found: dict[str, Any]) -> list[str]:
    """Return the faults of an object of a built-in kind, with its place."""
    assert found["apiVersion"] in BUILT_IN
    try:
        getattr(client, f"V1{found['kind']}").model_validate(_with_text_quantities(found))
    except ValidationError as error:
        return [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
    return []


def _with_text_quantities(value: Any) -> Any:
    """The API takes numbers for quantities; the client's models do not."""
    if isinstance(value, dict):
        return {
            name: {key: str(amount) for key, amount in inner.items()}
            if name in _QUANTITIES and isinstance(inner, dict)
            else _with_text_quantities(inner)
            for name, inner in value.items()
        }
    return [_with_text_quantities(item) for item in value] if isinstance(value, list) else value
