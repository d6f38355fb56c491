"""The tools for coding agents, called with the SDK's own client: over HTTP at ``/mcp``, and over stdio."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import SecretStr
from sqlalchemy import delete

from api.app import create_app
from cupilot.domain.states import JobState, WorkerKind
from cupilot.settings import Settings
from cupilot.storage.db.tables.queue import WorkerRow
from cupilot.storage.queue.cluster import register_worker
from tests.service.api.world import DEVICE, SOURCE, Team, World, evolved, live

pytestmark = pytest.mark.service

TOOLS = {
    "problems", "plan_job", "submit_job", "job_status", "wait_for_job", "cancel_job", "job_result", "candidates",
    "judge_file", "kernel_profile", "diff", "leaderboard", "search_pool", "techniques",
}  # fmt: skip


@pytest.fixture(scope="module")
def world(database_url: str) -> Iterator[World]:
    app = create_app(Settings(database_url=SecretStr(database_url)))
    with live(app, lifespan="on") as url:
        world = World(app.state.database, url)
        yield world
        world.close()
    world.database.close()


@asynccontextmanager
async def connected(world: World, key: str) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(f"{world.url}/mcp", http_client=http)
        async with Client(transport) as client:
            yield client


def called(world: World, key: str, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """Results of tools, called one after the other by one client."""

    async def run() -> list[Any]:
        async with connected(world, key) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(run())


def test_a_client_learns_what_there_is_and_what_verdicts_mean(world: World, team: Team) -> None:
    async def run() -> tuple[set[str], str]:
        async with connected(world, team.key) as client:
            tools = await client.list_tools()
            assert all(tool.description for tool in tools.tools)
            assert not any("ctx" in tool.input_schema["properties"] for tool in tools.tools)
            return {tool.name for tool in tools.tools}, client.instructions or ""

    names, instructions = asyncio.run(run())
    assert names == TOOLS
    assert "quarantined: faster than the hardware allows" in instructions


def test_a_job_is_planned_submitted_followed_and_cancelled(world: World, team: Team) -> None:
    given = {"reference": SOURCE, "target": "cpu", "name": "double"}
    planned, made = called(world, team.key, ("plan_job", {"reference": SOURCE, "target": "cpu"}), ("submit_job", given))
    assert any("would wait" in note for note in planned.structured_content["notes"])
    job = made.structured_content["job"]
    assert made.structured_content["state"] == "queued"
    assert team.http.get(f"/v1/jobs/{job}").json()["problem"]["name"] == "double"
    waited, ended = called(world, team.key, ("wait_for_job", {"job": job, "seconds": 0}), ("cancel_job", {"job": job}))
    assert waited.structured_content["final"] is False
    assert ended.structured_content["state"] in ("cancelling", "cancelled")


def test_a_result_is_the_same_as_by_rest(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        job = str(evolved(session, team.id, JobState.SUCCEEDED).id)
    result, profile, difference, listed, boards, board, none = called(
        world,
        team.key,
        ("job_result", {"job": job}),
        ("kernel_profile", {"job": job, "candidate": 2}),
        ("diff", {"first": f"{job}:0", "second": f"{job}:4"}),
        ("candidates", {"job": job}),
        ("leaderboard", {}),
        ("leaderboard", {"problem": "double"}),
        ("leaderboard", {"problem": "softmax"}),
    )
    best = team.http.get(f"/v1/jobs/{job}/best").json()
    assert result.structured_content["headline"] == best["headline"]
    assert result.structured_content["source"] == best["candidate"]["kernel"]["source"]
    assert profile.structured_content["verdict"] == "rejected"
    assert profile.structured_content["failure"]["kind"] == "wrong_value"
    assert "+// candidate 4" in difference.structured_content["source_diff"]
    assert listed.structured_content["candidates"][0]["verdict"] == "reproduced"
    assert boards.structured_content["items"][0]["best_speedup"] == 2.0
    assert board.structured_content["items"][0]["job"] == job
    assert none.is_error


def test_what_is_known_can_be_asked(world: World, team: Team) -> None:
    known, catalogue, pool = called(
        world,
        team.key,
        ("problems", {}),
        ("techniques", {"target": "cpu"}),
        ("search_pool", {"operators": ["aten._softmax.default"], "op_class": "softmax", "target": "cpu"}),
    )
    assert {"softmax"} <= {item["name"] for item in known.structured_content["problems"]}
    assert known.structured_content["targets_now"] == []
    assert {"simd"} <= {item["id"] for item in catalogue.structured_content["techniques"]}
    assert pool.structured_content["matches"] == []


def test_long_lists_are_read_page_by_page(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        job = str(evolved(session, team.id, JobState.SUCCEEDED).id)
    (whole,) = called(world, team.key, ("candidates", {"job": job}))
    assert whole.structured_content["next_cursor"] is None
    (first,) = called(world, team.key, ("candidates", {"job": job, "limit": 2}))
    cursor = first.structured_content["next_cursor"]
    (second,) = called(world, team.key, ("candidates", {"job": job, "limit": 200, "cursor": cursor}))
    pages = first.structured_content["candidates"] + second.structured_content["candidates"]
    assert pages == whole.structured_content["candidates"]
    lists = called(world, team.key, ("problems", {}), ("techniques", {}), ("leaderboard", {}))
    assert all("next_cursor" in page.structured_content for page in lists)


def test_a_target_is_chosen_among_those_that_work(world: World, team: Team) -> None:
    asked = {"reference": SOURCE, "name": "double"}
    none, named = called(world, team.key, ("submit_job", asked), ("submit_job", {**asked, "target": "cuda"}))
    assert "no live worker" in none.content[0].text
    assert named.structured_content["notes"] == ["no live worker has the target cuda: the job waits for one"]
    with world.database.transaction() as session:
        register_worker(session, "gpu-1", WorkerKind.GPU, queues=["gpu.cpu"], slots=1, version="1", device=DEVICE)
    try:
        (chosen,) = called(world, team.key, ("submit_job", asked))
    finally:
        with world.database.transaction() as session:
            session.execute(delete(WorkerRow))
    assert chosen.structured_content["target"] == "cpu"
    assert chosen.structured_content["notes"] == []


def test_progress_increases_with_each_message(world: World, team: Team) -> None:
    told: list[float] = []

    async def note(progress: float, _total: float | None, _message: str | None) -> None:
        told.append(progress)

    async def run() -> None:
        async with connected(world, team.key) as client:
            made = await client.call_tool("submit_job", {"reference": SOURCE, "target": "cpu"})
            waiting = {"job": made.structured_content["job"], "seconds": 2.5}
            await client.call_tool("wait_for_job", waiting, progress_callback=note)

    asyncio.run(run())
    assert told == [0]


def test_mistakes_say_what_to_do(world: World, team: Team, stranger: Team) -> None:
    with world.database.transaction() as session:
        job = str(evolved(session, team.id).id)
    wrong = (
        ("submit_job", {"reference": "def forward(", "target": "cpu"}),
        ("submit_job", {"target": "cpu"}),
        ("submit_job", {"problem": "softmax", "target": "cpu", "agents": "llm"}),
        ("judge_file", {"problem": "softmax", "source": "", "target": "cpu"}),
    )
    answers = called(world, team.key, *wrong)
    assert all(answer.is_error for answer in answers)
    said = [answer.content[0].text for answer in answers]
    assert "invalid_problem" in said[0]
    assert "exactly one of problem and reference" in said[1]
    assert "agents_unavailable" in said[2]
    assert "what to do" in said[2]
    (hidden,) = called(world, stranger.key, ("job_result", {"job": job}))
    assert "not_found" in hidden.content[0].text


def test_without_a_valid_key_there_are_no_tools(world: World) -> None:
    for headers in ({}, {"Authorization": "Bearer cpk_00000000_wrong"}):
        answer = httpx2.post(f"{world.url}/mcp", json={}, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "unauthorized"


def test_the_same_tools_over_stdio(world: World, team: Team) -> None:
    async def run() -> tuple[set[str], Any]:
        command = StdioServerParameters(
            command=sys.executable,
            args=["-m", "cupilot.cli", "mcp", "--server", world.url],
            env={"CUPILOT_API_KEY": team.key},
        )
        async with Client(stdio_client(command)) as client:
            tools = await client.list_tools()
            return {tool.name for tool in tools.tools}, await client.call_tool("problems", {})

    names, known = asyncio.run(run())
    assert names == TOOLS
    assert known.structured_content["problems"]
