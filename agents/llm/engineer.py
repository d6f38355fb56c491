"""The Kernel Engineer: writes kernels freely, by the prompts of EvoEngineer, its baselines and The AI CUDA Engineer.

The method's operator decides which information a prompt shows; the prompt files word it. The published wording
asks for C++ extensions and measures with its authors' tools; here it is this project's contract and judge, and every
number is against PyTorch eager. Replies have the published fields (name, thought, code), code being source and plan.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agents.interface import Attempt, Briefing, Conversion, Draft, Example, Revision, WriteInput
from agents.llm import answers, candidates, prompt
from agents.llm.candidates import kernel_text
from agents.llm.fences import blocks, prose
from agents.llm.gateway import AnswerError, Gateway, Question
from agents.llm.models import AgentRole
from agents.llm.revisor import report, revision
from agents.playbook.evidence import visible
from cupilot.domain.errors import InvalidProblem
from cupilot.domain.evaluation import Baseline, Evaluation
from cupilot.domain.evolution.notes import MAX_INSIGHT
from cupilot.domain.evolution.population import Operator
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import check_source
from cupilot.domain.strategy import MAX_TECHNIQUES, Strategy, TechniqueUse

FORGET_EVERY = 3
"""The AI CUDA Engineer clears its memory of errors after every third failure."""
MAX_SUMMARY = 3_000
"""Characters of an error's summary: it is there to be short."""

_PROMPTS = {
    Operator.REWRITE: "evoengineer_rewrite",
    Operator.CODE_CROSSOVER: "evoengineer_crossover",
    Operator.MUTATION: "evoengineer_mutation",
    Operator.TRANSLATION: "ai_cuda_translate",
    Operator.OPTIMISATION: "ai_cuda_optimise",
    Operator.COMPOSITION: "ai_cuda_compose",
    Operator.EXPLORE: "eoh_explore",
    Operator.RECOMBINE: "eoh_recombine",
    Operator.RETUNE: "eoh_retune",
    Operator.NEXT_VERSION: "funsearch_next",
}
_OWN_PROMPTS = {("eoh", Operator.MUTATION): "eoh_mutation"}
"""Prompts of methods that word an operator in their own way."""
_SILENT = frozenset({"evoengineer-free", "funsearch"})
"""Methods whose prompts show code only, and whose replies are code only."""

# No line's marks reach into the next line: a model that writes nothing but line breaks would keep a worker busy.
_NAME = re.compile(r"^[^\w\n]*NAME[^\w\n]*:\s*(.+)$", re.MULTILINE | re.IGNORECASE)
_THOUGHT = re.compile(
    r"^[^\w\n]*THOUGHTS?[^\w\n]*:\s*(.+?)(?=^[^\w\n]*(?:NAME|CODE)[^\w\n]*:|^```|\Z)",
    re.MULTILINE | re.IGNORECASE | re.DOTALL,
)


