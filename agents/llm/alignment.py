"""Alignment with a model: the model rewrites the strategy to what the code does, source and binary decide.

A technique stays only where the rules find its traces in source and machine code, or, where it leaves none that could
be looked for, where the model quotes the line of the source that shows it. What was asked for, left its traces and is
missing in the answer comes back, and so does what a technique that stays requires.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agents.interface import AgentError, Alignment, Attempt, Briefing, RooflineProphet, StrategyTranslator
from agents.llm import answers, offered, prompt
from agents.llm.candidates import kernel_text
from agents.llm.gateway import AnswerError, Gateway, Question
from agents.llm.models import AgentRole
from agents.llm.translator import LlmTranslator
from agents.playbook.evidence import UNTELLING, leaves_trace, missing
from agents.playbook.preconditions import restored
from cupilot.domain.evaluation import BuildReport
from cupilot.domain.evolution.seeds import derive
from cupilot.domain.kernel import Kernel
from cupilot.domain.model_call import CostBudgetReached
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.domain.technique import catalogue

logger = logging.getLogger(__name__)

MAX_RATIONALE = 4_000
MIN_EVIDENCE = 8
"""Characters without blanks that a part of a line needs as evidence: shorter ones (``if (``) stand in every source."""


class _Claim(BaseModel):
    model_config = ConfigDict(extra="ignore")
    id: str
    parameters: dict[str, Any] = {}
    meaning: str = Field(default="", max_length=2_000)
    evidence: str = Field(default="", max_length=2_000)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore")
    techniques: list[_Claim] = Field(max_length=50)
    rationale: str = Field(min_length=1, max_length=2_000)


class AligningTranslator(LlmTranslator):
    """A translator that also reads code, and so is a whole :class:`agents.interface.StrategyTranslator`."""

    def __init__(self, gateway: Gateway, rules: StrategyTranslator, prophet: RooflineProphet | None = None) -> None:
        super().__init__(gateway, prophet)
        self._rules = rules

    def align(self, briefing: Briefing, attempt: Attempt) -> Alignment:
        """Return the strategy as the code follows it; by the rules alone where the model gives no usable answer."""
        if attempt.kernel is None:
            return self._rules.align(briefing, attempt)
        file = prompt.prompt("translator_align")
        messages = file.messages(
            operator=prompt.operator(briefing),
            strategy=prompt.data("strategy", prompt.strategy_json(attempt.strategy)),
            kernel=kernel_text(attempt.kernel),
            build=build_facts(attempt.evaluation.build if attempt.evaluation else None),
            catalogue=offered.techniques(catalogue(), briefing),
        )
        # Each kernel draws its own model of the role's ensemble, the same one whenever it is read.
        seed = derive(0, "align", attempt.kernel.content_hash())
        question = Question(AgentRole.TRANSLATOR, "align", messages, file.hash, seed, json_answer=True)
        try:
            return self._gateway.ask(question, _Reader(briefing, attempt).read)
        except (AgentError, CostBudgetReached) as error:
            logger.info("aligned by the rules alone: %s", error)
            return self._rules.align(briefing, attempt)


def build_facts(build: BuildReport | None) -> str:
    """Return the build report as a model reads it: resources and telling instructions."""
    if build is None:
        return "Unknown."
    resources = {
        "registers": build.registers,
        "spill_bytes": build.spill_bytes,
        "static_shared_bytes": build.shared_bytes,
    }
    known = [f"{name} = {value}" for name, value in resources.items() if value is not None]
    counts = [f"{name} = {count}" for name, count in sorted(build.instructions.items())]
    return f"Resources: {', '.join(known) or 'unknown'}. Instructions: {', '.join(counts) or 'unknown'}."


class _Reader:
    """Reads the model's answers; misquoted lines get the one repair turn, and are struck after that."""

    def __init__(self, briefing: Briefing, attempt: Attempt) -> None:
        self._briefing = briefing
        self._attempt = attempt
        self._asked_again = False

    def read(self, text: str) -> Alignment:
        """Return the strategy as the code follows it.

        Without every claim that neither binary nor source shows; with what they show and the answer leaves out.
        """
        attempt, briefing = self._attempt, self._briefing
        assert attempt.kernel is not None
        answer = answers.checked(_Answer, answers.json_object(text))
        claims = list({claim.id: claim for claim in answer.techniques}.values())
        raw = {"techniques": [_technique_of(claim, attempt.strategy) for claim in claims]}
        read = answers.strategy(raw | {"rationale": answer.rationale}, catalogue(), briefing)
        quoted = {claim.id for claim in claims if _is_quoted_from(claim.evidence, attempt.kernel.source)}
        self._check_quotations(read, quoted)
        build = attempt.evaluation.build if attempt.evaluation else None
        absent = missing(read, attempt.kernel, build)
        kept = tuple(
            use for use in read.techniques if use.id not in absent and _has_evidence(use, quoted, attempt.kernel)
        )
        absent_of_asked = missing(attempt.strategy, attempt.kernel, build)
        kept = restored(briefing, attempt.strategy, kept, _shown(attempt, absent_of_asked))
        struck = _unfulfilled(attempt.strategy, kept, absent_of_asked)
        rationale = answer.rationale
        if struck:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in struck.items())
            rationale = f"{rationale}\nStruck after the build: {reasons}."[:MAX_RATIONALE]
        claimed = len(attempt.strategy.techniques)
        fidelity = (claimed - len(struck)) / claimed if claimed else 1.0
        return Alignment(
            strategy=Strategy(techniques=kept, rationale=rationale), struck=tuple(struck), fidelity=fidelity
        )

    def _check_quotations(self, read: Strategy, quoted: set[str]) -> None:
        assert self._attempt.kernel is not None
        unproven = [use.id for use in read.techniques if not _has_evidence(use, quoted, self._attempt.kernel)]
        if unproven and not self._asked_again:
            self._asked_again = True
            raise AnswerError(
                f"the evidence of {', '.join(unproven)} does not stand in the source: quote one line of code exactly,"
                " without its comment, or leave the technique out"
            )


