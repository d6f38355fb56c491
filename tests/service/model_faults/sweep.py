"""One job whose model calls are hurt: every step that asks a model is done by a real process that dies where told.

The server keeps its own books of what it was asked and what it charges; :func:`audit` compares them with the database.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import select, text, update

from cupilot.domain.evaluation import PreparationResult
from cupilot.domain.evolution.ai_cuda_engineer import AiCudaEngineerConfig
from cupilot.domain.evolution.eoh import EohConfig
from cupilot.domain.evolution.evoengineer import EvoEngineerFreeConfig, EvoEngineerFullConfig, EvoEngineerInsightConfig
from cupilot.domain.evolution.funsearch import FunSearchConfig
from cupilot.domain.evolution.methods import MethodConfig
from cupilot.domain.evolution.sce import CrossoverLevel, SceConfig
from cupilot.domain.job import AgentKind
from cupilot.domain.problem import Problem
from cupilot.domain.states import CandidateState, JobState, LlmCallState, WorkerKind
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.models import LlmCall
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.queue.cluster import beat, register_worker
from cupilot.storage.queue.steps import MODELS_QUEUE
from tests.scripted_model import Reply, ScriptedModel
from tests.service.doubles import ScriptedJudge
from tests.service.faults.matrix.audit import row_breaches
from tests.service.model_faults.moods import HANG_SECONDS, Script
from tests.service.model_faults.worker import INPUT_USD, OUTPUT_USD, Point
from tests.service.rig import Message, Rig
from workers.reaper import reap

ROOT = Path(__file__).parents[3]
SPENT = ("duplicate_strategy", "duplicate_kernel", "bad_model_answer")
"""Why a candidate may end without an evaluation where a repair turn went to a bad answer."""
ATTEMPTS = 100
"""Of a step: it dies more often than a service would allow."""

METHODS: dict[str, tuple[MethodConfig, AgentKind]] = {
    "sce": (SceConfig(population=3, generations=2, elites=1, repair_rounds=1), AgentKind.LLM),
    "sce, code crossover": (
        SceConfig(population=3, generations=2, elites=1, repair_rounds=1, crossover=CrossoverLevel.CODE),
        AgentKind.LLM,
    ),
    "evoengineer-free": (EvoEngineerFreeConfig(generations=2, samplers=2), AgentKind.LLM),
    "evoengineer-insight": (EvoEngineerInsightConfig(generations=2, samplers=2), AgentKind.LLM),
    "eoh": (EohConfig(generations=2, samplers=4, population=2), AgentKind.LLM),
    "funsearch": (FunSearchConfig(generations=2, samplers=2, islands=2), AgentKind.LLM),
    "evoengineer-full": (EvoEngineerFullConfig(generations=3, samplers=2), AgentKind.LLM),
    "ai-cuda-engineer": (
        AiCudaEngineerConfig(retries=2, generations=1, proposals=2, compositions=1),
        AgentKind.LLM,
    ),
    "sce, hybrid": (SceConfig(population=3, generations=2, elites=1, repair_rounds=1), AgentKind.HYBRID),
    "evoengineer-free, hybrid": (EvoEngineerFreeConfig(generations=2, samplers=2), AgentKind.HYBRID),
    "ai-cuda-engineer, hybrid": (
        AiCudaEngineerConfig(retries=2, generations=1, proposals=2, compositions=1),
        AgentKind.HYBRID,
    ),
}


@dataclass(frozen=True)
class Asked:
    """One request in the server's books."""

    usd: float
    """The server's charge for it."""
    answered: bool
    """True if a whole completion was sent."""
    reached: bool
    """True if the process that asked lived to take it."""


@dataclass
class Outcome:
    """Result of one job."""

    state: JobState
    reason: str | None
    story: list[tuple[object, ...]]
    """Each candidate: what it was, and what it came to."""
    kills: Counter[str]
    """Times that a process was killed, by kind of step and point."""
    asked: list[Asked]
    charged_usd: float
    """By the database's books."""
    reserved_usd: float
    lost: int
    """Calls of which nobody knows what they cost."""
    breaches: list[str] = field(default_factory=list)

    def departures(self, usual: Outcome, *, bad_answers: bool = False) -> list[str]:
        """In what this job came to something else than the undisturbed one may, as sentences.

        Kills change nothing. An answer that could not be read (``bad_answers``) uses up a repair turn, which the
        undisturbed job may have spent on a proposal that was none the newer: that candidate may then end without a
        kernel, for a reason that is said. The end, and what was tried, stay the same.
        """
        found = [] if self.state is usual.state else [f"it ended as {self.state}, not as {usual.state}"]
        if not bad_answers:
            return found if self.story == usual.story else [*found, f"its candidates are others: {self.story}"]
        if [event[:2] for event in self.story] != [event[:2] for event in usual.story]:
            found.append(f"it tried something else: {self.story}")
        for ordinal, _, kernel, state, reason, *_ in self.story:
            whole = state is CandidateState.EVALUATED and kernel is not None
            if not whole and reason not in SPENT:
                found.append(f"candidate {ordinal} is {state}, reason {reason}")
        return found


