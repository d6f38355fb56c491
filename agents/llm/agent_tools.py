"""The tools of the Kernel Agent, but for what the judge does: each a function of the agent's desk and its arguments.

``measure`` and ``finish`` end a turn; the others answer at once, from what is known, and change nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.json_schema import GenerateJsonSchema

from agents.interface import Agents, Attempt, Briefing, Draft, Example, Work
from agents.llm import answers, candidates, offered, prompt
from agents.llm.engineer import seen
from agents.llm.gateway import AnswerError
from agents.llm.patch import is_patch, patched
from agents.llm.revisor import report
from cupilot.domain.evolution.notes import MAX_INSIGHT
from cupilot.domain.evolution.novelty import kernel_key
from cupilot.domain.kernel import Kernel
from cupilot.domain.technique import catalogue

INSIGHT_CHARACTERS = 300
"""Of what is told of each measured kernel's approach."""

FINISHED = "finished"
"""Reason of an end: the agent itself saw nothing left to gain."""


@dataclass(frozen=True)
class Desk:
    """The state that the tools see."""

    briefing: Briefing
    work: Work
    rules: Agents
    """The playbook, which knows templates and reads counters."""

    def trial(self, number: int) -> Attempt:
        """Return a measured kernel by its number, from 1."""
        if not 1 <= number <= len(self.work.trials):
            raise AnswerError(f"there is no measurement {number}; there are {len(self.work.trials)}")
        return self.work.trials[number - 1]


@dataclass(frozen=True)
class Ended:
    """End of a turn: with a kernel to be measured, or for good."""

    draft: Draft | None = None
    note: str = ""
    reason: str = ""


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Nothing(_Arguments):
    pass


class _Measurement(_Arguments):
    number: Annotated[int, Field(description="Number of the measurement, from 1.")]


class _Code(_Arguments):
    source: Annotated[str, Field(description="The whole source. Leave it out where you give a patch.")] = ""
    patch: Annotated[
        str, Field(description="SEARCH/REPLACE parts against the source of measurement `base`, instead of a source.")
    ] = ""
    base: Annotated[
        int,
        Field(description="Measurement that is patched, or whose plan is kept; 0 for the kernel that you begin from."),
    ] = 0
    plan: Annotated[
        dict[str, Any] | None, Field(description="The launch plan; leave it out to keep that of `base`.")
    ] = None


class _Measure(_Code):
    name: Annotated[str, Field(description="A short name for the kernel.")] = ""
    why: Annotated[str, Field(description="What is new in it, and why it should be faster: two to four sentences.")]
    note: Annotated[str, Field(description="What you know by now and will try next; all that you keep.")] = ""


class _Finish(_Arguments):
    why: Annotated[str, Field(description="Why nothing is left to gain.")] = ""


def measure(desk: Desk, arguments: _Measure) -> Ended:
    """Have a kernel built, checked and timed on the device. Ends your turn."""
    kernel = _kernel(desk, arguments)
    for number, trial in enumerate(desk.work.trials, 1):
        if trial.kernel is not None and kernel_key(trial.kernel) == kernel_key(kernel):
            raise AnswerError(f"this is the kernel of measurement {number}; see its details instead")
    begun = desk.work.parent
    if begun and begun.kernel and begun.evaluation and kernel_key(begun.kernel) == kernel_key(kernel):
        raise AnswerError("this is the kernel that you begin from, which was measured; write another one")
    insight = arguments.why[:MAX_INSIGHT]
    draft = Draft(kernel=kernel, strategy=seen(kernel, insight), name=arguments.name[:200], insight=insight)
    return Ended(draft, note=arguments.note[:MAX_INSIGHT])


def check(desk: Desk, arguments: _Code) -> str:
    """Check source and plan for form, without a device: plan against header, bans, what techniques the code shows."""
    kernel = _kernel(desk, arguments)
    techniques = ", ".join(seen(kernel, "").ids()) or "none of the catalogue"
    return f"The plan fits. Techniques that the source shows: {techniques}. It was neither built nor run."


def details(desk: Desk, arguments: _Measurement) -> str:
    """Show all that is known of a measurement: failure with evidence, or figures, counters, diagnosis; the code."""
    trial = desk.trial(arguments.number)
    failure = trial.evaluation.failure if trial.evaluation else None
    if failure is not None:
        parts = [report(failure)]
    else:
        found = candidates.diagnosed(desk.rules.prophet, desk.briefing, trial)
        parts = [candidates.figures(desk.briefing, trial), candidates.diagnosis(found) if found else ""]
    parts.append(candidates.kernel_text(trial.kernel) if trial.kernel else "")
    return "\n".join([outcome_of(trial), *filter(None, parts)])