def _shown(attempt: Attempt, absent: Collection[str]) -> set[str]:
    """Return the techniques that were asked for and whose telling traces source and binary show."""
    assert attempt.kernel is not None
    target = attempt.kernel.target
    return {
        name
        for name in attempt.strategy.ids()
        if name not in absent and name not in UNTELLING and leaves_trace(name, target)
    }


def _technique_of(claim: _Claim, strategy: Strategy) -> dict[str, Any]:
    """Return a claim as a technique of a strategy; a corrected meaning replaces the one that was asked for.

    Without values that the catalogue does not list: code may have any, and a strategy cannot say so.
    """
    use, technique = strategy.use(claim.id), catalogue().get(claim.id)
    meaning = claim.meaning or (use.meaning if use else "")
    listed = technique.parameters if technique else {}
    sayable = {
        name: value for name, value in claim.parameters.items() if name in listed and value in listed[name].choices
    }
    return {"id": claim.id, "parameters": sayable if technique else claim.parameters, "meaning": meaning}


def _has_evidence(use: TechniqueUse, quoted: set[str], kernel: Kernel) -> bool:
    return leaves_trace(use.id, kernel.target) or use.id in quoted


def _unfulfilled(strategy: Strategy, kept: tuple[TechniqueUse, ...], absent: dict[str, str]) -> dict[str, str]:
    """Return the techniques that were asked for and are not there, each with the reason."""
    there = {use.id for use in kept}
    reason = "the code was read and does not show it"
    return {use.id: absent.get(use.id, reason) for use in strategy.techniques if use.id not in there}


def _is_quoted_from(quoted: str, source: str) -> bool:
    """Return whether the quotation is code of the source.

    Blanks do not matter, comments are no evidence, nor is a bracket.
    """
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.S)
    wanted = "".join(re.sub(r"//.*", "", quoted).split())
    if len(wanted) >= MIN_EVIDENCE:
        return wanted in "".join(code.split())
    return any(map(str.isalnum, wanted)) and wanted in {"".join(line.split()) for line in code.splitlines()}
