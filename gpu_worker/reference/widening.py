"""Runs of a reference in float64, where its own casts to narrower floats can be left out.

For references that do not run in float64 with these casts, as code for bfloat16 that names the type and multiplies
matrices. Casts to eight bits stay: these are what such a reference computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gpu_worker.judge.deviation import unit_of
from gpu_worker.reference.watching import ForwardWatch

NEAR = 0.05
"""Root mean square of the differences between answers with and without casts, in units of the output, up to which the
casts round and nothing else: those of bfloat16 cost 0.004 of a value each."""

_NARROWER = (torch.float32, torch.float16, torch.bfloat16)


class Widened(ForwardWatch):  # type: ignore[no-untyped-call]  # torch's own
    """Gives results in float64 where a call asks for a narrower float."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.view.dtype:
            raise RuntimeError("the reference reads bits of its tensors, which float64 has others of")
        given = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(_wide, args), **given)


def _wide(value: Any) -> Any:
    return torch.float64 if value in _NARROWER and isinstance(value, torch.dtype) else value


def near(exact: Sequence[torch.Tensor], rounded: Sequence[torch.Tensor]) -> bool:
    """Return whether answers differ by roundings only; of whole numbers that is not known."""
    for wide, narrow in zip(exact, rounded, strict=True):
        if not wide.is_floating_point() or wide.shape != narrow.shape or not wide.isfinite().all():
            return False
        if not (wide - narrow).square().mean().sqrt() <= NEAR * unit_of(narrow).spread:
            return False
    return True


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make a type that of floats for which none is named."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
