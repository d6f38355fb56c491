"""Limits of the judge's stages."""

from __future__ import annotations

from collections.abc import Callable

from gpu_worker.judge_process import _Deadline
from gpu_worker.messages.judge import StageBegun


def shorten(replace: Callable[[type, str, object], None], *stages: str, seconds: float) -> None:
    """Give these stages of the judge less time; processes may start as slowly as they like."""
    enter = _Deadline.enter

    def shortened(deadline: _Deadline, event: StageBegun) -> None:
        enter(deadline, event.model_copy(update={"limit": seconds}) if event.name in stages else event)

    replace(_Deadline, "enter", shortened)
