"""A reference behind the judge's line to it, served by a thread in the place of a sandboxed process."""

from __future__ import annotations

import threading
from typing import ClassVar

from cupilot.domain.problem import NumericsPolicy, Problem, ProblemFacts
from gpu_worker.channel import Channel
from gpu_worker.judge.reference_link import ReferenceLink
from gpu_worker.reference.server import ReferenceServer
from gpu_worker.targets.base import JudgeDevice


class Served:
    """A loaded and traced reference."""

    opened: ClassVar[list[Served]] = []
    """Those of the test under way."""

    def __init__(self, source: str, policy: NumericsPolicy, device: JudgeDevice) -> None:
        ours, theirs = Channel.pair()
        self.server = ReferenceServer(theirs, device)
        self._thread = threading.Thread(target=self._serve, args=(theirs,), daemon=True)
        self._thread.start()
        self.opened.append(self)
        self.link = ReferenceLink(ours, device)
        self.link.load(Problem(name="served", source=source, policy=policy), seed=1)
        self.facts: ProblemFacts = self.link.facts("0" * 64)

    def _serve(self, channel: Channel) -> None:
        with channel:
            self.server.serve()

    @classmethod
    def close_all(cls) -> None:
        """Hang up on all that the test opened."""
        while cls.opened:
            served = cls.opened.pop()
            served.link.close()
            served._thread.join()
