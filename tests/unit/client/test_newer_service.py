"""A client of the release before reads a newer service: fields, states, kinds and words that it does not know."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from cupilot.client import Client
from cupilot.client.protocol import read_answer
from cupilot.domain.evaluation import Verdict
from cupilot.schemas import EventPage, EventView, JobRequest, JobView
from cupilot.schemas.base import Response
from cupilot.schemas.results import CandidateView
from tests.unit.client.newer_service import FUTURE_FIELD, FUTURE_WORD, answer
from tests.unit.client.scripted import Answer, serve


def _below(model: type[Response]) -> Iterator[type[Response]]:
    for subclass in model.__subclasses__():
        yield subclass
        yield from _below(subclass)


ANSWERS = sorted(
    {one for one in _below(Response) if one.__module__.startswith("cupilot.")}, key=lambda one: one.__name__
)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that the client would have made."""
    made: list[float] = []
    monkeypatch.setattr("cupilot.client.clients.time.sleep", made.append)
    return made


def _json(content: Any) -> Answer:
    return Answer(body=json.dumps(content).encode())


@pytest.mark.parametrize("model", ANSWERS, ids=lambda model: model.__name__)
def test_every_answer_is_read_with_fields_and_words_of_the_future(model: type[Response]) -> None:
    sent = answer(model)
    read = read_answer(model, json.dumps(sent))
    assert FUTURE_FIELD in sent
    assert FUTURE_FIELD not in read.model_dump()
    assert set(sent) - {FUTURE_FIELD} == set(read.model_dump())


def test_an_unknown_word_is_kept_and_is_none_of_the_known_ones() -> None:
    read = read_answer(CandidateView, json.dumps(answer(CandidateView)))
    assert read.state == FUTURE_WORD
    assert read.verdict == FUTURE_WORD
    assert read.verdict not in set(Verdict)
    assert isinstance(read.verdict, Verdict)
    assert not read.verdict.counts
    assert read.verdict.rank == Verdict.QUARANTINED.rank
    assert json.loads(read.model_dump_json())["verdict"] == FUTURE_WORD


def test_unknown_words_are_refused_wherever_else() -> None:
    read_answer(CandidateView, json.dumps(answer(CandidateView)))
    with pytest.raises(ValueError, match="is not a valid Verdict"):
        Verdict(FUTURE_WORD)
    with pytest.raises(ValidationError, match=r"Input should be 'cuda' or 'cpu'"):
        JobRequest.model_validate({"problem": {"id": "softmax"}, "target": FUTURE_WORD})


def test_a_job_of_a_method_that_is_not_known_is_read() -> None:
    sent = {**answer(JobView), "method": {"name": "annealing", "heat": 3}}
    assert read_answer(JobView, json.dumps(sent)).method.name == "annealing"


def test_a_job_is_waited_for_through_states_and_events_that_are_not_known() -> None:
    job = answer(JobView)
    events = {"items": [{**answer(EventView), "id": 7, "kind": "job.hibernated"}], "next_after": 7}
    nothing = {**answer(EventPage), "items": [], "next_after": 7}
    answers = ({**job, "state": "hibernating", "final": False}, events, nothing, {**job, "final": True}, nothing)
    seen: list[str] = []
    with serve(*map(_json, answers)) as script, Client(script.url, "key") as client:
        last = client.wait(job["id"], lambda view, news: seen.extend((view.state, *(new.kind for new in news))))
    assert last.final
    assert seen == ["hibernating", "job.hibernated", FUTURE_WORD]


def test_messages_of_a_stream_that_are_not_known_are_passed_over() -> None:
    event = json.dumps({**answer(EventView), "id": 8, "kind": "job.hibernated"})
    body = f"event: progress\ndata: {{}}\n\nid: 8\nretry: 5\ndata: {event}\n\nevent: end\ndata: {{}}\n\n"
    with serve(Answer(body=body.encode())) as script, Client(script.url, "key") as client:
        assert [stream_event.kind for stream_event in client.stream_events("x")] == ["job.hibernated"]
