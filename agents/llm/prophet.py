"""The Roofline Prophet with a model: rules diagnose, the model words the cause and ranks the advice.

It cannot add a cause, a number or a technique, and where it gives no usable answer the rules' own words stand.
"""

from __future__ import annotations

import logging

from pydantic import BaseModel, ConfigDict, Field

from agents.interface import AgentError, Attempt, Briefing, Diagnosis, RooflineProphet
from agents.llm import answers, candidates, prompt
from agents.llm.gateway import AnswerError, Gateway, Question
from agents.llm.models import AgentRole
from cupilot.domain.evolution.seeds import derive
from cupilot.domain.model_call import CostBudgetReached

logger = logging.getLogger(__name__)


class _Advice(BaseModel):
    model_config = ConfigDict(extra="ignore")
    technique: str
    reason: str = Field(min_length=1, max_length=1_000)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore")
    cause: str = Field(min_length=1, max_length=2_000)
    advice: list[_Advice] = Field(max_length=50)


class LlmProphet:
    """See :class:`agents.interface.RooflineProphet`."""

    def __init__(self, gateway: Gateway, rules: RooflineProphet) -> None:
        self._gateway = gateway
        self._rules = rules

    def diagnose(self, briefing: Briefing, attempt: Attempt) -> Diagnosis:
        """Return the rules' diagnosis in the model's words and order.

        As the rules have it where there is nothing to rank.
        """
        diagnosis = self._rules.diagnose(briefing, attempt)
        if attempt.kernel is None or len(diagnosis.advice) < 2:
            return diagnosis
        file = prompt.prompt("prophet")
        messages = file.messages(
            candidate=candidates.attempt(briefing, attempt),
            diagnosis=prompt.data("diagnosis", candidates.diagnosis(diagnosis)),
            **prompt.about(briefing),
        )
        kernel = attempt.kernel.content_hash()
        # Each kernel draws its own model of the role's ensemble, the same one whenever it is diagnosed.
        seed = derive(0, "diagnose", kernel)
        purpose = f"diagnose/{kernel[:8]}"
        question = Question(AgentRole.PROPHET, purpose, messages, file.hash, seed, json_answer=True)
        try:
            return self._gateway.ask(question, lambda text: _reworded(text, diagnosis))
        except (AgentError, CostBudgetReached) as error:
            logger.info("keeping the rules' diagnosis: %s", error)
            return diagnosis


def _reworded(text: str, diagnosis: Diagnosis) -> Diagnosis:
    answer = answers.checked(_Answer, answers.json_object(text))
    known = {advice.technique: advice for advice in diagnosis.advice}
    unknown = sorted({advice.technique for advice in answer.advice} - set(known))
    if unknown:
        raise AnswerError(f"the rules did not name {', '.join(unknown)}; rank only {', '.join(known)}")
    ranked = {
        advice.technique: known[advice.technique].model_copy(update={"reason": advice.reason})
        for advice in answer.advice
    }
    return diagnosis.model_copy(update={"cause": answer.cause, "advice": tuple(ranked.values()) or diagnosis.advice})
