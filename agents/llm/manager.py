"""The SCE Manager played by a model: initial strategies and strategy-level crossover. Writes no code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from agents.interface import Attempt, Briefing, InitialStrategy, RooflineProphet, StrategySource
from agents.llm import answers, candidates, offered, prompt
from agents.llm.gateway import AnswerError, Gateway, Question
from agents.llm.models import AgentRole
from cupilot.domain.evolution.novelty import strategy_key
from cupilot.domain.pool import PoolMatch
from cupilot.domain.strategy import Strategy
from cupilot.domain.technique import catalogue


class LlmManager:
    """See :class:`agents.interface.SceManager`."""

    def __init__(self, gateway: Gateway, prophet: RooflineProphet | None = None) -> None:
        """Make a manager; ``prophet`` says why a parent is not faster, if roofline guidance is on."""
        self._gateway = gateway
        self._prophet = prophet

    def initial_strategies(
        self,
        briefing: Briefing,
        pool: Sequence[PoolMatch],
        count: int,
        seed: int,
        *,
        taken: Sequence[Strategy] = (),
        seeds: Sequence[Attempt] = (),
        outcomes: Mapping[str, str] = MappingProxyType({}),
    ) -> list[InitialStrategy]:
        """Ask for all strategies in one call.

        Those that break the catalogue's rules are left out where others are good.
        """
        file = prompt.prompt("manager_initial")
        messages = file.messages(
            count=str(count),
            catalogue=offered.techniques(catalogue(), briefing),
            pool=prompt.pool(tuple(pool)),
            seeds="\n".join(candidates.attempt(briefing, seed_attempt) for seed_attempt in seeds)
            or "Nothing: the kernels are written from scratch.",
            taken=candidates.tried(taken, outcomes),
            **prompt.about(briefing),
        )
        question = Question(AgentRole.MANAGER, "initial", messages, file.hash, seed, json_answer=True)
        strategies = self._gateway.ask(question, lambda text: _several(text, briefing))
        learned = {match.entry.strategy.signature(): match.entry.id for match in pool}
        return [_with_source(strategy, learned) for strategy in _distinct(strategies)[:count]]

    def crossover(
        self,
        briefing: Briefing,
        first: Attempt,
        second: Attempt,
        taken: Sequence[Strategy],
        seed: int,
        *,
        outcomes: Mapping[str, str] = MappingProxyType({}),
    ) -> Strategy:
        """Return one strategy.

        A repetition of one in use gets the repair turn, and is returned if it is repeated even so.
        """
        file = prompt.prompt("manager_crossover")
        messages = file.messages(
            first=candidates.attempt(briefing, first, candidates.diagnosed(self._prophet, briefing, first)),
            second=candidates.attempt(briefing, second, candidates.diagnosed(self._prophet, briefing, second)),
            catalogue=offered.techniques(catalogue(), briefing),
            taken=candidates.tried(taken, outcomes),
            **prompt.about(briefing),
        )
        question = Question(AgentRole.MANAGER, "crossover", messages, file.hash, seed, json_answer=True)
        known = {strategy_key(strategy, catalogue()) for strategy in taken}
        repeated: list[Strategy] = []

        def parse(text: str) -> Strategy:
            crossed = answers.proposed(answers.json_object(text), catalogue(), briefing)
            if not crossed.rationale.strip():
                raise AnswerError("the rationale is missing: what was taken from which parent, what is new, and why")
            if strategy_key(crossed, catalogue()) in known and not repeated:
                repeated.append(crossed)
                raise AnswerError("this job already has that strategy; write a different one")
            return crossed

        return self._gateway.ask(question, parse)


def _several(text: str, briefing: Briefing) -> list[Strategy]:
    listed = answers.checked(answers.StrategyList, answers.json_object(text))
    good: list[Strategy] = []
    complaints: list[str] = []
    for position, value in enumerate(listed.strategies):
        try:
            good.append(answers.proposed(value, catalogue(), briefing))
        except AnswerError as complaint:
            complaints.append(f"strategy {position}: {complaint}")
    if not good:
        raise AnswerError("; ".join(complaints))
    return good


def _distinct(strategies: Sequence[Strategy]) -> list[Strategy]:
    return list({strategy.signature(): strategy for strategy in reversed(strategies)}.values())[::-1]


def _with_source(strategy: Strategy, learned: dict[str, str]) -> InitialStrategy:
    entry = learned.get(strategy.signature())
    source = StrategySource.POOL if entry else StrategySource.IDEA
    return InitialStrategy(strategy=strategy, source=source, pool_entry=entry)
