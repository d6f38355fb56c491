"""The base of what watches the ATen calls of a forward pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class ForwardWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """A dispatch mode under which nothing is compiled."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: saying so imports torch's compiler, which takes a second."""
        return False


class OperatorClock(ForwardWatch):  # type: ignore[no-untyped-call]  # torch's own
    """Adds up the time of each ATen call, from an idle device to an idle device."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        super().__init__()
        self.seconds = 0.0
        self._synchronize = synchronize

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._synchronize()
        started = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        self._synchronize()
        self.seconds += time.perf_counter() - started
        return result
