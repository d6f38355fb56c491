"""The Kernel Revisor played by a model: a digested report of what is wrong or slow, one revised kernel back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from agents.interface import Attempt, Briefing, Revision, RooflineProphet
from agents.llm import answers, candidates, prompt
from agents.llm.account import account, without_times
from agents.llm.candidates import kernel_text
from agents.llm.fences import blocks, prose
from agents.llm.gateway import Gateway, Question
from agents.llm.models import AgentRole
from agents.llm.translator import explained
from cupilot.domain.evaluation import Failure, FailureKind

_UNCHANGED = re.compile(r"^[^\w\n]*UNCHANGED[^\w\n]*$", re.MULTILINE)
_Reader = Callable[[str, Briefing, Attempt], Revision]
_NOTE = re.compile(r"^[^\w\n]*NOTE[^\w\n]*:[ *_`]*(.+)$", re.MULTILINE)
_DROPPED = re.compile(r"^[^\w\n]*DROPPED[^\w\n]*:[ *_`]*(.+)$", re.MULTILINE)

MAX_LINEAGE = 12
"""Trials of ancestors that a prompt shows, the newest ones."""
MAX_NOTE = 300
"""Characters of a trial's note."""

_ADVICE = {
    FailureKind.COMPILE_ERROR: "It does not compile. The compiler's relevant lines are below.",
    FailureKind.INVALID_PLAN: "The launch plan cannot be used.",
    FailureKind.LAUNCH_ERROR: "The driver refused a launch: check block size, shared memory and registers.",
    FailureKind.ILLEGAL_ACCESS: "It reads or writes outside its buffers: check indices and tails.",
    FailureKind.CRASH: "It crashes: check indices, alignment and null pointers.",
    FailureKind.OUT_OF_MEMORY: "It asks for more memory than there is.",
    FailureKind.TIMEOUT: "It does not end in time: check loops and barriers for a deadlock.",
    FailureKind.WRONG_VALUE: "It computes wrong values; where and how is below.",
    FailureKind.UNWRITTEN_OUTPUT: "It leaves output elements unwritten: check that the grid covers all data.",
    FailureKind.NON_DETERMINISTIC: "Two runs on the same input differ: a race or an uninitialised read.",
    FailureKind.INPUT_MUTATED: "It changes its inputs; write only to outputs and workspace.",
    FailureKind.OUT_OF_BOUNDS_WRITE: "It writes outside its buffers: check the guards of the last tile.",
    FailureKind.INSENSITIVE: "Changing an input element does not move the output as in the reference: data is skipped.",
    FailureKind.POLICY_BREACH: "It does what the numerics policy or the judge forbids; the evidence says what.",
}

LAWS = {
    "own": "the inputs are as get_inputs makes them",
    "signed": "inputs as large as get_inputs makes them, with random signs",
    "wide_range": "inputs times random powers of two, between 2^-8 and 2^8",
    "planted_extremes": "single values at random places are up to 96 times the largest",
    "constant_rows": "many rows hold one value throughout",
    "zeros": "single elements at random places, and some rows, are exactly zero",
    "offset": "inputs plus up to 512 times their spread, whose digits are lost in squares",
    "parameters": "parameters times up to 16, with random signs",
    "negated": "parameters times up to 16, with random signs, single numbers negated",
    "perturbed": "single elements of the inputs were changed",
    "integers": "inputs and parameters are -2, -1, 1 and 2, so that sums are exact",
    "timed": "the launch was a timed one",
}
"""Meaning of the judge's input laws, which failures name (docs/judge.md)."""


class LlmRevisor:
    """See :class:`agents.interface.KernelRevisor`."""

    def __init__(self, gateway: Gateway, prophet: RooflineProphet | None = None) -> None:
        """Make a revisor; ``prophet`` says why a right kernel is not faster, where counters back it."""
        self._gateway = gateway
        self._prophet = prophet

    def revise(
        self, briefing: Briefing, history: Sequence[Attempt], seed: int, *, lineage: Sequence[Attempt] = ()
    ) -> Revision | None:
        """Return a mended kernel; None where there is nothing to mend or the same kernel comes back."""
        last = history[-1]
        if last.kernel is None or last.evaluation is None or last.evaluation.failure is None:
            return None
        briefing = briefing.allowing(last.strategy)
        if last.evaluation.failure.kind is FailureKind.BELOW_FLOOR:
            return self._ask_about(briefing, last, seed)
        file = prompt.prompt("revisor")
        messages = file.messages(
            strategy=prompt.data("strategy", prompt.strategy_json(last.strategy)),
            kernel=kernel_text(last.kernel),
            report=report(last.evaluation.failure),
            reply=_reply(briefing),
            history=_tried(history[:-1]),
            lineage=_tried(lineage[-MAX_LINEAGE:], named=True),
            **prompt.writing(briefing),
        )
        question = Question(AgentRole.REVISOR, f"revise/{len(history)}", messages, file.hash, seed)
        return self._mended(question, briefing, last)

    def improve(self, briefing: Briefing, attempt: Attempt, history: Sequence[Attempt], seed: int) -> Revision | None:
        """Return a faster kernel of the same strategy, from the digested profile; None where the same comes back."""
        if attempt.kernel is None or attempt.evaluation is None:
            return None
        briefing = briefing.allowing(attempt.strategy)
        tuned = attempt.model_copy(update={"kernel": attempt.kernel.tuned(attempt.evaluation.tunables)})
        others = [trial for trial in history if trial.evaluation != attempt.evaluation]
        found = candidates.diagnosed(self._prophet, briefing, tuned)
        cause = found.model_copy(update={"advice": ()}) if found else None  # which names other techniques
        file = prompt.prompt("revisor_improve")
        messages = file.messages(
            strategy=explained(attempt.strategy),
            kernel=candidates.parent(briefing, tuned, cause),
            reply=_reply(briefing),
            history=_tried(others),
            **prompt.writing(briefing),
        )
        question = Question(AgentRole.REVISOR, f"improve/{len(history)}", messages, file.hash, seed)
        return self._mended(question, briefing, tuned, improvement)

    def _ask_about(self, briefing: Briefing, last: Attempt, seed: int) -> Revision | None:
        """Return what a kernel that beat the floor leaves out, put in; None where the model finds that nothing is.

        Shows no time of any kernel, and nothing that one can be reckoned from.
        """
        assert last.kernel is not None
        file, timeless = prompt.prompt("revisor_floor"), without_times(briefing)
        messages = file.messages(
            strategy=prompt.data("strategy", prompt.strategy_json(last.strategy)),
            kernel=kernel_text(last.kernel),
            account=account(timeless, last),
            **prompt.writing(timeless),
        )
        question = Question(AgentRole.REVISOR, "revise/floor", messages, file.hash, seed)
        return self._mended(question, briefing, last)

    def _mended(
        self, question: Question, briefing: Briefing, last: Attempt, read: _Reader | None = None
    ) -> Revision | None:
        mended = self._gateway.ask(question, lambda text: (read or revision)(text, briefing, last))
        return None if mended.kernel == last.kernel else mended


