"""The roles as models play them, alone (``llm``) or from the playbook's seeds (``hybrid``).

Diagnosis and alignment rest on the playbook's rules over measurements and binaries: a model may word and rank, and
read the code, but what it claims is believed as far as source and binary show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from agents.interface import (
    AgentError,
    Agents,
    Alignment,
    Attempt,
    Briefing,
    Conversion,
    Draft,
    InitialStrategy,
    KernelAgent,
    KernelEngineer,
    Revision,
    Turn,
    Work,
    WriteInput,
)
from agents.llm.agent import LlmAgent
from agents.llm.alignment import AligningTranslator
from agents.llm.engineer import LlmEngineer
from agents.llm.gateway import Gateway
from agents.llm.ledger import Ledger, Limits
from agents.llm.manager import LlmManager
from agents.llm.models import AgentRole, RoleModels
from agents.llm.prophet import LlmProphet
from agents.llm.revisor import LlmRevisor
from agents.playbook import agents as playbook
from cupilot.domain.kernel import Kernel
from cupilot.domain.model_call import CostBudgetReached
from cupilot.domain.pool import Lesson, PoolMatch
from cupilot.domain.strategy import Strategy


def llm(models: RoleModels, ledger: Ledger, limits: Limits | None = None) -> Agents:
    """Return agents with models in every role that writes."""
    gateway = Gateway(models, ledger, limits)
    rules = playbook()
    # Rules diagnose well enough; a model words and ranks only where one is named for that role.
    prophet = LlmProphet(gateway, rules.prophet) if AgentRole.PROPHET in models.roles else rules.prophet
    return Agents(
        prophet=prophet,
        manager=LlmManager(gateway, prophet),
        translator=AligningTranslator(gateway, rules.translator, rules.prophet),
        revisor=LlmRevisor(gateway, rules.prophet),
        engineer=LlmEngineer(gateway),
        agent=LlmAgent(gateway, rules),
    )


def hybrid(models: RoleModels, ledger: Ledger, limits: Limits | None = None) -> Agents:
    """Return agents of which the playbook writes the first generation, as far as its templates go, and models the
    rest.
    """
    model = llm(models, ledger, limits)
    rules = playbook()
    assert model.engineer is not None
    assert model.agent is not None
    return Agents(
        prophet=model.prophet,
        manager=_HybridManager(rules, model),
        translator=_HybridTranslator(rules, model),
        revisor=model.revisor,
        engineer=_HybridEngineer(rules, model.engineer),
        agent=_HybridAgent(rules, model.agent),
    )


class _HybridManager:
    """First generation from the playbook, as far as its strategies go, the rest and crossover by a model."""

    def __init__(self, rules: Agents, model: Agents) -> None:
        self._rules = rules
        self._model = model

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
        """Return the playbook's, where it has a template for the operator and nothing to begin from, and for those that
        it lacks the model's.
        """
        rendered = [] if seeds else self._rendered(briefing, pool, count, seed, taken)
        if len(rendered) >= count:
            return rendered
        known = [*taken, *(initial.strategy for initial in rendered)]
        try:
            written = self._model.manager.initial_strategies(
                briefing, pool, count - len(rendered), seed, taken=known, seeds=seeds, outcomes=outcomes
            )
        except (AgentError, CostBudgetReached):
            if not rendered:
                raise
            return rendered
        return [*rendered, *written]

    def _rendered(
        self, briefing: Briefing, pool: Sequence[PoolMatch], count: int, seed: int, taken: Sequence[Strategy]
    ) -> list[InitialStrategy]:
        try:
            return self._rules.manager.initial_strategies(briefing, pool, count, seed, taken=taken)
        except AgentError:
            return []

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
        """Return the model's."""
        return self._model.manager.crossover(briefing, first, second, taken, seed, outcomes=outcomes)


class _HybridTranslator:
    """Strategies without a parent's code come from templates where those can, all others from a model."""

    def __init__(self, rules: Agents, model: Agents) -> None:
        self._rules = rules
        self._model = model

    def translate(
        self,
        briefing: Briefing,
        strategy: Strategy,
        parents: Sequence[Attempt],
        seed: int,
        *,
        lessons: Sequence[Lesson] = (),
    ) -> Kernel:
        """Translate by a template for the first generation, by a model that sees the parents' code for the others."""
        if not parents:
            try:
                return self._rules.translator.translate(briefing, strategy, (), seed)
            except AgentError:
                pass
        return self._model.translator.translate(briefing, strategy, parents, seed, lessons=lessons)

    def merge(self, briefing: Briefing, first: Attempt, second: Attempt, seed: int) -> Kernel:
        """Return the model's kernel."""
        return self._model.translator.merge(briefing, first, second, seed)

    def align(self, briefing: Briefing, attempt: Attempt) -> Alignment:
        """Align by the rules where a template wrote the kernel, else by what the model reads in it and the code
        shows.
        """
        reader = self._rules if self._is_rendered(briefing, attempt) else self._model
        return reader.translator.align(briefing, attempt)

    def _is_rendered(self, briefing: Briefing, attempt: Attempt) -> bool:
        try:
            return self._rules.translator.translate(briefing, attempt.strategy, (), 0) == attempt.kernel
        except AgentError:
            return False


class _HybridEngineer:
    """The first generation comes from templates, as far as those go; a model writes the others."""

    def __init__(self, rules: Agents, model: KernelEngineer) -> None:
        self._rules = rules
        self._model = model

    def convert(self, briefing: Briefing, attempts: Sequence[Conversion], seed: int) -> str:
        """Return the problem unconverted where a template writes the first kernel, which reads no conversion."""
        if self._seeds(briefing, 1):
            return briefing.problem.source
        return self._model.convert(briefing, attempts, seed)

    def write(self, briefing: Briefing, write_input: WriteInput, seed: int) -> Draft:
        """Write the first strategies of the playbook in generation 0, by the proposal's place.

        Later ask the model.
        """
        if write_input.generation == 0:
            seeds = self._seeds(briefing, write_input.places)
            if write_input.place < len(seeds):
                strategy = seeds[write_input.place]
                kernel = self._rules.translator.translate(briefing, strategy, (), seed)
                return Draft(kernel=kernel, strategy=strategy, name="template", insight=strategy.rationale)
        return self._model.write(briefing, write_input, seed)

    def repair(self, briefing: Briefing, history: Sequence[Attempt], seed: int) -> Revision | None:
        """Return the model's."""
        return self._model.repair(briefing, history, seed)

    def _seeds(self, briefing: Briefing, count: int) -> list[Strategy]:
        try:
            initial = self._rules.manager.initial_strategies(briefing, (), count, 0)
        except AgentError:
            return []
        return [strategy.strategy for strategy in initial]


class _HybridAgent:
    """A model works with tools; where it would begin from nothing, it begins from a template, as far as those go."""

    def __init__(self, rules: Agents, model: KernelAgent) -> None:
        self._rules = rules
        self._model = model

    def act(self, briefing: Briefing, work: Work, seed: int) -> Turn:
        """Let the model act, from a template that nobody has measured where there is no parent."""
        begun = work.parent or self._template(briefing, seed)
        return self._model.act(briefing, work.model_copy(update={"parent": begun}), seed)

    def _template(self, briefing: Briefing, seed: int) -> Attempt | None:
        try:
            (first, *_) = self._rules.manager.initial_strategies(briefing, (), 1, 0)
            kernel = self._rules.translator.translate(briefing, first.strategy, (), seed)
        except AgentError:
            return None
        return Attempt(strategy=first.strategy, kernel=kernel)
