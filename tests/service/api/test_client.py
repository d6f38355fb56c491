"""The Python client against the real service."""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Iterator, Sequence

import pytest

from cupilot.client import ApiError, Client
from cupilot.domain.states import JobState
from cupilot.schemas import EventView, JobRequest, JobView
from tests.service.api.world import Story, Team, World, evolved, job_request

pytestmark = pytest.mark.service


@pytest.fixture
def client(world: World, team: Team) -> Iterator[Client]:
    with Client(world.url, team.key) as client:
        yield client


def _request(**changes: object) -> JobRequest:
    return JobRequest.model_validate(job_request(**changes))


def test_a_job_from_submission_to_cancellation(client: Client) -> None:
    job = client.submit(_request(labels={"a": "b"}))
    assert client.get(job.id).state == JobState.QUEUED
    assert [item.id for item in client.list(labels={"a": "b"}, target="cpu", state="queued").items] == [job.id]
    assert client.list(state=["evolving", "failed"]).items == []
    assert client.cancel(job.id).state == JobState.CANCELLED
    assert [event.kind for event in client.events(job.id).items][-1] == "job.cancelled"
    assert client.wait(job.id).final


def test_the_same_idempotency_key_gives_the_same_job(client: Client) -> None:
    first, again = (client.submit(_request(), idempotency_key="k") for _ in range(2))
    assert first.id == again.id
    assert client.submit(_request()).id != first.id


def test_results_are_typed(world: World, team: Team, client: Client) -> None:
    with world.database.transaction() as session:
        job = evolved(session, team.id).id
    best = client.get(job).best
    assert best is not None
    report = client.best(job)
    assert report.candidate.id == best.candidate
    assert report.candidate == client.candidate(job, best.ordinal) == client.candidate(job, best.candidate)
    page = client.candidates(job, limit=2)
    rest = client.candidates(job, cursor=page.next_cursor, limit=50)
    assert [candidate.ordinal for candidate in page.items + rest.items] == [0, 1, 2, 3, 4]
    assert [candidate.ordinal for candidate in client.candidates(job, verdict="rejected").items] == [2]
    with zipfile.ZipFile(io.BytesIO(client.download(job))) as archive:
        assert "REPORT.md" in archive.namelist()


def test_the_service_itself(client: Client) -> None:
    assert client.version().api == "v1"
    assert client.cluster().workers == []
    problems = client.problems()
    assert client.problem(problems.items[0].id).source


def test_errors_carry_their_code(world: World, client: Client) -> None:
    job = client.submit(_request())
    with pytest.raises(ApiError) as caught:
        client.best(job.id)
    assert (caught.value.code, caught.value.status) == ("no_result", 404)
    with pytest.raises(ApiError) as caught:
        client.submit(_request(agents="llm"))
    assert (caught.value.code, caught.value.where) == ("agents_unavailable", "body.agents")
    assert caught.value.request_id
    with Client(world.url, "cpk_wrong") as stranger, pytest.raises(ApiError) as caught:
        stranger.list()
    assert (caught.value.code, caught.value.status) == ("unauthorized", 401)


def test_a_file_that_is_too_large_is_an_error_not_a_broken_pipe(client: Client) -> None:
    with pytest.raises(ApiError) as caught:
        client.submit(_request(problem={"source": "#" * 50_000_000}))
    assert (caught.value.code, caught.value.status) == ("body_too_large", 413)


def test_waiting_tells_every_event_once_and_ends_with_the_job(world: World, team: Team, client: Client) -> None:
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        story.candidate(story.generation(0))
        job = story.job.id
    seen: list[EventView] = []
    states: list[str] = []
    began = threading.Event()

    def told(view: JobView, events: Sequence[EventView]) -> None:
        states.append(view.state)
        seen.extend(events)
        began.set()

    def cancel_once_it_is_watched() -> None:
        began.wait()
        client.cancel(job)

    thread = threading.Thread(target=cancel_once_it_is_watched)
    thread.start()
    final = client.wait(job, told)
    thread.join()
    assert final.state == "cancelled"
    assert states[0] == "evolving"
    assert states[-1] == "cancelled"
    assert [event.id for event in seen] == [event.id for event in client.events(job).items]


def test_waiting_can_give_up_and_leaves_the_job_alone(client: Client) -> None:
    job = client.submit(_request())
    with pytest.raises(TimeoutError):
        client.wait(job.id, timeout=0.1, silence=0.1)
    assert client.get(job.id).state == "queued"


def test_following_reads_more_events_than_a_page_holds(
    world: World, team: Team, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cupilot.client.jobs.EVENTS_PAGE", 3)
    with world.database.transaction() as session:
        job = evolved(session, team.id).id
    [(view, events)] = list(client.follow(job))
    assert view.final
    assert len(events) == len(client.events(job).items) > 9
