"""Log lines say what they belong to, and never a secret."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from cupilot import logs
from cupilot.logs import log_context, redact

SECRETS = {
    "database": ("postgresql+psycopg2://cupilot:hunter22@db:5432/cupilot", "hunter22"),
    "redis": ("connecting to redis://:p4ss/w0rd@redis:6379/0", "p4ss"),
    "api key": ("key cpk_0123abcd_" + "x" * 43 + " used", "x" * 43),
    "model key": ("openai.AuthenticationError: sk-proj-abcdefghijklmnop is wrong", "abcdefghijklmnop"),
    "bearer": ('{"Authorization": "Bearer abc.def-ghi"}', "abc.def"),
    "headers": ("[('authorization', 'Bearer zzzzzzzzzz')]", "zzzzzzzzzz"),
    "basic": ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    "webhook": ("signing with whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "MfKQ9r8G"),
    "parameter": ("litellm.completion(api_key='k3y-of-a-provider', model='m')", "k3y-of"),
}


@pytest.fixture
def captured() -> Iterator[tuple[logging.Logger, io.StringIO, logging.StreamHandler[io.StringIO]]]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("cupilot.test_logs")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger, stream, handler
    logger.removeHandler(handler)
    logger.propagate = True


@pytest.mark.parametrize(("text", "secret"), SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize("formatter", [logs.ConsoleFormatter, logs.JsonFormatter])
def test_no_line_holds_a_secret(captured, text: str, secret: str, formatter: type[logging.Formatter]) -> None:  # type: ignore[no-untyped-def]
    logger, stream, handler = captured
    handler.setFormatter(formatter())
    try:
        raise ValueError(text)
    except ValueError:
        logger.exception("failed: %s", text)
    assert secret not in stream.getvalue()
    assert "***" in stream.getvalue()


def test_values_that_are_known_to_be_secret_are_hidden_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_known", set())
    logs.hide(["redis://:sp%40ce-ship@h:1/0", "plain-value-1", "short"])
    assert (
        redact("auth sp@ce-ship and sp%40ce-ship, plain-value-1; a short word") == "auth *** and ***, ***; a short word"
    )


def test_ordinary_lines_stay_as_they_are() -> None:
    line = "evaluate succeeded in 1.20s job=3f2b step=77aa key=c12/evaluate attempt=2 tokens=123456 at http://h:80/x"
    assert redact(line) == line


def test_a_json_line_says_what_it_belongs_to(captured) -> None:  # type: ignore[no-untyped-def]
    logger, stream, handler = captured
    handler.setFormatter(logs.JsonFormatter())
    with log_context(job="j1", step="s1"), log_context(attempt=2, trace=None):
        logger.info("hello %s", "world")
    logger.info("after")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert {name: first[name] for name in ("message", "level", "job", "step", "attempt")} == {
        "message": "hello world",
        "level": "info",
        "job": "j1",
        "step": "s1",
        "attempt": "2",
    }
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", first["time"])
    assert "job" not in second


def test_a_console_line_names_what_it_belongs_to_once(captured) -> None:  # type: ignore[no-untyped-def]
    logger, stream, handler = captured
    handler.setFormatter(logs.ConsoleFormatter())
    with log_context(job="j1", step="s1"):
        logger.info("reaped job=j1")
    assert stream.getvalue().endswith("reaped job=j1 step=s1\n")
