"""The judge process: answers the supervisor's requests, one problem after another.

Start: ``python -I main.py SOURCE_ROOT MODULE:DEVICE OPTIONS_JSON CHANNEL_FD``. Runs no code of users: references and
kernels have processes of their own, to which it is given lines. It is sandboxed all the same, since it reads what they
say.
"""

from __future__ import annotations

import ctypes
import json
import sys
import traceback
from dataclasses import asdict
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

import torch

from cupilot.domain.evaluation import Baseline, Failure, FailureKind
from cupilot.domain.problem import Problem, ProblemFacts
from gpu_worker.channel import Channel, ChannelClosed, finite
from gpu_worker.judge.reference_link import ReferenceLink, ReferenceLost
from gpu_worker.judge.refusal import UnusableReference, out_of_memory
from gpu_worker.judge.runner_link import RunnerLink
from gpu_worker.judge.session import Findings, KernelOrder, Session, check_same
from gpu_worker.judge_answers import short_notes
from gpu_worker.targets.base import JudgeDevice, load_factory

START_SECONDS = 120.0
"""Importing torch takes 2 s, 14 s without compiled bytecode; a busy machine may need more."""


STARTING = "starting the reference process"
DEVICE_FAULT = "CUDA error"
"""In the message of PyTorch's exceptions after which a context is of no use."""

UNUSABLE_ANSWER = "what the reference says or gives cannot be judged"


class Judge:
    """Serves one supervisor."""

    def __init__(self, channel: Channel, device: JudgeDevice) -> None:
        self._channel = channel
        self._device = device
        self._session: Session | None = None

    def serve(self) -> None:
        """Answer requests until the supervisor hangs up."""
        torch.set_grad_enabled(False)
        self._channel.send({"event": "ready", "torch": torch.__version__})
        while True:
            try:
                request, descriptors = self._channel.receive(descriptors=1)
            except ChannelClosed:
                return
            try:
                answer = self._answer(request, descriptors)
            except UnusableReference as error:
                answer = {"failure": self._unusable(request, error).model_dump(mode="json")}
            except ReferenceLost as error:
                self._end_session()
                answer = {"reference_lost": str(error)[:2000]}
            except Exception as error:
                if out_of_memory(error):
                    answer = {"failure": self._too_large(request, error).model_dump(mode="json")}
                elif DEVICE_FAULT in str(error):
                    raise
                else:
                    self._fail_and_end(request, error)
                    return
            self._channel.send(finite({"event": "done", **answer}))

    def _fail_and_end(self, request: dict[str, Any], error: Exception) -> None:
        """Report an unexpected error as the problem's failure, as the last answer of this process."""
        traceback.print_exc()
        unusable = UnusableReference(f"{UNUSABLE_ANSWER}: {type(error).__name__}: {error}")
        failure = self._unusable(request, unusable).model_dump(mode="json")
        self._channel.send(finite({"event": "done", "failure": failure, "last": True}))

    def _unusable(self, request: dict[str, Any], error: UnusableReference) -> Failure:
        """The failure of a problem; of no kernel, where the reference worked when it was prepared."""
        self._end_session()
        if request["op"] == "judge":
            message = f"the reference failed while a kernel was judged: {error}"
            return Failure(kind=FailureKind.INFRASTRUCTURE, message=message[:16_000])
        return Failure(kind=error.kind, message=str(error)[:16_000])

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
            ctypes.CDLL(None).malloc_trim(0)  # freed memory is kept for the next kernel, not for the next problem

    def _open_session(self, request: dict[str, Any], descriptors: list[int]) -> Session:
        """A problem in place of the one before, with the reference process at the other end of the descriptor."""
        self._end_session()
        self._stage(STARTING, START_SECONDS)
        link = ReferenceLink(Channel.from_descriptor(descriptors[0]), self._device)
        try:
            link.wait_ready()
            self._session = Session(Problem.model_validate(request["problem"]), link, self._stage)
        except BaseException:
            link.close()
            raise
        return self._session

    def _too_large(self, request: dict[str, Any], error: BaseException) -> Failure:
        self._end_session()
        message = f"the problem needs more memory than there is for judging it: {str(error)[:500]}"
        judging = request["op"] == "judge"
        return Failure(kind=FailureKind.INFRASTRUCTURE if judging else FailureKind.OUT_OF_MEMORY, message=message)

    def _answer(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        if request["op"] == "prepare":
            preparation = self._open_session(request, descriptors).admit()
            return {"preparation": preparation | {"notes": short_notes(preparation["notes"])}}
        if request["op"] == "trace":
            return {"facts": self._open_session(request, descriptors).facts.model_dump(mode="json")}
        if request["op"] == "open":
            check_same(self._open_session(request, descriptors).facts, ProblemFacts.model_validate(request["facts"]))
            return {}
        if request["op"] == "judge":
            return self._judge(request, descriptors)
        raise ValueError(f"unknown request {request['op']!r}")

    def _judge(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        assert self._session is not None
        order = KernelOrder(
            **{**request["order"], "baselines": [Baseline(item) for item in request["order"]["baselines"]]}
        )
        hold = self._hold if request["hold"] else _ignore
        channel = Channel.from_descriptor(descriptors[0])
        try:
            findings = self._session.judge(order, RunnerLink(channel, trusted=not request["hold"]), hold)
        finally:
            channel.close()
        return {"findings": findings_as_json(findings)}

    def _stage(self, name: str, limit: float) -> None:
        self._channel.send({"event": "stage", "name": name, "limit": limit})

    def _hold(self, on: bool) -> float:
        self._channel.send({"event": "hold", "on": on})
        answer, _ = self._channel.receive()
        return float(answer["at"])


def _ignore(_on: bool) -> None:
    """The runner holds no host code of the kernel's: nothing to stop."""


def findings_as_json(findings: Findings) -> dict[str, Any]:
    """Findings for the channel."""
    data = asdict(findings)
    data["laws"] = [item.model_dump(mode="json") for item in findings.laws]
    data["comparisons"] = [item.model_dump(mode="json") for item in findings.comparisons]
    data["failure"] = findings.failure.model_dump(mode="json") if findings.failure else None
    data["notes"] = short_notes(findings.notes)
    return data


def main() -> None:
    """Entry point of the judge process."""
    _, _, factory, options, descriptor = sys.argv
    device: JudgeDevice = load_factory(factory)(**json.loads(options))
    Judge(Channel.from_descriptor(int(descriptor)), device).serve()


if __name__ == "__main__":
    main()
