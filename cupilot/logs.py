"""Log lines of every process: for people or as JSON, with what they belong to, and without secrets.

Standard library only. What a line belongs to (job, step, attempt, request, trace) travels in a context variable, so
that code which logs need not know it. Secrets are removed from the finished text, exceptions included: a message may
quote anything.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

CONSOLE_FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(name)s %(message)s"
HIDDEN = "***"

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_SHORTEST_SECRET = 8
"""Shorter values of secret-looking variables are words such as ``none``; hiding those would garble every line."""

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # The header in any writing; before the schemes, whose value it holds.
    (re.compile(r"(authorization[\"']?\s*[:=,]\s*[\"']?)(?:(?:bearer|basic)\s+)?[^\s\"',}]+", re.IGNORECASE), r"\1***"),
    (re.compile(r"\b(bearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE), r"\1***"),
    (re.compile(r"(://[^\s:/@]*:)[^\s@]+(@)"), r"\1***\2"),
    (re.compile(r"\b(cpk_[0-9a-f]{8})_[\w-]{8,}"), r"\1_***"),
    (re.compile(r"\b(whsec_)[A-Za-z0-9+/=_-]{8,}"), r"\1***"),
    (re.compile(r"\b((?:sk|rk|pk)-)[\w-]{12,}|\b(AIza|gsk_|hf_|xai-|ghp_)[\w-]{16,}"), r"\1\2***"),
    (
        re.compile(r"((?:api[_-]?key|token|secret|password|passwd)[\"']?\s*[:=]\s*[\"']?)[^\s\"',;&)}]{6,}", re.I),
        r"\1***",
    ),
)

_known: set[str] = set()
_context: ContextVar[Mapping[str, str]] = ContextVar("log_context", default=MappingProxyType({}))


def set_up_logs(level: str = "INFO", style: str = "console", secrets: Iterable[str] = ()) -> None:
    """Log to standard error from now on; for every process, before anything else logs.

    ``secrets`` are values that no line may hold; secret-looking variables of the environment and the passwords of URLs
    among all these are added.
    """
    hide(secrets)
    hide(value for name, value in os.environ.items() if _SECRET_NAME.search(name))
    hide(value for name, value in os.environ.items() if name.endswith("_URL") and urlsplit(value).password)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else ConsoleFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # Libraries' lines that say less than ours about a request or a task.
    for name in ("celery.worker.strategy", "celery.app.trace", "httpx", "httpcore", "LiteLLM"):
        logging.getLogger(name).setLevel(logging.WARNING)


def hide(secrets: Iterable[str]) -> None:
    """Remove these values from every later line; of a URL, its password."""
    for secret in secrets:
        value = (urlsplit(secret).password or "") if "://" in secret else secret
        for form in {value, unquote(value)}:
            if len(form) >= _SHORTEST_SECRET:
                _known.add(form)


def redact(text: str) -> str:
    """The text without secrets: known values first, then whatever looks like one."""
    for secret in _known:
        if secret in text:
            text = text.replace(secret, HIDDEN)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


@contextmanager
def log_context(**values: object) -> Iterator[None]:
    """Lines that are logged meanwhile, by this thread or task, say that they belong to this."""
    token = _context.set({**_context.get(), **{name: str(value) for name, value in values.items() if value}})
    try:
        yield
    finally:
        _context.reset(token)


class ConsoleFormatter(logging.Formatter):
    """One line for people; what it belongs to as ``name=value`` at its end, where the message does not say it."""

    def __init__(self) -> None:
        super().__init__(CONSOLE_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """The line, and an exception's trace below it."""
        first, *trace = super().format(record).split("\n", 1)
        belongs = [f"{name}={value}" for name, value in _context.get().items() if value not in first]
        return redact("\n".join([" ".join([first, *belongs]), *trace]))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, process, message, what it belongs to, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
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
