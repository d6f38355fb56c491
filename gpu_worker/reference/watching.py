"""The base of what watches the ATen calls of a forward pass."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class ForwardWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """A dispatch mode under which nothing is compiled."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: saying so imports torch's compiler, which takes a second."""
        return False
