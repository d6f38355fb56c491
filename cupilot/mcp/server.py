"""The tools that a coding agent calls, and what it is told about them. They hold no state and decide nothing."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Coroutine
from importlib.resources import files
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field, ValidationError

from cupilot import __version__
from cupilot.client import ApiError, AsyncClient
from cupilot.domain import problems as builtin
from cupilot.domain.errors import CupilotError, InvalidInput
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import AgentKind, Budgets
from cupilot.domain.pool import PoolQuestion
from cupilot.domain.problem import NumericsPolicy, Target, best_target
from cupilot.schemas import ImportRequest, JobRequest, JobView, ProblemInput

LONGEST_WAIT_SECONDS = 120.0
"""Of one call: below the time after which common clients give up. The job goes on."""
LOOK_SECONDS = 1.0
PAGE = 200
"""Most items of a page of a list."""

Connect = Callable[[Context[Any, Any]], AsyncClient]
"""Return a client with the key of whoever calls."""
Tool = Callable[..., Coroutine[Any, Any, dict[str, Any]]]
"""Takes a client before its own arguments."""

Reference = Annotated[
    str | None,
    Field(
        description="Source of your operator in KernelBench's format: class Model, get_inputs(), get_init_inputs()."
        " Give this, or `problem`."
    ),
]
Problem = Annotated[str | None, Field(description="Name of a built-in problem, e.g. softmax; see `problems`.")]
Board = Annotated[
    str | None, Field(description="Name of a problem that jobs here have kernels for, or its hash; see the list.")
]
WhereTo = Annotated[
    Target | None, Field(description="By default cuda where a live worker has it, else cpu; see targets_now.")
]
Cursor = Annotated[str | None, Field(description="The next_cursor of the page before; without it, the first page.")]
Job = Annotated[str, Field(description="A job's id, as submit_job returned it.")]
Kernel = Annotated[str, Field(description="A job's id (for its best kernel), JOB:N for its candidate N, or an id.")]


def build(connect: Connect) -> MCPServer:
    """Return a server of all tools, each of which asks the service through ``connect``."""
    instructions = files("cupilot.mcp").joinpath("instructions.txt").read_text(encoding="utf-8")
    server = MCPServer("cupilot", title="cuPilot", instructions=instructions, version=__version__, log_level="WARNING")
    for tool in (
        problems,
        plan_job,
        submit_job,
        job_status,
        wait_for_job,
        cancel_job,
        job_result,
        candidates,
        judge_file,
        kernel_profile,
        diff,
        leaderboard,
        search_pool,
        techniques,
    ):
        server.tool()(_bound(tool, connect))
    return server


def _bound(tool: Tool, connect: Connect) -> Tool:
    """Return the tool as the protocol calls it: with a context, out of which the client is made."""

    @functools.wraps(tool)
    async def called(ctx: Context[Any, Any], **arguments: Any) -> dict[str, Any]:
        progress = {"ctx": ctx} if tool is wait_for_job else {}
        try:
            async with connect(ctx) as client:
                return await tool(client, **arguments, **progress)
        except (ApiError, CupilotError) as error:
            raise ToolError(_words(error)) from error
        except ValidationError as error:
            raise ToolError(f"invalid_input: {error}") from error

    own = inspect.signature(tool, eval_str=True)
    shown = [value for name, value in own.parameters.items() if name not in ("client", "ctx")]
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=Context)
    keywords = [value.replace(kind=inspect.Parameter.KEYWORD_ONLY) for value in shown]
    called.__signature__ = inspect.Signature([*keywords, context], return_annotation=dict[str, Any])  # type: ignore[attr-defined]
    called.__annotations__ = {value.name: value.annotation for value in (*keywords, context)}
    called.__annotations__["return"] = dict[str, Any]
    return called


def _words(error: ApiError | CupilotError) -> str:
    parts = [f"{error.code}: {error.message}"]
    parts += [f"where: {error.where}"] if error.where else []
    parts += [f"what to do: {error.hint}"] if error.hint else []
    return "; ".join(parts)


async def problems(client: AsyncClient, *, cursor: Cursor = None) -> dict[str, Any]:
    """List problems that jobs can be started on, and what the service can run on and who can write kernels now."""
    page, cluster = await client.problems(cursor=cursor, limit=PAGE), await client.cluster()
    return {
        "problems": [_plain(item) for item in page.items],
        "next_cursor": page.next_cursor,
        "targets_now": [target.value for target in cluster.targets],
        "agents_now": [agents.value for agents in cluster.agents],
        "devices": sorted({worker.device.name for worker in cluster.workers if worker.device and worker.alive}),
        "drained": cluster.drained,
    }


async def plan_job(
    client: AsyncClient,
    *,
    problem: Problem = None,
    reference: Reference = None,
    target: WhereTo = None,
    policy: NumericsPolicy = NumericsPolicy.FP32,
    agents: AgentKind = AgentKind.PLAYBOOK,
    population: int = 8,
    generations: int = 4,
) -> dict[str, Any]:
    """Check a job without starting it: what it can use at most, what earlier ones used, what stands in its way."""
    known = _problem(problem, reference, None, policy)
    chosen, _ = await _where(client, target)
    return _plain(await client.plan(_request(known, chosen, agents, population, generations)))


async def submit_job(
    client: AsyncClient,
    *,
    problem: Problem = None,
    reference: Reference = None,
    name: str | None = None,
    target: WhereTo = None,
    policy: NumericsPolicy = NumericsPolicy.FP32,
    agents: AgentKind = AgentKind.PLAYBOOK,
    population: int = 8,
    generations: int = 4,
    minutes: float = 60.0,
    usd: float = 10.0,
) -> dict[str, Any]:
    """Start a job that evolves a kernel. Returns its id at once; follow it with wait_for_job."""
    known = _problem(problem, reference, name, policy)
    chosen, notes = await _where(client, target)
    request = _request(known, chosen, agents, population, generations)
    budgets = Budgets(wall_seconds=60 * minutes, cost_usd=usd)
    return {**_status(await client.submit(request.model_copy(update={"budgets": budgets}))), "notes": notes}


async def job_status(client: AsyncClient, job: Job) -> dict[str, Any]:
    """Look at a job once: state, progress, best kernel so far, why it ended."""
    return _status(await client.get(job))


async def wait_for_job(client: AsyncClient, job: Job, ctx: Context[Any, Any], seconds: float = 60.0) -> dict[str, Any]:
    """Wait until the job ends, at most so many seconds (120), reporting progress. The job goes on in any case."""
    deadline = time.monotonic() + min(max(seconds, 0.0), LONGEST_WAIT_SECONDS)
    reported = -1
    while True:
        view = await client.get(job)
        if view.candidates > reported:  # the protocol has progress that increases with each message
            reported = view.candidates
            best = f", best {view.best.speedup.median:.2f}x" if view.best else ""
            await ctx.report_progress(reported, view.budgets.candidates, f"{view.state}{best}")
        if view.final or time.monotonic() >= deadline:
            return _status(view)
        await asyncio.sleep(LOOK_SECONDS)


async def cancel_job(client: AsyncClient, job: Job) -> dict[str, Any]:
    """Cancel a job; its best kernel so far is kept."""
    return _status(await client.cancel(job))


async def job_result(client: AsyncClient, job: Job) -> dict[str, Any]:
    """Return the best proven kernel of a job: its source, launch plan, strategy, times, and one honest sentence."""
    report = await client.best(job)
    kernel, evaluation = report.candidate.kernel, report.candidate.evaluation
    strategy = report.candidate.aligned_strategy or report.candidate.strategy
    return {
        "headline": report.headline,
        "verdict": report.candidate.verdict.value if report.candidate.verdict else None,
        "candidate": report.candidate.ordinal,
        "source": kernel.source if kernel else None,
        "plan": _plain(kernel.plan) if kernel and kernel.plan else None,
        "strategy": _plain(strategy) if strategy else None,
        "comparisons": [_plain(item) for item in evaluation.comparisons] if evaluation else [],
        "warnings": report.candidate.warnings,
        "next_steps": report.next_steps,
    }


async def candidates(client: AsyncClient, job: Job, limit: int = 50, cursor: Cursor = None) -> dict[str, Any]:
    """List a job's candidates, the fastest first, with verdict and the reason of each that was rejected."""
    page = await client.candidates(job, order="speedup", cursor=cursor, limit=min(max(limit, 1), PAGE))
    shown = {"id", "ordinal", "generation", "state", "verdict", "failure", "reason", "speedup", "techniques"}
    items = [item.model_dump(mode="json", include=shown) for item in page.items]
    return {"candidates": items, "next_cursor": page.next_cursor}