class TemplatedJudge(ScriptedJudge):
    """Prepares the problem so that the playbook has templates for it, as ``hybrid`` needs."""

    def prepare(self, problem: Problem, **named: Any) -> PreparationResult:
        """See :meth:`workers.judge.Judge.prepare`."""
        found = super().prepare(problem, **named).preparation
        assert found is not None
        assert found.facts.graph is not None
        node = found.facts.graph.nodes[0].model_copy(update={"args": ({"ref": "x"}, 1, False)})
        graph = found.facts.graph.model_copy(update={"nodes": (node,)})
        facts = found.facts.model_copy(update={"graph": graph})
        return PreparationResult(preparation=found.model_copy(update={"facts": facts}))


class Worker:
    """The agent worker, the model that it asks, and the model's books."""

    def __init__(self, settings: Settings, log: Path) -> None:
        self.script: Script | None = None
        self.asked: list[Asked] = []
        self._calls: queue.Queue[dict[str, Any]] = queue.Queue()
        self._model = ScriptedModel(self._answer)
        self._model.__enter__()
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.service.model_faults.worker", self._model.api_base],
            env=os.environ | {"CUPILOT_DATABASE_URL": settings.database_url.get_secret_value()},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self._read() == {"ready": True}

    def close(self) -> None:
        """Let it end."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        self._log.close()
        self._model.__exit__()

    def do(self, order: dict[str, Any]) -> tuple[int, list[str] | None]:
        """One attempt of a step: the process's exit status, and at which call and point it was killed, if it was."""
        assert self._process.stdin
        self._process.stdin.write((json.dumps(order) + "\n").encode())
        self._process.stdin.flush()
        died: list[str] | None = None
        while True:
            said = self._read()
            if "ended" in said:
                return said["ended"], died
            if "died" in said:
                died = said["died"]
            else:
                died = [said["calls"], Point.SENT] if said["kill"] else None
                self._calls.put(said)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the worker has ended; see its log"
        said: dict[str, Any] = json.loads(line)
        return said

    def _answer(self, request: dict[str, Any]) -> Reply:
        """Enter the script's answer, at a price that depends on it, into the books."""
        call = self._calls.get(timeout=60)
        assert self.script
        said = self.script(request)
        prompt = sum(len(turn["content"]) for turn in request["messages"]) // 4
        reply = replace(said, prompt_tokens=prompt, completion_tokens=10 + len(said.text or "") // 4)
        charged = reply.status == 200 and reply.raw is None
        usd = (prompt * INPUT_USD + reply.completion_tokens * OUTPUT_USD) / 1e6 if charged else 0.0
        whole = charged and not reply.hang_up and not reply.delay and not reply.drip
        self.asked.append(Asked(usd, answered=whole, reached=not call["kill"]))
        if call["kill"]:
            with suppress(ProcessLookupError):
                os.kill(call["pid"], signal.SIGKILL)
        return reply


class FaultyRig(Rig):
    """A rig whose model steps are done, and survived or not, by the worker."""

    def __init__(self, database: Database, settings: Settings, worker: Worker, *, templates: bool) -> None:
        super().__init__(database, settings)
        if templates:
            self.judge = TemplatedJudge()
        self.worker = worker
        self.points: Sequence[Point] = ()
        self.rotate = False
        """True if each step dies at one of the points in turn, rather than at all of them."""
        self.timeout = 300.0
        self.kills: Counter[str] = Counter()
        self._struck: dict[str, list[list[str]]] = {}
        self._dead: list[uuid.UUID] = []
        with database.transaction() as session:
            register_worker(
                session, "llm-1", WorkerKind.AGENT, queues=[MODELS_QUEUE], slots=1, version="test", device=None
            )

    def run(self, rounds: int = 10_000) -> None:
        """To the end. A step that died waits until nothing else can be done: what its next attempt sees has changed."""
        for _ in range(rounds):
            with self.database.transaction() as session:
                for name in ("agent-1", "gpu-1", "llm-1"):
                    beat(session, name)
            messages = self.publish()
            for message in messages:
                self.do(message)
            if not messages and not self._dead:
                return
            if not messages:
                self.make_ready(self._dead.pop(0))
        raise AssertionError("the job does not come to an end")

    def do(self, message: Message, draining: bool = False) -> None:
        """Model steps in a process of their own."""
        if message[2] != MODELS_QUEUE:
            super().do(message, draining)
            return
        step, attempt = message[1]
        struck = self._struck.setdefault(step, [])
        points = [self.points[len(self._struck) % len(self.points)]] if self.rotate else list(self.points)
        if self.rotate and struck:
            points = [Point(struck[0][1])]
        order = {"step": step, "attempt": attempt, "points": points, "struck": struck, "timeout": self.timeout}
        status, died = self.worker.do(order)
        assert status == (0 if died is None else -signal.SIGKILL), f"exit status {status}"
        if died is not None:
            struck.append(died)
            self._bury(uuid.UUID(step), died[1])

    def rows(self, query: str, **parameters: object) -> Sequence[Sequence[Any]]:
        """Rows of the database."""
        with self.database.transaction() as session:
            return [tuple(row) for row in session.execute(text(query), parameters)]

    def _bury(self, step_id: uuid.UUID, point: str) -> None:
        """The dead process's lease runs out, and the reaper finds it."""
        with self.database.transaction() as session:
            kind = session.get_one(Step, step_id).kind
            gone = {"lease_expires_at": datetime(2020, 1, 1, tzinfo=UTC), "max_attempts": ATTEMPTS}
            session.execute(update(Step).where(Step.id == step_id).values(gone))
        self.kills[f"{kind.value}: {point}"] += 1
        reap(self.database)
        self._dead.append(step_id)


def run(
    database: Database,
    settings: Settings,
    worker: Worker,
    method: str,
    script: Script,
    *,
    points: Sequence[Point] = (),
    rotate: bool = False,
    slow: bool = False,
) -> Outcome:
    """A job of a team of its own, to its end; ``slow`` where the model answers so, and the client waits less for it."""
    config, agents = METHODS[method]
    rig = FaultyRig(database, settings, worker, templates=agents is AgentKind.HYBRID)
    rig.points, rig.rotate = points, rotate
    rig.timeout = HANG_SECONDS / 2 if slow else 300.0
    worker.script, worker.asked = script, []
    job_id = rig.submit(uuid.uuid4().hex, agents=agents, method=config)
    rig.run()
    job, calls = rig.job(job_id), _calls(database, job_id)
    story = [
        (
            candidate.ordinal,
            candidate.operator,
            candidate.kernel_hash,
            candidate.state,
            candidate.reason,
            candidate.speedup,
            candidate.notes.insight,
        )
        for candidate in rig.candidates(job_id)
    ]
    lost = [call for call in calls if call.state is LlmCallState.LOST]
    reserved = sum(call.cost_usd for call in lost)
    outcome = Outcome(job.state, job.reason, story, rig.kills, worker.asked, job.cost_usd, reserved, len(lost))
    outcome.breaches = [*row_breaches(rig, [job_id]), *audit(job, calls, worker.asked, rig.kills)]
    return outcome


def audit(job: Job, calls: Sequence[LlmCall], asked: Sequence[Asked], kills: Counter[str]) -> list[str]:
    """Return, as sentences, where the database's books do not agree with the server's."""
    dead = Counter(point.partition(": ")[2] for point in kills.elements())
    taken = [item for item in asked if item.answered and item.reached]
    unstored = dead[Point.RECEIVED]  # whole answers whose process died with them
    cut = [item for item in asked if (item.usd and not item.answered) or not item.reached]
    unread = sum(1 for item in asked if not item.usd and not item.answered and item.reached)
    states = Counter(call.state for call in calls)
    found = []
    if not job.state.final:
        found.append(f"the job is {job.state}")
    if states[LlmCallState.STARTED]:
        found.append(f"{states[LlmCallState.STARTED]} calls are on their way for ever")
    if states[LlmCallState.ANSWERED] != len(taken) - unstored:
        found.append(f"{states[LlmCallState.ANSWERED]} stored answers of {len(taken)} given, {unstored} died unstored")
    unknown = states[LlmCallState.LOST] + states[LlmCallState.FAILED]
    if unknown != len(cut) + unread + unstored + dead[Point.RECORDED]:
        found.append(f"{unknown} calls without an answer on record, not those that had none")
    true_usd, all_usd = sum(item.usd for item in taken), sum(item.usd for item in asked)
    reserved = sum(call.cost_usd for call in calls if call.state is LlmCallState.LOST)
    if not unstored and abs(job.cost_usd - true_usd) > 1e-9:
        found.append(f"charged {job.cost_usd} USD, the server {true_usd}")
    if job.cost_usd > true_usd + 1e-9 or job.cost_usd + reserved < all_usd - 1e-9:
        found.append(f"{job.cost_usd} + {reserved} USD on record do not cover the server's {all_usd}")
    return found


def _calls(database: Database, job_id: uuid.UUID) -> list[LlmCall]:
    with database.transaction() as session:
        return list(session.scalars(select(LlmCall).where(LlmCall.job_id == job_id, ~LlmCall.cached)))
