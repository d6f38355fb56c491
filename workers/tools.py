"""What a step may use from outside: agents, the device, the pool. Made once a process, on first use.

The only place that names a concrete implementation; tests hand in others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cupilot.domain.evaluation import Evaluation, Preparation, PreparationResult, Tracing
from cupilot.domain.hardware import Device
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.job import AgentKind
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem, Target
from cupilot.domain.strategy import Strategy
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.queue.steps import Claim
from workers.devices import (
    NoDevice,
    StepCancelled,
    check_work_folder,
    find_device,
    uid_of,
)
from workers.ledger import SharedLimits, StepLedger

if TYPE_CHECKING:
    from agents.interface import Agents, Briefing
    from agents.llm.ledger import Ledger, Limits
    from agents.playbook.ablation import Ablation
    from cupilot.storage.pool.index import StrategyPool


BUILDS_AHEAD = {Target.CUDA: 4, Target.CPU: 0}
"""A build takes less than a measurement on a GPU; on a CPU it would disturb one."""


class Infrastructure(Exception):
    """The step failed through no fault of its kernel or problem; it is to be tried again elsewhere."""


class Judge(Protocol):
    """What a device step needs of :class:`gpu_worker.evaluator.Evaluator`."""

    def prepare(self, problem: Problem, *, timeout: float, cancelled: Callable[[], bool]) -> PreparationResult:
        """Check the reference, time the baseline, place it on the roofline."""
        ...

    def trace(self, problem: Problem, *, timeout: float, cancelled: Callable[[], bool]) -> Tracing:
        """Run a problem file once and say what it computes."""
        ...

    def evaluate(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        incumbent: float | None,
        candidate: bool = True,
        timeout: float,
        cancelled: Callable[[], bool],
    ) -> Evaluation:
        """Build, judge, time and profile a kernel; no further than until it is certainly slower than the incumbent.

        Hardware counters are read of a ``candidate`` to be the best, and of no other.
        """
        ...

    def confirm(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        tunables: Mapping[str, int],
        timeout: float,
        cancelled: Callable[[], bool],
    ) -> Evaluation:
        """Measure a kernel again in fresh processes, with the tunables that were chosen, against every baseline."""
        ...

    @property
    def builds_ahead(self) -> int:
        """How many kernels that wait may be built while another is measured; 0 for none."""
        ...

    def build_ahead(self, preparation: Preparation, kernels: Sequence[Kernel]) -> int:
        """Begin builds of kernels whose turn comes later, and return at once; how many were begun. Thread-safe."""
        ...

    def end_builds(self) -> None:
        """Kill builds that were begun ahead."""
        ...


def _ablations(briefing: Briefing, strategy: Strategy, winner: Kernel) -> list[Ablation]:
    from agents.playbook.ablation import ablations

    return ablations(briefing, strategy, winner)


@dataclass(frozen=True)
class Tools:
    """How to get at what a step needs; nothing is made before it is asked for."""

    settings: Settings
    database: Database
    agents: Callable[[AgentKind, Claim], Agents]
    """The agents of a kind; what their calls cost is charged to the claimed step's job."""
    judge: Callable[[], Judge]
    pool: Callable[[], StrategyPool]
    ablations: Callable[[Briefing, Strategy, Kernel], list[Ablation]] = _ablations
    """A winner without each of its techniques."""
    device_fault: Callable[[], str | None] = lambda: None
    """Looks at the device: why it cannot be used any more, or None."""


def make_tools(settings: Settings, database: Database, device: Device | None) -> Tools:
    """The real tools of a worker process; ``device`` is that of a GPU worker."""

    @cache
    def judge() -> Judge:
        if device is None:
            raise Infrastructure("this worker has no device")
        return DeviceJudge(device, settings)

    @cache
    def pool() -> StrategyPool:
        from cupilot.storage.pool.index import StrategyPool

        return StrategyPool(settings.chroma_url)

    def agents(kind: AgentKind, claim: Claim) -> Agents:
        return _agents(kind, StepLedger(database, claim), SharedLimits(database))

    return Tools(
        settings=settings,
        database=database,
        agents=agents,
        judge=judge,
        pool=pool,
        device_fault=lambda: _fault(device, settings),
    )


class DeviceJudge:
    """The real judge, which says in this room's words that it was told to stop."""

    def __init__(self, device: Device, settings: Settings) -> None:
        from gpu_worker.evaluator import Evaluator

        self.builds_ahead = BUILDS_AHEAD[device.target] if settings.build_ahead is None else settings.build_ahead
        self._evaluator = Evaluator(
            device.target,
            Path(settings.work_dir),
            device=uid_of(device),
            reuse=True,
            sweep=settings.sweep_points,
            builder=settings.cuda_builder if device.target is Target.CUDA else None,
            autotune=settings.max_autotune,
        )

    def prepare(self, problem: Problem, *, timeout: float, cancelled: Callable[[], bool]) -> PreparationResult:
        """See :class:`Judge`."""
        with _stopping():
            return self._evaluator.prepare(problem, timeout=timeout, cancelled=cancelled)

    def trace(self, problem: Problem, *, timeout: float, cancelled: Callable[[], bool]) -> Tracing:
        """See :class:`Judge`."""
        with _stopping():
            return self._evaluator.trace(problem, timeout=timeout, cancelled=cancelled)

    def evaluate(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        incumbent: float | None,
        candidate: bool = True,
        timeout: float,
        cancelled: Callable[[], bool],
    ) -> Evaluation:
        """See :class:`Judge`."""
        with _stopping():
            return self._evaluator.evaluate(
                problem,
                preparation,
                kernel,
                incumbent=incumbent,
                candidate=candidate,
                timeout=timeout,
                cancelled=cancelled,
            )

    def confirm(
        self,
        problem: Problem,
        preparation: Preparation,
        kernel: Kernel | ImportedKernel,
        *,
        tunables: Mapping[str, int],
        timeout: float,
        cancelled: Callable[[], bool],
    ) -> Evaluation:
        """See :class:`Judge`."""
        with _stopping():
            return self._evaluator.confirm(
                problem, preparation, kernel, tunables=tunables, timeout=timeout, cancelled=cancelled
            )

    def build_ahead(self, preparation: Preparation, kernels: Sequence[Kernel]) -> int:
        """See :class:`Judge`. None while a step measures on this machine's CPU."""
        from gpu_worker.turns import cpu_is_measured_on

        return 0 if cpu_is_measured_on() else self._evaluator.build_ahead(preparation, kernels)

    def end_builds(self) -> None:
        """See :class:`Judge`."""
        self._evaluator.end_builds()


@contextmanager
def _stopping() -> Iterator[None]:
    from gpu_worker.turns import Cancelled

    try:
        yield
    except Cancelled as error:
        raise StepCancelled from error


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
    from agents.llm.models import from_environment
    from agents.llm.players import hybrid, llm
    from agents.playbook import agents as playbook

    if kind is AgentKind.PLAYBOOK:
        return playbook()
    models = from_environment()
    if models is None:
        raise AgentError("no model is configured", hint="set CUPILOT_LLM_MODEL for the agent workers")
    return (llm if kind is AgentKind.LLM else hybrid)(models, ledger, limits)
