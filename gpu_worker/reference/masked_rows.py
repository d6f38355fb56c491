"""Rows that a mask selects, as all rows beside the mask: how many are selected, no graph can say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor
aten = torch.ops.aten


SELECTING = frozenset({"index", "masked_select", "nonzero"})
"""Calls that may select rows by a mask."""


@dataclass(frozen=True)
class Masked:
    """All rows that a tensor of selected rows stands for."""

    whole: Tensor
    mask: Tensor
    """One truth value a row."""
    axis: int
    """The axis of the rows, which is not negative."""
    key: object
    """Equal for masks of the same values."""
    origin: tuple[str, tuple[Any, ...]]
    """The call that selected, and its arguments, as they would be recorded."""

    def filled(self, value: float | bool) -> Tensor:
        """Return all rows, with a number in place of those that are not selected."""
        return torch.where(beside(self.mask, self.axis, self.whole.dim()), self.whole, value)

    def places(self) -> Tensor:
        """Return whole numbers, such as indices, with 0 in place of those that are not selected."""
        return self.filled(0)


class Unfollowed(Exception):
    """A call on selected rows, or a variant of one, that cannot be made of all rows."""


@dataclass(frozen=True)
class Rows:
    """A result of a call on all rows, and the axis of its rows; None where it has none."""

    value: Tensor
    axis: int | None
    mask: Tensor | None = None
    """Set where it is another than the arguments'."""
    key: object = None


@dataclass
class Step:
    """One call, its arguments by name, and which of them are selected rows."""

    func: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    named: dict[str, Any]
    rows: Callable[[Any], Masked | None]
    key_of: Callable[[Tensor], object]
    """Equal for masks of the same values."""
    first: Masked
    """The first of its arguments that is."""

    @property
    def name(self) -> str:
        """Name of the call without its overload, as ``add_``."""
        return str(self.func._overloadpacket.__name__)

    def of(self, name: str) -> Masked | None:
        """Return an argument as selected rows; None where it is none."""
        return self.rows(self.named.get(name))

    def only(self, *names: str) -> None:
        """Refuse selected rows in other arguments than these."""
        if any(any_rows(self.rows, value) for name, value in self.named.items() if name not in names):
            raise Unfollowed

    def again(self, replaced: Callable[[Masked], Any] = lambda item: item.whole, **named: Any) -> Any:
        """Make the call, with all rows in place of selected ones, and with other arguments by name."""
        arguments = self.func._schema.arguments
        args, kwargs = [], {}
        for argument in arguments:
            value = named.get(argument.name, replaced_in(self, self.named[argument.name], replaced))
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        return self.func(*args, **kwargs)


def any_rows(rows: Callable[[Any], Masked | None], value: Any) -> bool:
    """Return whether a value is, or a list has, a tensor of selected rows."""
    if isinstance(value, list | tuple):
        return any(any_rows(rows, item) for item in value)
    return rows(value) is not None


def replaced_in(step: Step, value: Any, change: Callable[[Masked], Any]) -> Any:
    """Return a value, or a list, with what ``change`` gives for tensors of selected rows."""
    if isinstance(value, list | tuple):
        return [replaced_in(step, item, change) for item in value]
    rows = step.rows(value)
    return value if rows is None else change(rows)


def beside(mask: Tensor, axis: int, rank: int) -> Tensor:
    """Return a mask of rows in a shape that is broadcast to the rows."""
    return mask.reshape(*(-1 if place == axis else 1 for place in range(rank)))


def selected(func: Any, args: Sequence[Any]) -> Selected | None:
    """Return what a call selects; None for a call that does not select by a mask."""
    name = func._overloadpacket.__name__
    if name == "masked_select":
        values, mask = args[:2]
        if values.shape != mask.shape:
            shape = torch.broadcast_shapes(values.shape, mask.shape)  # type: ignore[no-untyped-call]
            values, mask = values.expand(shape), mask.expand(shape)
        return Selected(values, mask, 0)
    if name == "nonzero" and args[0].dim():
        places, own = torch.arange(args[0].numel(), device=args[0].device), []
        for size in reversed(args[0].shape):
            own.append(places % size)
            places = places // size
        return Selected(torch.stack(own[::-1], 1).reshape(*args[0].shape, -1), args[0], 0)
    if name != "index":
        return None
    masks = [(axis, item) for axis, item in enumerate(args[1]) if item is not None]
    if len(masks) != 1 or masks[0][1].dtype not in (torch.bool, torch.uint8) or not masks[0][1].dim():
        return None
    axis, mask = masks[0]
    return Selected(args[0], mask, axis)


@dataclass(frozen=True)
class Selected:
    """A tensor, a mask, and the first axis that the mask is along."""

    values: Tensor
    mask: Tensor
    axis: int

    def rows(self, within: Callable[[Any], Masked | None], key_of: Callable[[Tensor], object], origin: Any) -> Masked:
        """Return all rows, copied: what is written to the tensor later does not change what was selected."""
        outer, inner = within(self.values), within(self.mask)
        if outer is None and inner is None:
            values = aten.slice(self.values)  # of which a graph does not claim that it is read whole
            whole = values.flatten(self.axis, self.axis + self.mask.dim() - 1).clone()
            return Masked(whole, self.mask.reshape(-1) != 0, self.axis, key_of(self.mask), origin)
        if outer is None or inner is None or outer.key != inner.key or self.mask.dim() > 1 or outer.axis != self.axis:
            raise Unfollowed
        mask = outer.mask & (inner.whole != 0)
        return Masked(outer.whole.clone(), mask, self.axis, ("within", outer.key, key_of(inner.whole)), origin)