async def judge_file(
    client: AsyncClient,
    *,
    source: Annotated[str, Field(description="Your kernel: class ModelNew, a torch extension, or a Triton file.")],
    problem: Problem = None,
    reference: Reference = None,
    target: WhereTo = None,
    policy: NumericsPolicy = NumericsPolicy.FP32,
    function: str | None = None,
) -> dict[str, Any]:
    """Judge a kernel that you wrote against a problem. Returns the id of a job at once; follow it like any other."""
    known = _problem(problem, reference, None, policy)
    chosen, notes = await _where(client, target)
    request = ImportRequest(problem=known, target=chosen, source=source, function=function)
    return {**_status(await client.judge(request)), "notes": notes}


async def kernel_profile(client: AsyncClient, job: Job, candidate: int | str) -> dict[str, Any]:
    """Return what was measured of one candidate: verdict, failure, times, profile, place on the roofline, build."""
    view = await client.candidate(job, candidate)
    evaluation = view.evaluation
    found = {} if evaluation is None else evaluation.model_dump(mode="json", exclude={"sweep", "phases", "environment"})
    return {
        "verdict": view.verdict.value if view.verdict else view.state,
        "source": view.kernel.source if view.kernel else None,
        "device": evaluation.environment.device.name if evaluation and evaluation.environment else None,
        **{name: found.get(name) for name in ("failure", "comparisons", "laws", "profile", "placement", "build")},
    }