class LlmEngineer:
    """See :class:`agents.interface.KernelEngineer`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def convert(self, briefing: Briefing, attempts: Sequence[Conversion], seed: int) -> str:
        """Return the problem's file with its computation in ``module_fn``.

        Checked for form here, for meaning by the judge.
        """
        file = prompt.prompt("ai_cuda_convert")
        messages = file.messages(reference=prompt.reference(briefing), attempts=_earlier_attempts(attempts))
        question = Question(AgentRole.ENGINEER, f"convert/{len(attempts)}", messages, file.hash, seed)
        return self._gateway.ask(question, _parsed_conversion)

    def write(self, briefing: Briefing, write_input: WriteInput, seed: int) -> Draft:
        """Return a kernel, from what ``write_input`` holds."""
        method, operator = write_input.method, write_input.operator
        file = prompt.prompt(_OWN_PROMPTS.get((method, operator), _PROMPTS[operator]))
        messages = file.messages(
            reply=_reply(briefing, explains=method not in _SILENT),
            **prompt.writing(briefing),
            **_prompt_values(write_input),
        )
        question = Question(AgentRole.ENGINEER, "write", messages, file.hash, seed)
        return self._gateway.ask(question, lambda text: draft(text, briefing))

    def repair(self, briefing: Briefing, history: Sequence[Attempt], seed: int) -> Revision | None:
        """Repair a kernel in two calls: one summarises the error; the second is shown only that summary."""
        last = history[-1]
        if last.kernel is None or last.evaluation is None or last.evaluation.failure is None:
            return None
        summary = self._summary(briefing, history, seed)
        file = prompt.prompt("ai_cuda_fix")
        messages = file.messages(
            kernel=kernel_text(last.kernel),
            summary=prompt.data("summary", summary),
            **prompt.writing(briefing),
        )
        question = Question(AgentRole.ENGINEER, f"fix/{len(history)}", messages, file.hash, seed)
        mended = self._gateway.ask(question, lambda text: revision(text, briefing, last))
        if mended.kernel == last.kernel:
            return None
        return mended.model_copy(update={"strategy": seen(mended.kernel, last.strategy.rationale)})

    def _summary(self, briefing: Briefing, history: Sequence[Attempt], seed: int) -> str:
        last = history[-1]
        assert last.kernel is not None
        assert last.evaluation is not None
        assert last.evaluation.failure is not None
        file = prompt.prompt("ai_cuda_summarise")
        before = history[_omitted_count(len(history)) : -1]
        messages = file.messages(
            reference=prompt.reference(briefing),
            kernel=kernel_text(last.kernel),
            report=report(last.evaluation.failure),
            history="\n".join(prompt.data("earlier", candidates.outcome(attempt.evaluation)) for attempt in before)
            or "Nothing.",
        )
        question = Question(AgentRole.ENGINEER, f"summarise/{len(history)}", messages, file.hash, seed)
        return self._gateway.ask(question, lambda text: text.strip()[:MAX_SUMMARY])


def draft(text: str, briefing: Briefing) -> Draft:
    """Return a reply's kernel, name and thought; the last two are empty where the reply has none."""
    kernel = answers.kernel(text, briefing)
    said = prose(text)
    name, thought = _NAME.search(said), _THOUGHT.search(said)
    insight = thought[1].strip(" \n*_")[:MAX_INSIGHT] if thought else ""
    return Draft(
        kernel=kernel, strategy=seen(kernel, insight), name=name[1].strip(" *_`")[:200] if name else "", insight=insight
    )


def seen(kernel: Kernel, rationale: str) -> Strategy:
    """Return the strategy that a freely written kernel shows: the techniques whose telling traces its source has."""
    return Strategy(
        techniques=tuple(TechniqueUse(id=name) for name in visible(kernel)[:MAX_TECHNIQUES]),
        rationale=rationale[:4_000],
    )


def _parsed_conversion(text: str) -> str:
    files = [block.body for block in blocks(text) if block.closed and block.language in ("python", "py", "python3")]
    if not files:
        raise AnswerError("there is no fenced ```python block with the whole file")
    source = max(files, key=len)
    try:
        check_source(source)
    except InvalidProblem as error:
        raise AnswerError(f"the file cannot be used: {error}") from error
    if not re.search(r"^def module_fn\(", source, re.MULTILINE):
        raise AnswerError("there is no function module_fn at the top level")
    return source


def _omitted_count(failures: int) -> int:
    """Return how many of the oldest failures are not shown any more."""
    return (failures - 1) // FORGET_EVERY * FORGET_EVERY


def _earlier_attempts(attempts: Sequence[Conversion]) -> str:
    if not attempts:
        return "Nothing."
    recent = attempts[_omitted_count(len(attempts)) :]
    return "\n".join(
        f"{prompt.data('attempt.py', attempt.source)}\n{prompt.data('what was wrong', attempt.complaint)}"
        for attempt in recent
    )


def _reply(briefing: Briefing, *, explains: bool) -> str:
    name = "reply_explained" if explains else "reply_code"
    return prompt.prompt(name).fill(language=prompt.LANGUAGE[briefing.target])


