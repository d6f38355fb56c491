"""Defects of a model's answers, around the competent ones of :mod:`tests.service.method_models`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.scripted_model import Reply
from tests.service.method_models import competent

Script = Callable[[dict[str, Any]], Reply]

HANG_SECONDS = 4.0
"""Seconds for which a hanging server says nothing; the client must give up before."""

DRIP_SECONDS = 0.1
"""Between two bytes of a dripping server, far below any wait for the next byte: an answer of 300 bytes and more takes
half a minute, and only a bound on the whole try ends it."""

FAULTS: dict[str, Callable[[Reply], Reply]] = {
    "malformed JSON": lambda _: Reply(text='```json\n{"strategies": [{"techniques": [}\n```'),
    "prose around it": lambda good: Reply(text=f"Sure, here it is:\n\n{good.text}\n\nShall I explain it?"),
    "truncated": lambda good: Reply(text=(good.text or "")[:20], finish_reason="length"),
    "empty": lambda _: Reply(text=""),
    "no content": lambda _: Reply(text=None),
    "wrong schema": lambda _: Reply(text='{"strategies": [{"techniques": "all"}], "techniques": 1}'),
    "refusal": lambda _: Reply(text="I am sorry, but I cannot help with that."),
    "429 with Retry-After": lambda _: Reply(status=429, headers={"retry-after": "1"}),
    "500": lambda _: Reply(status=500),
    "no completion": lambda _: Reply(raw=b"<html>Bad gateway</html>"),
    "half-closed": lambda good: replace(good, hang_up=True),
    "hang": lambda good: replace(good, delay=HANG_SECONDS),
    "drip": lambda good: replace(good, drip=DRIP_SECONDS),
}
USABLE = {"prose around it"}
"""These are read all the same."""
SLOW = {"hang", "drip"}
"""They end when the client's patience does."""
UNANSWERED = {"429 with Retry-After", "500", "no completion", "half-closed", *SLOW}
"""Nothing comes back, or no whole answer; but for the first two, the provider may charge."""


def always(fault: str) -> Script:
    """Every answer has the fault."""
    return lambda request: FAULTS[fault](competent(request))


def at_first(faults: Sequence[str]) -> Script:
    """The first answer to each request has a fault, one after the other; asked again, it is as it should be."""
    asked: Counter[str] = Counter()

    def answer(request: dict[str, Any]) -> Reply:
        good = competent(request)
        key = json.dumps([request["messages"][1], request["seed"]])
        asked[key] += 1
        if asked[key] > 1 or len(request["messages"]) > 2:
            return good
        return FAULTS[faults[len(asked) % len(faults)]](good)

    return answer
