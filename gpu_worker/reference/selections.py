"""Finds what index outputs (``argmax``, ``topk`` and their kin) select from, by watching a forward pass in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from gpu_worker.judge.copies import shortened
from gpu_worker.judge.deviation import Selection, stretches
from gpu_worker.judge.refusal import out_of_memory
from gpu_worker.reference.watching import ForwardWatch

Found = tuple[torch.Tensor, Selection]
"""Indices, and what they select from."""


class SelectionWatch(ForwardWatch):  # type: ignore[no-untyped-call]  # torch's own
    """Remembers the selecting calls of a forward pass, and their indices in other types."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[tuple[torch.Tensor, Selection, int | None]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        overload = str(func).removeprefix("aten.")
        name = overload.partition(".")[0]
        read = _SELECTING.get(overload) or _SELECTING.get(name)
        if name == "_to_copy":
            self._seen += [(result, *rest) for index, *rest in self._seen if _same(index, args[0])]
        elif read is not None and (found := read(result, args, kwargs)) is not None:
            index, selection = found
            self._seen.append((index, selection, _version(selection.values)))
        return result

    def selection(self, output: torch.Tensor) -> Selection | None:
        """Return what this output selects from; None for one that holds no indices, or where that was changed since."""
        if output.is_floating_point():
            return None
        for index, selection, version in self._seen:
            if _same(index, output):
                return selection if version is not None and version == _version(selection.values) else None
        return None


class OrderedTies(ForwardWatch):  # type: ignore[no-untyped-call]  # torch's own
    """Makes selecting calls take the first of equal elements first, or the last: PyTorch's own order is any."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self._last = last

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        overload = str(func).removeprefix("aten.")
        name = overload.partition(".")[0]
        read = _SELECTING.get(overload) or _SELECTING.get(name)
        result = func(*args, **kwargs)
        found = None if read is None or args[0].dim() == 0 else read(result, args, kwargs)
        if read is None or found is None or found[1].running:  # also of a stable sort, whose order is its own
            return result
        dim = found[1].dim
        source = args[0].flip(tuple(range(args[0].dim())) if dim is None else (dim,)) if self._last else args[0]
        if name in ("sort", "topk"):
            falling = _argument(args, kwargs, *((2, "descending", False) if name == "sort" else (3, "largest", True)))
            ordered = source.sort(dim=dim, descending=falling, stable=True)
            result = tuple(part.narrow(dim, 0, whole.shape[dim]) for part, whole in zip(ordered, result, strict=True))
        else:
            result = func(source, *args[1:], **kwargs)
        if self._last:
            index = result if isinstance(result, torch.Tensor) else result[1]
            index.neg_().add_((source.numel() if dim is None else source.shape[dim]) - 1)
        return result


def with_errors(
    exact: Sequence[Selection | None], run: Callable[[], Sequence[torch.Tensor]], free_memory: Callable[[], None]
) -> list[Selection | None]:
    """Return what an exact pass selected from, shortened, with PyTorch's own errors in it, of a pass under the policy.

    Where memory is too short for that pass, errors are left at 0.
    """
    watch = SelectionWatch()
    try:
        with watch:
            own = [watch.selection(tensor) for tensor in run()]
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        free_memory()
        own = [None for _ in exact]
    return [mine and _with_error(mine, its) for mine, its in zip(exact, own, strict=True)]


def _with_error(exact: Selection, own: Selection | None) -> Selection:
    error = 0.0
    if own is not None and own.values.shape == exact.values.shape and exact.values.is_floating_point():
        parts = zip(stretches(exact.values), stretches(own.values), strict=True)
        error = max((float((its - mine).abs().nan_to_num(0.0, 0.0, 0.0).max()) for mine, its in parts), default=0.0)
    return replace(exact, values=shortened(exact.values), error=error)


def _extreme(result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Found:
    """Read ``argmax(x, dim, keepdim)``, ``max(x, dim, keepdim)`` and ``median(x, dim, keepdim)``."""
    index = result if isinstance(result, torch.Tensor) else result[1]
    dim, keepdim = _argument(args, kwargs, 1, "dim", None), _argument(args, kwargs, 2, "keepdim", False)
    return index, Selection(args[0], dim, bool(keepdim))


def _ranked(result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Found:
    """Read ``kthvalue(x, k, dim, keepdim)``."""
    dim, keepdim = _argument(args, kwargs, 2, "dim", -1), _argument(args, kwargs, 3, "keepdim", False)
    return result[1], Selection(args[0], dim, bool(keepdim))


def _several(result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Found:
    """Read ``topk(x, k, dim)``."""
    return result[1], Selection(args[0], _argument(args, kwargs, 2, "dim", -1), keepdim=True, distinct=True)


def _sorted(result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Found | None:
    """Read ``sort(x, dim)``; of a stable one, equal elements have an order of their own."""
    if kwargs.get("stable"):
        return None
    return result[1], Selection(args[0], _argument(args, kwargs, 1, "dim", -1), keepdim=True, distinct=True)


def _running(result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Found:
    """Read ``cummax(x, dim)`` and ``cummin(x, dim)``."""
    return result[1], Selection(args[0], _argument(args, kwargs, 1, "dim", -1), keepdim=True, running=True)


_SELECTING: Mapping[str, Callable[[Any, Sequence[Any], Mapping[str, Any]], Found | None]] = {
    "argmax": _extreme,
    "argmin": _extreme,
    "max.dim": _extreme,
    "min.dim": _extreme,
    "median.dim": _extreme,
    "kthvalue": _ranked,
    "topk": _several,
    "cummax": _running,
    "cummin": _running,
    "sort": _sorted,
}
"""Overload, or name of all overloads."""


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)


def _version(tensor: torch.Tensor) -> int | None:
    """Return how often a tensor was changed in place; None where PyTorch does not count it."""
    return None if tensor.is_inference() else tensor._version


def _same(index: torch.Tensor, output: torch.Tensor) -> bool:
    return index.data_ptr() == output.data_ptr() and index.shape == output.shape