async def diff(client: AsyncClient, first: Kernel, second: Kernel) -> dict[str, Any]:
    """Compare two kernels of one problem: relative speedup, strategy, launch plan, source as a unified diff."""
    return _plain(await client.compare(first, second))


async def leaderboard(
    client: AsyncClient, problem: Board = None, device: str | None = None, cursor: Cursor = None
) -> dict[str, Any]:
    """Rank proven kernels of a problem on a device; without a problem, list the leaderboards that there are."""
    if problem is None:
        return _plain(await client.leaderboards(cursor=cursor, limit=PAGE))
    named = {board.problem: board.policy.value async for board in client.all_leaderboards() if board.name == problem}
    if len(named) > 1:
        choices = ", ".join(f"{board} ({policy})" for board, policy in named.items())
        raise InvalidInput(f"{len(named)} leaderboards have the name {problem}", hint=f"name one by hash: {choices}")
    return _plain(await client.leaderboard(next(iter(named), problem), device=device, cursor=cursor))


async def search_pool(
    client: AsyncClient,
    *,
    operators: Annotated[list[str], Field(description="ATen operators in order, e.g. aten._softmax.default.")],
    op_class: Annotated[str, Field(description="Class of operators, e.g. softmax, matmul, elementwise, reduction.")],
    target: WhereTo = None,
    policy: NumericsPolicy = NumericsPolicy.FP32,
    limit: int = 8,
) -> dict[str, Any]:
    """Ask the strategy pool what worked on similar problems, and what failed, with the evidence."""
    chosen, _ = await _where(client, target)
    question = PoolQuestion(op_class=op_class, operators=tuple(operators), target=chosen, policy=policy)
    answer = await client.pool_search(question, limit=limit)
    return {
        "matches": [
            {
                "problem": match.entry.problem_name,
                "techniques": [use.id for use in match.entry.strategy.techniques],
                "verdict": match.entry.verdict.value,
                "speedup": match.entry.speedup,
                "why": match.why.words(),
            }
            for match in answer.matches
        ],
        "techniques": [{"id": advice.technique, "why": advice.why.words()} for advice in answer.techniques],
        "notes": list(answer.notes),
    }


async def techniques(client: AsyncClient, target: Target | None = None, cursor: Cursor = None) -> dict[str, Any]:
    """List optimisation techniques, of one target or all, with what your team's kernels with them came to."""
    shown = {"id", "kind", "meaning", "tries", "wins", "effect"}
    page = await client.techniques(target=target, cursor=cursor, limit=PAGE)
    items = [item.model_dump(mode="json", include=shown) for item in page.items]
    return {"techniques": items, "next_cursor": page.next_cursor}


async def _where(client: AsyncClient, target: Target | None) -> tuple[Target, list[str]]:
    """Return the target, chosen where it was not given, and what work for it waits for."""
    available = (await client.cluster()).targets
    chosen = target or best_target(available)
    waits = f"no live worker has the target {chosen.value}: the job waits for one"
    return chosen, [] if chosen in available else [waits]


def _request(problem: ProblemInput, target: Target, agents: AgentKind, population: int, generations: int) -> JobRequest:
    elites = min(SceConfig().elites, max(population - 1, 0))
    method = SceConfig(population=population, generations=generations, elites=elites)
    return JobRequest(problem=problem, target=target, method=method, agents=agents)


def _problem(problem: str | None, reference: str | None, name: str | None, policy: NumericsPolicy) -> ProblemInput:
    if (problem is None) == (reference is None):
        hint = f"problem is a name such as {', '.join(sorted(builtin.names())[:3])}; reference is a file's source"
        raise ToolError(f"invalid_input: give exactly one of problem and reference; what to do: {hint}")
    return ProblemInput(id=problem, source=reference, name=name, policy=policy)


def _status(view: JobView) -> dict[str, Any]:
    best = view.best
    return {
        "job": str(view.id),
        "problem": view.problem.name,
        "target": view.target.value,
        "state": view.state,
        "final": view.final,
        "reason": view.reason,
        "message": view.message,
        "generation": f"{min(view.generation + 1, view.generations)} of {view.generations}",
        "candidates": view.candidates,
        "verdicts": view.verdicts,
        "queue_position": view.queue_position,
        "best": None
        if best is None
        else {"candidate": best.ordinal, "verdict": best.verdict.value, "speedup": _plain(best.speedup)},
        "used": {"seconds": view.wall_seconds, "device_seconds": view.gpu_seconds, "usd": view.cost_usd},
    }


def _plain(value: BaseModel) -> dict[str, Any]:
    return value.model_dump(mode="json")
