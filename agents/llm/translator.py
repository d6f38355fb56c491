"""The Strategy Translator played by a model: a strategy becomes device code and a launch plan."""

from __future__ import annotations

from agents.interface import Attempt, Briefing
from agents.llm import answers, prompt
from agents.llm.gateway import Gateway, Question
from agents.llm.models import AgentRole
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy
from cupilot.domain.technique import catalogue

LANGUAGE = {Target.CUDA: "cuda", Target.CPU: "cpp"}
"""What the source's fenced block is called."""


class LlmTranslator:
    """Writer of code; :class:`agents.llm.alignment.AligningTranslator` adds the reading."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def translate(self, briefing: Briefing, strategy: Strategy, parent: Kernel | None, seed: int) -> Kernel:
        """Return a kernel that follows the strategy, from the parent's code where there is any."""
        briefing = briefing.allowing(strategy)
        file = prompt.prompt("translator")
        messages = file.messages(
            reference=prompt.reference(briefing),
            facts=prompt.facts(briefing),
            header=prompt.header(briefing),
            hardware=prompt.hardware(briefing),
            roofline=prompt.roofline(briefing),
            strategy=_explained(strategy),
            parent=kernel_text(parent) if parent else "None: write it from scratch.",
            contract=prompt.contract(briefing),
            language=LANGUAGE[briefing.target],
        )
        question = Question(AgentRole.TRANSLATOR, "translate", messages, file.hash, seed)
        return self._gateway.ask(question, lambda text: answers.kernel(text, briefing))

    def merge(self, briefing: Briefing, first: Attempt, second: Attempt, seed: int) -> Kernel:
        """Return one kernel that does what both parents' kernels do: crossover of code."""
        file = prompt.prompt("translator_merge")
        messages = file.messages(
            reference=prompt.reference(briefing),
            facts=prompt.facts(briefing),
            header=prompt.header(briefing),
            hardware=prompt.hardware(briefing),
            first=parent_text(first),
            second=parent_text(second),
            contract=prompt.contract(briefing),
            language=LANGUAGE[briefing.target],
        )
        question = Question(AgentRole.TRANSLATOR, "merge", messages, file.hash, seed)
        return self._gateway.ask(question, lambda text: answers.kernel(text, briefing))


def parent_text(parent: Attempt) -> str:
    """Return a measured kernel whose code is to be read: what it came to, source, plan."""
    return f"{prompt.measured(parent.evaluation)}\n{kernel_text(parent.kernel) if parent.kernel else 'It has no code.'}"


def kernel_text(kernel: Kernel) -> str:
    """Return a kernel as it stands in a prompt: source and plan, both as data."""
    unused = None if kernel.plan.tensor_maps else {"tensor_maps"}
    plan = kernel.plan.model_dump_json(exclude=unused)
    return prompt.data("kernel", kernel.source) + "\n" + prompt.data("plan.json", plan)


def _explained(strategy: Strategy) -> str:
    if not strategy.techniques:
        return "No techniques: the plain, simple, correct kernel."
    lines = [prompt.data("strategy", prompt.strategy_json(strategy))]
    for use in strategy.techniques:
        technique = catalogue().get(use.id)
        if technique is not None:
            lines.append(f"- {use.id}: {technique.summary}")
        else:
            where = "its meaning" if use.meaning else "the rationale"
            lines.append(f"- {use.id} is not in the catalogue: {where} says what it does.")
    return "\n".join(lines)
