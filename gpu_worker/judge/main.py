"""The judge process: answers the supervisor's requests, one problem after another.

Start: ``python -I main.py SOURCE_ROOT MODULE:DEVICE OPTIONS_JSON CHANNEL_FD``. Runs no code of users: references and
kernels have processes of their own, to which it is given lines. It is sandboxed all the same, since it reads what they
send.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import traceback

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    gc.disable()  # until all is imported: looking for garbage in 400,000 new objects takes 0.3 of 1.7 s

import torch

from cupilot.domain.evaluation import LACKS_MEMORY, Failure, FailureKind
from gpu_worker.channel import Channel, ChannelClosed
from gpu_worker.judge.clocks import refuse_awake
from gpu_worker.judge.facts import check_same
from gpu_worker.judge.reference_link import ReferenceLink, ReferenceLost
from gpu_worker.judge.refusal import UnusableReference, out_of_memory
from gpu_worker.judge.runner_link import RunnerLink
from gpu_worker.judge.session import Session
from gpu_worker.messages import judge as messages
from gpu_worker.targets.base import JudgeDevice, load_factory

START_SECONDS = 120.0
"""Importing torch takes 2 s, 14 s without compiled bytecode; a busy machine may need more."""

STARTING = "starting the reference process"
DEVICE_FAULT = "CUDA error"
"""In the message of PyTorch's exceptions after which a context is of no use."""

UNUSABLE_ANSWER = "the reference's answers cannot be judged"


class Judge:
    """Serves one supervisor."""

    def __init__(self, channel: Channel, device: JudgeDevice) -> None:
        self._channel = channel
        self._device = device
        self._session: Session | None = None

    def serve(self) -> None:
        """Answer requests until the supervisor hangs up, or an unexpected error ends this process."""
        torch.set_grad_enabled(False)
        self._send(messages.Ready(torch=torch.__version__))
        while True:
            try:
                data, descriptors = self._channel.receive(descriptors=1)
            except ChannelClosed:
                return
            answer = self._answer(messages.REQUESTS.validate_python(data), descriptors)
            self._send(messages.Done(answer=answer))
            if isinstance(answer, messages.Unusable) and answer.last:
                return

    def _answer(self, request: messages.Request, descriptors: list[int]) -> messages.Answer:
        judging = isinstance(request, messages.JudgeRequest)
        try:
            return self._carried_out(request, descriptors)
        except UnusableReference as error:
            self._end_session()
            return messages.Unusable(failure=_unusable(error, judging=judging))
        except ReferenceLost as error:
            self._end_session()
            return messages.ReferenceGone(reason=str(error)[: messages.REASON_CHARACTERS])
        except Exception as error:
            if DEVICE_FAULT in str(error) and not out_of_memory(error):
                raise
            self._end_session()
            if out_of_memory(error):
                return messages.Unusable(failure=_too_large(error, judging=judging))
            traceback.print_exc()
            unexpected = UnusableReference(f"{UNUSABLE_ANSWER}: {type(error).__name__}: {error}")
            return messages.Unusable(failure=_unusable(unexpected, judging=judging), last=True)

    def _end_session(self) -> None:
        """Close the open problem, and return its memory: the next reference is another process, which needs it."""
        if self._session is not None:
            self._session.close()
            self._session = None
        gc.collect()  # a session refers to itself, also from the traceback of what ended it
        self._device.release_unused()
        ctypes.CDLL(None).malloc_trim(0)  # freed memory is kept for the next kernel, not for the next problem

    def _open_session(self, request: messages.ProblemRequest, descriptors: list[int]) -> Session:
        """Open a problem in place of the one before, with the reference process at the other end of the descriptor."""
        self._end_session()
        self._stage(STARTING, START_SECONDS)
        link = ReferenceLink(Channel.from_descriptor(descriptors[0]), self._device, sparing=request.sparing)
        try:
            link.wait_ready()
            self._session = Session(request.problem, link, self._stage)
        except BaseException:
            link.close()
            raise
        return self._session

    def _carried_out(self, request: messages.Request, descriptors: list[int]) -> messages.Answer:
        match request:
            case messages.PrepareRequest():
                return self._open_session(request, descriptors).admit()
            case messages.TraceRequest():
                return messages.Traced(facts=self._open_session(request, descriptors).facts)
            case messages.OpenRequest():
                check_same(self._open_session(request, descriptors).facts, request.facts)
                return messages.Opened()
            case messages.JudgeRequest():
                return self._judge(request, descriptors)

    def _judge(self, request: messages.JudgeRequest, descriptors: list[int]) -> messages.Judged:
        assert self._session is not None
        hold = self._hold if request.hold else _ignore
        channel = Channel.from_descriptor(descriptors[0])
        try:
            return self._session.judge(request.order, RunnerLink(channel, trusted=not request.hold), hold)
        finally:
            channel.close()

    def _stage(self, name: str, limit: float) -> None:
        self._send(messages.StageBegun(name=name, limit=limit))

    def _hold(self, on: bool) -> float:
        self._send(messages.HoldRequest(on=on))
        data, _ = self._channel.receive()
        held = messages.Held.model_validate(data)
        refuse_awake(held.awake)
        return held.at

    def _send(self, message: messages.Message) -> None:
        self._channel.send(message.as_json())


def _ignore(_on: bool) -> None:
    """Do nothing: the runner holds no host code of the kernel's."""


def _unusable(error: UnusableReference, *, judging: bool) -> Failure:
    """Return the failure of a problem; of no kernel, where the reference worked when it was prepared."""
    if judging and error.kind is FailureKind.OUT_OF_MEMORY:
        return _too_large(error, judging=True)
    if judging:
        message = (
            "the reference failed while a kernel was judged, where it worked when it was prepared (does it draw numbers"
            f" of its own?): {error}"
        )
        return Failure(kind=FailureKind.INFRASTRUCTURE, message=message[:16_000])
    return Failure(kind=error.kind, message=str(error)[:16_000])


def _too_large(error: BaseException, *, judging: bool) -> Failure:
    room = "run fewer workers on this machine, or use a larger one"
    message = f"the problem needs more memory than there is for judging it ({room}): {str(error)[:500]}"
    if judging:
        return Failure(kind=FailureKind.INFRASTRUCTURE, message=message, details={"code": LACKS_MEMORY})
    return Failure(kind=FailureKind.OUT_OF_MEMORY, message=message)


def main() -> None:
    """Run the judge process."""
    gc.enable()
    _, _, factory, options, descriptor = sys.argv
    device: JudgeDevice = load_factory(factory)(**json.loads(options))
    Judge(Channel.from_descriptor(int(descriptor)), device).serve()


if __name__ == "__main__":
    main()
