"""The Kernel Agent played by a model: a conversation with tools that ends with a kernel to be measured.

A turn of the pipeline is one conversation. Each model call in it is recorded and paid once, so that a repeated step
goes the same way to where it was interrupted. The next turn begins anew, from what was measured and the agent's own
note: a prompt stays bounded however long the work lasts.
"""

from __future__ import annotations

import json

from pydantic import JsonValue

from agents.interface import AgentError, Agents, Briefing, Turn, Work
from agents.llm import answers, candidates, prompt
from agents.llm.agent_tools import Desk, Ended, outcome_of, run_tool, specifications
from agents.llm.gateway import AnswerError, BadModelAnswer, Gateway, Question
from agents.llm.models import AgentRole
from cupilot.domain.evolution.notes import AgentBook
from cupilot.domain.model_call import Answer

MAX_SILENT = 3
"""Answers of a turn without a usable call of a tool, after which the model is given up."""
BUDGET = "agent_budget"
"""Reason of an end: the candidate's budget is spent."""
_REPEATED = (
    "\nThe kernel of your last turn was not measured: this job already has it from another candidate ({count} in a row"
    " by now). Write one that differs in what it does.\n"
)
_NUDGE = "Go on by calling a tool: `measure` with a kernel, or `finish`."


class LlmAgent:
    """See :class:`agents.interface.KernelAgent`."""

    def __init__(self, gateway: Gateway, rules: Agents) -> None:
        self._gateway = gateway
        self._rules = rules

    def act(self, briefing: Briefing, work: Work, seed: int) -> Turn:
        """Let the model call tools until it measures or finishes, or the candidate's budget is spent."""
        book, desk, silent = work.book, Desk(briefing, work, self._rules), 0
        file = prompt.prompt("agent")
        messages = file.messages(**_values(briefing, work), **prompt.writing(briefing))
        conversation: list[dict[str, JsonValue]] = [dict(message) for message in messages]
        while _has_left(work, book):
            purpose = f"act/{book.tool_calls}/{len(conversation)}"
            question = Question(AgentRole.AGENT, purpose, tuple(conversation), file.hash, seed, tools=specifications())
            answer = self._gateway.turn(question)
            book = _charged(book, answer)
            conversation.append(_said(answer))
            ended, useful, results = _used(desk, answer)
            if ended is not None:
                return _turn(ended, book)
            silent = 0 if useful else silent + 1
            if silent == MAX_SILENT:
                raise BadModelAnswer(f"the agent's model called no tool usably in {MAX_SILENT} answers running")
            conversation += results or [{"role": "user", "content": _NUDGE}]
        return Turn(book=book, reason=BUDGET)


def _has_left(work: Work, book: AgentBook) -> bool:
    limits = work.limits
    measured = len(work.trials) < limits.measurements
    return measured and book.tool_calls < limits.tool_calls and book.tokens < limits.tokens


def _charged(book: AgentBook, answer: Answer) -> AgentBook:
    return book.model_copy(
        update={
            # An answer without a call counts as one: else a model that only talks would talk for ever.
            "tool_calls": book.tool_calls + max(len(answer.tool_calls), 1),
            "tokens": book.tokens + answer.prompt_tokens + answer.completion_tokens,
        }
    )


def _said(answer: Answer) -> dict[str, JsonValue]:
    # Providers refuse a turn without any content.
    said: dict[str, JsonValue] = {
        "role": "assistant",
        "content": answer.text or ("" if answer.tool_calls else "(nothing)"),
    }
    if answer.tool_calls:
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _echoed(call.arguments)}}
            for call in answer.tool_calls
        ]
    return said


def _echoed(arguments: str) -> str:
    """Return a call's arguments as they are shown back, always a JSON object: providers' clients parse them again."""
    try:
        return json.dumps(answers.json_object(arguments or "{}"))
    except AnswerError:
        return "{}"


def _used(desk: Desk, answer: Answer) -> tuple[Ended | None, bool, list[dict[str, JsonValue]]]:
    """Run the tools that an answer calls, in order, up to one that ends the turn; return that, whether any could be
    used, and the results."""
    results: list[dict[str, JsonValue]] = []
    useful = False
    for call in answer.tool_calls:
        try:
            result = run_tool(desk, call.name, call.arguments)
            useful = True
        except (AnswerError, AgentError) as complaint:
            cut = " (the answer was cut off at the token limit: be shorter)" if answer.finish_reason == "length" else ""
            result = f"That call cannot be used: {complaint}{cut}"
        if isinstance(result, Ended):
            return result, True, results
        results.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return None, useful, results


def _turn(ended: Ended, book: AgentBook) -> Turn:
    if ended.draft is None:
        return Turn(book=book, reason=ended.reason)
    return Turn(book=book.model_copy(update={"note": ended.note}), draft=ended.draft)


def _values(briefing: Briefing, work: Work) -> dict[str, str]:
    """Return what the prompt says of the work so far."""
    shown = work.fastest or next(iter(work.trials[::-1]), None)
    lines = [f"{number}. {outcome_of(trial)}" for number, trial in enumerate(work.trials, 1)]
    if shown is not None and shown.kernel is not None:
        lines.append(f"Number {work.trials.index(shown) + 1}:\n{candidates.kernel_text(shown.kernel)}")
    return {
        "parent": candidates.parent(briefing, work.parent) if work.parent else "Nothing: write the first kernel.",
        "trials": "\n".join(lines) or "Nothing yet.",
        "note": prompt.data("note", work.book.note) if work.book.note else "None.",
        "repeats": _REPEATED.format(count=work.repeats) if work.repeats else "",
        "left": _left(work),
    }


def _left(work: Work) -> str:
    limits, book = work.limits, work.book
    left = {
        "measurements": limits.measurements - len(work.trials),
        "calls of tools": limits.tool_calls - book.tool_calls,
        "tokens": limits.tokens - book.tokens,
    }
    return ", ".join(f"{count} {name}" for name, count in left.items()) + "."
