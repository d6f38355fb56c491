"""Pages of large jobs and long lists: neither the queries nor the rows of a page grow with what the team has."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import event

from api.pages.visits import COOKIE
from tests.service.api.crowd import many_jobs, with_many_candidates
from tests.service.api.world import Team, World

pytestmark = pytest.mark.service

SMALL, LARGE = (6, 10), (60, 10)
"""Generations, and candidates of each."""
JOB_PAGES = ("", "/candidates", "/candidates?order=ordinal&verdict=audited&generation=3", "/lineage", "/candidates/50")
TEAM_PAGES = ("/ui", "/ui?text=double&label=sweep%3D3", "/ui?user=user-3", "/ui/leaderboards", "/ui/pool", "/ui/team")


@pytest.fixture
def statements(world: World) -> Iterator[list[str]]:
    """Statements that the database is sent while a test runs."""
    asked: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        asked.append(statement)

    event.listen(world.database.engine, "before_cursor_execute", note)
    yield asked
    event.remove(world.database.engine, "before_cursor_execute", note)


def read(team: Team, path: str) -> str:
    answer = team.http.get(path, headers={"Cookie": f"{COOKIE}={team.key}"})
    assert answer.status_code == 200, answer.text[:2_000]
    return answer.text


def counted(team: Team, path: str, statements: list[str]) -> tuple[str, int]:
    """A page, and the number of queries that it took, once all that is made once was made."""
    read(team, path)
    statements.clear()
    return read(team, path), len(statements)


@pytest.mark.parametrize("path", JOB_PAGES)
def test_a_page_of_a_job_asks_no_more_of_ten_times_the_candidates(
    world: World, statements: list[str], path: str
) -> None:
    pages = []
    for size in (SMALL, LARGE):
        team = world.team()
        with world.database.transaction() as session:
            job = with_many_candidates(session, team.id, *size)
        pages.append(counted(team, f"/ui/jobs/{job}{path}", statements))
    (_, few), (page, many) = pages
    assert many == few
    assert many < 60
    rows = len(re.findall("<tr", page))
    assert rows < 200
    if path != "/lineage":  # which draws everybody, and is a page of its own for that
        assert len(re.findall(r'<rect class="leaf', page)) <= 150
        assert len(re.findall(r'<circle class="node', page)) <= 2 * 370


@pytest.mark.parametrize("path", TEAM_PAGES)
def test_a_page_of_a_team_asks_no_more_of_ten_times_the_jobs(world: World, statements: list[str], path: str) -> None:
    pages = []
    for count in (60, 600):
        team = world.team()
        with world.database.transaction() as session:
            many_jobs(session, team.id, count)
        pages.append(counted(team, path, statements))
    (_, few), (page, many) = pages
    assert many == few
    assert many < 60
    assert len(re.findall("<tr", page)) < 200


def test_all_candidates_are_reached_page_by_page(world: World) -> None:
    team = world.team()
    with world.database.transaction() as session:
        job = with_many_candidates(session, team.id, *SMALL)
    path, seen = f"/ui/jobs/{job}/candidates?order=ordinal", []
    while path:
        page = read(team, path)
        seen += re.findall(rf'value="{job}:(\d+)"', page)
        following = re.search(r'<a href="(\?cursor=[^"]+)">More</a>', page)
        path = f"/ui/jobs/{job}/candidates{following[1].replace('&amp;', '&')}" if following else ""
    assert [int(ordinal) for ordinal in seen] == list(range(61))


def test_what_is_no_verdict_and_no_generation_is_told(world: World) -> None:
    team = world.team()
    with world.database.transaction() as session:
        job = with_many_candidates(session, team.id, 1, 2)
    for query, words in (("verdict=fine", "is no verdict"), ("generation=0", "is no generation")):
        answer = httpx.get(f"{world.url}/ui/jobs/{job}/candidates?{query}", headers={"Cookie": f"{COOKIE}={team.key}"})
        assert answer.status_code == 422
        assert words in answer.text


def test_the_tree_of_a_large_job_shows_the_best_with_its_ancestors_and_leads_to_the_whole(world: World) -> None:
    team = world.team()
    with world.database.transaction() as session:
        job = with_many_candidates(session, team.id, *LARGE)
    page = read(team, f"/ui/jobs/{job}")
    drawn = [int(ordinal) for ordinal in re.findall(r'candidates/(\d+)" data-panel aria-label="candidate', page)]
    best = re.search(r'rect class="leaf [^"]*winner', page)
    assert best is not None
    assert 1 in [ordinal // 10 + 1 for ordinal in drawn]
    assert f'/ui/jobs/{job}/lineage">all of them' in page
    assert len(re.findall(r'<rect class="leaf', read(team, f"/ui/jobs/{job}/lineage"))) == 601
