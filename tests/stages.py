"""Limits of the judge's stages."""

from __future__ import annotations

import pytest

from gpu_worker.judge_process import _Deadline
from gpu_worker.messages.judge import StageBegun


def shorten(monkeypatch: pytest.MonkeyPatch, *stages: str, seconds: float) -> None:
    """Give these stages of the judge less time; processes may start as slowly as they like."""
    enter = _Deadline.enter

    def shortened(deadline: _Deadline, event: StageBegun) -> None:
        enter(deadline, event.model_copy(update={"limit": seconds}) if event.name in stages else event)

    monkeypatch.setattr(_Deadline, "enter", shortened)
