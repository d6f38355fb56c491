"""Orders to the judge: whose fault it is that time was up, or that a device does not work any more."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cupilot.domain.evaluation import Failure, FailureKind
from gpu_worker import judging
from gpu_worker.judge_process import JudgeTimeout
from gpu_worker.judging import Judging
from gpu_worker.messages.judge import Judged, VerificationResult
from gpu_worker.stages import Call


class Warm:
    """A warm judge that opens a problem in so many seconds, and then does one thing."""

    def __init__(self, opening: float, judged: Judged | Exception) -> None:
        self._opening = opening
        self._judged = judged

    def open(self, *_: Any) -> None:
        time.sleep(self._opening)

    def judge(self, *_: Any) -> Judged:
        if isinstance(self._judged, Exception):
            raise self._judged
        return self._judged

    def close(self) -> None:
        pass


class Host:
    """A machine whose device works, or does not."""

    def __init__(self, works: bool) -> None:
        self._works = works

    def healthy(self) -> bool:
        return self._works


class Anything:
    def __getattr__(self, name: str) -> Any:
        return self

    def model_copy(self, **_: Any) -> Anything:
        return self


@pytest.fixture(autouse=True)
def _no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "order_of", lambda *_: Anything())


def stages(opening: float, judged: Judged | Exception, *, works: bool = True) -> Judging:
    return Judging(Host(works), Warm(opening, judged), compile_baseline=False, autotune=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("opening", "overall", "kind"),
    [
        (1.1, True, FailureKind.INFRASTRUCTURE),
        (0.0, True, FailureKind.TIMEOUT),
        (1.1, False, FailureKind.TIMEOUT),
    ],
)
def test_a_kernel_is_not_blamed_for_the_time_that_opening_its_problem_took(
    opening: float, overall: bool, kind: FailureKind
) -> None:
    call = Call(time.monotonic() + 1.5, lambda: False, thorough=False)
    late = JudgeTimeout("auditing", 1.0, overall=overall)
    failure = stages(opening, late).judge(Anything(), Anything(), call).failure  # type: ignore[arg-type]
    assert failure is not None
    assert failure.kind is kind


def test_a_device_that_broke_is_looked_for_after_the_second_timing_too() -> None:
    fault = Judged(verification=VerificationResult(failure=Failure(kind=FailureKind.ILLEGAL_ACCESS, message="fault")))
    call = Call(time.monotonic() + 60, lambda: False, thorough=True)
    failure = stages(0.0, fault, works=False).confirm(Anything(), Anything(), call).repeated.failure  # type: ignore[arg-type]
    assert failure is not None
    assert failure.kind is FailureKind.INFRASTRUCTURE
