"""Where a process of the service can be made to die or to stand still: step boundaries, armed by files.

A harness arms a point by writing a file ``ROLE.POINT`` that says what is to happen; the first process of that role
that reaches the point takes the file away and does it. So each fault strikes exactly once, and the harness sees when.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum
from pathlib import Path

FOLDER = "CUPILOT_TEST_FAULTS"
"""Environment variable with the folder of the armed points."""


class Point(StrEnum):
    """Boundaries, in the order in which a process passes them."""

    BEFORE_CLAIM = "before-claim"
    AFTER_CLAIM = "after-claim"
    DURING_WORK = "during-work"
    CALL_RECORDED = "model-call-recorded"
    CALL_PAID = "model-answer-received"
    CALL_STORED = "model-answer-stored"
    BEFORE_STORE = "after-work-before-store"
    IN_STORE = "stored-not-committed"
    BEFORE_ACK = "after-store-before-ack"
    AFTER_DISPATCH = "dispatched-not-relayed"
    BEFORE_PUBLISH = "before-publish"
    AFTER_PUBLISH = "published-not-marked"
    AFTER_TICK = "after-tick"
    IN_SUBMIT = "submitted-not-committed"
    BEFORE_ANSWER = "submitted-not-answered"
    IN_FAN_OUT = "messages-made-not-committed"
    MESSAGE_CLAIMED = "message-claimed-not-sent"
    MESSAGE_SENT = "message-sent-not-recorded"
    IN_RECORD = "message-recorded-not-committed"


class Act(StrEnum):
    """Act that is done there."""

    CHILD = "child"
    """SIGKILL to the process that does the work."""
    WORKER = "worker"
    """SIGKILL to it and to its parent: the whole worker."""
    STOP = "stop"
    """SIGSTOP to both, until somebody sends SIGCONT."""


class Arms:
    """The armed points, as the harness sees them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def arm(self, role: str, point: Point, act: Act) -> None:
        """Let it happen once, to the first of that role that gets there."""
        for old in self.folder.glob(f"{role}.{point}*"):
            old.unlink()
        (self.folder / f"{role}.{point}").write_text(act.value)

    def struck(self, role: str, point: Point) -> list[int]:
        """The processes that it happened to; empty while nobody has got there."""
        try:
            text = (self.folder / f"{role}.{point}.struck").read_text()
        except FileNotFoundError:
            return []
        return [int(word) for word in text.split()]


def reached(role: str, point: Point) -> None:
    """Called by a process at a point: usually nothing happens."""
    armed = Path(os.environ[FOLDER]) / f"{role}.{point}"
    struck = armed.with_name(armed.name + ".striking")
    try:
        armed.rename(struck)
    except FileNotFoundError:
        return
    act = Act(struck.read_text())
    parent = os.getppid()
    victims = [os.getpid()] if act is Act.CHILD else [parent, os.getpid()]
    struck.write_text(" ".join(map(str, victims)))
    struck.rename(armed.with_name(armed.name + ".struck"))
    for victim in victims:
        os.kill(victim, signal.SIGSTOP if act is Act.STOP else signal.SIGKILL)