def _prompt_values(write_input: WriteInput) -> dict[str, str]:
    """Return the values of the prompt of the input's operator."""
    if write_input.method in _BASELINES and write_input.parents:
        return {"parents": _several(write_input)}
    parents = [_kernel(parent, write_input) for parent in write_input.parents]
    # Of the best kernel alone the published prompts show a profile. Without one of its own, it is the first parent.
    best = _kernel(write_input.best or next(iter(write_input.parents), None), write_input, profiled=True)
    match write_input.operator:
        case Operator.REWRITE:
            return {"best": best, "insights": _insights(write_input)}
        case Operator.CODE_CROSSOVER:
            return {"best": best, "first": parents[0], "second": parents[1], "insights": _insights(write_input)}
        case Operator.MUTATION:
            return {"best": best, "parent": parents[0], "insights": _insights(write_input)}
        case Operator.TRANSLATION:
            return {"functional": prompt.data("functional.py", write_input.functional)}
        case Operator.OPTIMISATION:
            shown = "\n\n".join(_kernel(attempt, write_input) for attempt in write_input.shown)
            return {"shown": shown or _NOTHING, "best": best, "which": _proposal_number(write_input)}
        case Operator.COMPOSITION:
            examples = "\n\n".join(_example(example) for example in write_input.examples)
            return {"examples": examples or "None is known.", "best": best, "which": _proposal_number(write_input)}
        case _:
            raise ValueError(f"{write_input.operator} is not written freely")


_BASELINES = ("eoh", "funsearch")
"""Methods whose prompts show the parents and nothing else."""


def _several(write_input: WriteInput) -> str:
    """Return the parents, the fitter first; FunSearch shows them as versions, the last one the best."""
    parents = [_kernel(parent, write_input) for parent in write_input.parents]
    if write_input.operator is Operator.NEXT_VERSION:
        return "\n\n".join(f"Version {number}\n{text}" for number, text in enumerate(reversed(parents)))
    return "\n\n".join(f"Parent {number}\n{text}" for number, text in enumerate(parents, 1))


_NOTHING = "There is none yet: write the first one."


def _proposal_number(write_input: WriteInput) -> str:
    place = f"This is proposal {write_input.place + 1} of {write_input.places}"
    return f"{place} that are asked for at once; be different from the others."


def _insights(write_input: WriteInput) -> str:
    if not write_input.insights:
        return ""
    listed = "\n".join(f"- {insight}" for insight in write_input.insights)
    return f"# What was thought while earlier kernels were written\n{prompt.data('insights', listed)}\n"


def _kernel(attempt: Attempt | None, write_input: WriteInput, *, profiled: bool = False) -> str:
    if attempt is None:
        return _NOTHING
    assert attempt.kernel is not None
    if write_input.method in _SILENT:
        return kernel_text(attempt.kernel)
    lines = [prompt.data("name", attempt.name)] if attempt.name else []
    lines.append(candidates.measured(attempt.evaluation) + (_profile(attempt.evaluation) if profiled else ""))
    approach = prompt.data("approach", attempt.insight) if attempt.insight else ""
    return "\n".join(part for part in (*lines, approach, kernel_text(attempt.kernel)) if part)


def _profile(evaluation: Evaluation | None) -> str:
    """Return the profile in a line, as the published prompts have one.

    Percentages are of the device's measured peaks. The distance to the roofline bound is part of guidance, which these
    methods have none of.
    """
    if evaluation is None or evaluation.profile is None or evaluation.comparison(Baseline.EAGER) is None:
        return ""
    metrics = {name: value for name, value in evaluation.profile.metrics.items() if name != "floor_pct"}
    values = (f"{name} {value:.4g}" for name, value in sorted(metrics.items()))
    return f"; profile ({evaluation.profile.source.value}): {', '.join(values)}"


def _example(example: Example) -> str:
    parts = [
        prompt.data("other problem.py", example.reference),
        f"Its kernel, {example.speedup:.2f}x over PyTorch eager there:",
    ]
    if example.insight:
        parts.append(prompt.data("approach", example.insight))
    return "\n".join([*parts, kernel_text(example.kernel)])
