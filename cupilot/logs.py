"""Set up the log lines of every process: for people or as JSON, with their context, and without secrets.

Standard library only. The context of a line (job, step, attempt, request, trace) travels in a context variable, so
that code which logs need not know it. Secrets are removed from the finished text, exceptions included: a message may
quote anything.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from cupilot.domain.redaction import HIDDEN, SECRET_NAME, redact_message

CONSOLE_FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(name)s %(message)s"

_SHORTEST_SECRET = 8
"""Least length of a value to hide: shorter ones are words such as ``none``, and hiding those garbles every line."""

_known: set[str] = set()
_context: ContextVar[Mapping[str, str]] = ContextVar("log_context", default=MappingProxyType({}))


def set_up_logs(level: str = "INFO", style: str = "console", secrets: Iterable[str] = ()) -> None:
    """Log to standard error from now on. Every process calls this before anything else logs.

    ``secrets`` are values that no line may hold. Values of environment variables with secret-looking names, and the
    passwords of URLs, are added to them.
    """
    hide(secrets)
    hide(value for name, value in os.environ.items() if SECRET_NAME.search(name))
    hide(value for name, value in os.environ.items() if name.endswith("_URL") and urlsplit(value).password)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else ConsoleFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # Libraries' lines that say less than ours about a request or a task.
    for name in ("celery.worker.strategy", "celery.app.trace", "httpx", "httpcore", "LiteLLM"):
        logging.getLogger(name).setLevel(logging.WARNING)


def hide(secrets: Iterable[str]) -> None:
    """Hide these values in every later line; of a URL, its password."""
    for secret in secrets:
        value = (urlsplit(secret).password or "") if "://" in secret else secret
        for form in {value, unquote(value)}:
            if len(form) >= _SHORTEST_SECRET:
                _known.add(form)


def redact(text: str) -> str:
    """Return the text without secrets: known values first, then whatever looks like one."""
    for secret in _known:
        if secret in text:
            text = text.replace(secret, HIDDEN)
    return redact_message(text)


@contextmanager
def log_context(**values: object) -> Iterator[None]:
    """Add these names and values to every line that this thread or task logs meanwhile."""
    token = _context.set({**_context.get(), **{name: str(value) for name, value in values.items() if value}})
    try:
        yield
    finally:
        _context.reset(token)


class ConsoleFormatter(logging.Formatter):
    """Write one line for people, ending with the context that the message does not name itself as ``name=value``."""

    def __init__(self) -> None:
        super().__init__(CONSOLE_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and an exception's traceback below it."""
        first, *trace = super().format(record).split("\n", 1)
        context = [f"{name}={value}" for name, value in _context.get().items() if value not in first]
        return redact("\n".join([" ".join([first, *context]), *trace]))


class JsonFormatter(logging.Formatter):
    """Write one JSON object a line: time, level, logger, process, message, context, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": redact(record.getMessage()),
            **{name: redact(value) for name, value in _context.get().items()},
        }
        if record.exc_info:
            fields["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(fields, ensure_ascii=False)
