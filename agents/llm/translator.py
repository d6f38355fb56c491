"""The Strategy Translator played by a model: a strategy becomes device code and a launch plan."""

from __future__ import annotations

from collections.abc import Sequence

from agents.interface import Attempt, Briefing, RooflineProphet
from agents.llm import answers, candidates, prompt
from agents.llm.gateway import Gateway, Question
from agents.llm.models import AgentRole
from cupilot.domain.kernel import Kernel
from cupilot.domain.pool import Lesson
from cupilot.domain.strategy import Strategy
from cupilot.domain.technique import Technique, catalogue


class LlmTranslator:
    """Writer of code; :class:`agents.llm.alignment.AligningTranslator` adds the reading."""

    def __init__(self, gateway: Gateway, prophet: RooflineProphet | None = None) -> None:
        """Make a translator; ``prophet`` says why a parent is not faster, where counters back it."""
        self._gateway = gateway
        self._prophet = prophet

    def translate(
        self,
        briefing: Briefing,
        strategy: Strategy,
        parents: Sequence[Attempt],
        seed: int,
        *,
        lessons: Sequence[Lesson] = (),
    ) -> Kernel:
        """Return a kernel that follows the strategy, from the parents' code where there is any.

        The answer may be a patch of the first parent's source.
        """
        briefing = briefing.allowing(strategy)
        parents = [parent for parent in parents if parent.kernel is not None]
        file = prompt.prompt("translator")
        messages = file.messages(
            strategy=explained(strategy),
            parents=self._parents(briefing, parents),
            lessons=prompt.lessons(lessons),
            **prompt.writing(briefing),
        )
        question = Question(AgentRole.TRANSLATOR, "translate", messages, file.hash, seed)
        before = parents[0].kernel if parents else None
        return self._gateway.ask(question, lambda text: answers.kernel(text, briefing, before))

    def merge(self, briefing: Briefing, first: Attempt, second: Attempt, seed: int) -> Kernel:
        """Return one kernel that does what both parents' kernels do: crossover of code."""
        file = prompt.prompt("translator_merge")
        messages = file.messages(
            first=self._parent(briefing, first), second=self._parent(briefing, second), **prompt.writing(briefing)
        )
        question = Question(AgentRole.TRANSLATOR, "merge", messages, file.hash, seed)
        return self._gateway.ask(question, lambda text: answers.kernel(text, briefing))

    def _parents(self, briefing: Briefing, parents: Sequence[Attempt]) -> str:
        if not parents:
            return "None: write it from scratch."
        names = ("First parent (the fitter)", "Second parent")
        shown = [f"{name}\n{self._parent(briefing, parent)}" for name, parent in zip(names, parents, strict=False)]
        return "\n\n".join([*shown, prompt.read("patch_reply").strip()])

    def _parent(self, briefing: Briefing, parent: Attempt) -> str:
        return candidates.parent(briefing, parent, candidates.diagnosed(self._prophet, briefing, parent))


def explained(strategy: Strategy) -> str:
    """Return a strategy to follow, and what its techniques and their parameters mean."""
    if not strategy.techniques:
        return "No techniques: the plain, simple, correct kernel."
    lines = [prompt.data("strategy", prompt.strategy_json(strategy))]
    for use in strategy.techniques:
        technique = catalogue().get(use.id)
        if technique is not None:
            lines.append(_meaning(technique))
        else:
            where = "its meaning" if use.meaning else "the rationale"
            lines.append(f"- {use.id} is not in the catalogue: {where} says what it does.")
    return "\n".join(lines)


def _meaning(technique: Technique) -> str:
    """Return what a technique does, what its parameters mean, and where it applies."""
    meanings = [f" {name}: {parameter.meaning}." for name, parameter in technique.parameters.items()]
    conditions = f" Only where: {' '.join(technique.preconditions)}" if technique.preconditions else ""
    return f"- {technique.id}: {technique.summary}{''.join(meanings)}{conditions}"
