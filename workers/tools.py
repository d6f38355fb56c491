"""Tools that steps use from outside: agents, the judge, the pool. Made once a process, on first use.

The only place that names concrete implementations; tests pass others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from cupilot.domain.hardware import Device
from cupilot.domain.job import AgentKind
from cupilot.domain.kernel import Kernel
from cupilot.domain.strategy import Strategy
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.queue.steps import Claim
from workers.devices import NoDevice, check_work_folder, find_device, uid_of
from workers.judge import Judge, StepJudge, device_judge
from workers.ledger import SharedLimits, StepLedger
from workers.stages import InfrastructureFailure

if TYPE_CHECKING:
    from agents.interface import Agents, Briefing
    from agents.llm.ledger import Ledger, Limits
    from agents.playbook.ablation import Ablation
    from cupilot.storage.pool.index import StrategyPool

POOL_SECONDS, POOL_REST_SECONDS = 2.0, 30.0
"""Seconds that a step waits for Chroma; a Chroma that did not answer is not asked for as long. Steps go on without."""


def _ablations(briefing: Briefing, strategy: Strategy, winner: Kernel) -> list[Ablation]:
    from agents.playbook.ablation import ablations

    return ablations(briefing, strategy, winner)


@dataclass(frozen=True)
class Tools:
    """The tools of steps; each is made on first use."""

    settings: Settings
    database: Database
    agents: Callable[[AgentKind, Claim, Callable[[], bool]], Agents]
    """The agents of a kind; what their calls cost is charged to the claimed step's job. They begin no call once the
    last argument returns true: the step is to be left."""
    judge: Callable[[], Judge]
    pool: Callable[[], StrategyPool]
    ablations: Callable[[Briefing, Strategy, Kernel], list[Ablation]] = _ablations
    """The winner written without each of its techniques."""
    device_fault: Callable[[], str | None] = lambda: None
    """Looks at the device: why it cannot be used any more, or None."""
    retired: Event = field(default_factory=Event)
    """Set once this process cannot serve any more: it returns what it is sent until it is ended."""

    def step_judge(self, cancelled: Callable[[], bool]) -> StepJudge:
        """Return the judge as one step asks it."""
        return StepJudge(self.judge(), self.settings, cancelled)


def make_tools(settings: Settings, database: Database, device: Device | None) -> Tools:
    """Return the tools of a worker process; ``device`` is that of a GPU worker."""

    @cache
    def judge() -> Judge:
        if device is None:
            raise InfrastructureFailure("this worker has no device")
        return device_judge(device, settings)

    @cache
    def pool() -> StrategyPool:
        from cupilot.storage.pool.index import StrategyPool

        return StrategyPool(settings.chroma_url, timeout=POOL_SECONDS, rest=POOL_REST_SECONDS)

    def agents(kind: AgentKind, claim: Claim, cancelled: Callable[[], bool]) -> Agents:
        return _agents(kind, StepLedger(database, claim, cancelled), SharedLimits(database))

    return Tools(
        settings=settings,
        database=database,
        agents=agents,
        judge=judge,
        pool=pool,
        device_fault=lambda: _fault(device, settings),
    )


def _fault(device: Device | None, settings: Settings) -> str | None:
    if device is None:
        return None
    try:
        check_work_folder(Path(settings.work_dir))
        find_device(device.target, uid_of(device))
    except NoDevice as error:
        return error.message
    return None


def _agents(kind: AgentKind, ledger: Ledger, limits: Limits) -> Agents:
    from agents.interface import AgentError
    from agents.llm.assembly import hybrid, llm
    from agents.llm.models import from_environment
    from agents.playbook import agents as playbook

    if kind is AgentKind.PLAYBOOK:
        return playbook()
    models = from_environment()
    if models is None:
        raise AgentError("no model is configured", hint="set CUPILOT_LLM_MODEL for the agent workers")
    return (llm if kind is AgentKind.LLM else hybrid)(models, ledger, limits)