def techniques(desk: Desk, arguments: _Nothing) -> str:  # noqa: ARG001 - all tools are called alike
    """List optimisation techniques that may fit this operator on this device, with their conditions."""
    return offered.techniques(catalogue(), desk.briefing)


def similar_kernels(desk: Desk, arguments: _Nothing) -> str:  # noqa: ARG001
    """Show proven kernels of similar problems, with what they gained there."""
    return "\n\n".join(_example(example) for example in desk.work.examples) or "None is known."


def template_kernel(desk: Desk, arguments: _Nothing) -> str:  # noqa: ARG001
    """Show a right, simple kernel of this operator that templates make, to begin from or to compare with."""
    (first, *_) = desk.rules.manager.initial_strategies(desk.briefing, (), 1, 0)
    return candidates.kernel_text(desk.rules.translator.translate(desk.briefing, first.strategy, (), 0))


def finish(desk: Desk, arguments: _Finish) -> Ended:  # noqa: ARG001
    """End the work: the fastest right kernel stands."""
    if not desk.work.trials:
        raise AnswerError("nothing was measured yet; measure a kernel first")
    return Ended(reason=FINISHED)


class _WithoutTitles(GenerateJsonSchema):
    """Schemas without titles, which repeat the fields' names and tell those of classes."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def model_schema(self, schema: Any) -> dict[str, Any]:
        return {name: value for name, value in super().model_schema(schema).items() if name != "title"}


@dataclass(frozen=True)
class _Tool:
    run: Callable[[Desk, Any], str | Ended]
    arguments: type[_Arguments]

    @property
    def specification(self) -> dict[str, JsonValue]:
        function: dict[str, JsonValue] = {
            "name": self.run.__name__,
            "description": self.run.__doc__ or "",
            "parameters": self.arguments.model_json_schema(schema_generator=_WithoutTitles),
        }
        return {"type": "function", "function": function}


_TOOLS: Mapping[str, _Tool] = {
    tool.run.__name__: tool
    for tool in (
        _Tool(measure, _Measure),
        _Tool(check, _Code),
        _Tool(details, _Measurement),
        _Tool(techniques, _Nothing),
        _Tool(similar_kernels, _Nothing),
        _Tool(template_kernel, _Nothing),
        _Tool(finish, _Finish),
    )
}


def specifications() -> tuple[dict[str, JsonValue], ...]:
    """Return the tools in the form of OpenAI's chat completions."""
    return tuple(tool.specification for tool in _TOOLS.values())


def run_tool(desk: Desk, name: str, arguments: str) -> str | Ended:
    """Run a tool by its name with arguments as a model wrote them.

    Raises :class:`AnswerError`, or :class:`agents.interface.AgentError` where the playbook cannot do it.
    """
    tool = _TOOLS.get(name)
    if tool is None:
        raise AnswerError(f"there is no tool {name[:100]!r}; there are {', '.join(_TOOLS)}")
    return tool.run(desk, answers.checked(tool.arguments, answers.json_object(arguments or "{}")))


def outcome_of(trial: Attempt) -> str:
    """Return what a kernel was and came to, in a line or two."""
    insight = textwrap.shorten(trial.insight, INSIGHT_CHARACTERS, placeholder=" ...")
    approach = prompt.data("approach", insight) if insight else ""
    return "\n".join(filter(None, [approach, candidates.measured(trial.evaluation)]))


def _kernel(desk: Desk, arguments: _Code) -> Kernel:
    base = desk.trial(arguments.base) if arguments.base else desk.work.parent
    before = base.kernel if base else None
    if arguments.patch and before is None:
        raise AnswerError("there is nothing to patch: give the whole source, or name a measurement as `base`")
    if arguments.patch and not is_patch(arguments.patch):
        raise AnswerError("the patch has no complete part: <<<<<<< SEARCH, =======, >>>>>>> REPLACE, each on a line")
    source = patched(before.source, arguments.patch) if arguments.patch and before else arguments.source
    plan = arguments.plan if arguments.plan is not None or before is None else before.plan.model_dump(mode="json")
    if not source.strip() or plan is None:
        raise AnswerError("source (or a patch) and plan are needed")
    return answers.fitting(source, plan, desk.briefing)


def _example(example: Example) -> str:
    parts = [prompt.data("other problem.py", example.reference), f"{example.speedup:.2f}x over PyTorch eager there."]
    return "\n".join([*parts, candidates.kernel_text(example.kernel)])