def _reply(briefing: Briefing) -> str:
    """Return how a revised kernel is to be written: as a patch or whole."""
    return prompt.prompt("reply_revision").fill(language=prompt.LANGUAGE[briefing.target]).strip()


def report(failure: Failure) -> str:
    """Return a failure as a repairing agent needs it: what kind, what to look for, the evidence."""
    advice = _ADVICE.get(failure.kind, "It was rejected.") + _more_advice(failure) + _drawn(failure)
    evidence = failure.message
    if failure.details:
        evidence += "\n" + json.dumps(failure.details, indent=1, sort_keys=True)
    return f"{failure.kind.value}: {advice}\n{prompt.data('evidence', evidence)}"


def _more_advice(failure: Failure) -> str:
    """Return what the driver's words say beyond the kind of failure."""
    words = failure.message.lower()
    if "misaligned" in words:
        return (
            " An address is no multiple of the access: rows of a length that is no multiple of the vector begin askew;"
            " bulk copies need 16-byte addresses and sizes, mbarriers 8-byte addresses."
        )
    if failure.kind is FailureKind.TIMEOUT or "mbarrier" in words:
        return (
            " With mbarriers: every phase needs as many arrivals as were initialised and exactly the bytes that were"
            " expected; the parity alternates from 0; the ring's stage and its parity advance together."
        )
    return ""


def _drawn(failure: Failure) -> str:
    """Return what the inputs were drawn like, where the judge names the law."""
    names = [str(failure.details[key]).partition("/")[0] for key in ("law", "drawn") if key in failure.details]
    return "".join(f" Law {name}: {LAWS[name]}." for name in names if name in LAWS)


def _tried(attempts: Sequence[Attempt], *, named: bool = False) -> str:
    """Return the trials, one a line.

    ``named`` by their techniques, where these are not those of the kernel to be mended.
    """
    if not attempts:
        return "Nothing."
    return prompt.data("history", "\n".join(_trial(attempt, named=named) for attempt in attempts))


def _trial(attempt: Attempt, *, named: bool) -> str:
    techniques = f"{', '.join(attempt.strategy.ids()) or 'no techniques'}: " if named else ""
    done = f"{attempt.insight[:MAX_NOTE]}: " if attempt.insight else ""
    return f"- {techniques}{done}{candidates.outcome(attempt.evaluation)}"


def improvement(text: str, briefing: Briefing, last: Attempt) -> Revision:
    """Return the changed kernel in an answer, or the same one where the answer says that it stays."""
    if last.kernel is not None and _is_unchanged(text):
        return Revision(strategy=last.strategy, kernel=last.kernel, note="unchanged")
    return revision(text, briefing, last)


def _is_unchanged(text: str) -> bool:
    """Return whether the answer says so in its prose, or in a block of its own; in code the word is code's."""
    alone = any(_UNCHANGED.fullmatch(block.body.strip()) for block in blocks(text))
    return alone or _UNCHANGED.search(prose(text)) is not None


def revision(text: str, briefing: Briefing, last: Attempt) -> Revision:
    """Return the mended kernel in an answer, given whole or as a patch, with its note and the techniques dropped."""
    strategy, kernel = last.strategy, answers.kernel(text, briefing, last.kernel)
    said = prose(text)
    note, dropped = _NOTE.search(said), _DROPPED.search(said)
    gone = {name.strip(" *_`.") for name in dropped[1].split(",")} if dropped else set()
    kept = tuple(use for use in strategy.techniques if use.id not in gone)
    return Revision(
        strategy=strategy.model_copy(update={"techniques": kept}),
        kernel=kernel,
        note=note[1][:1_000] if note else "no note",
    )
