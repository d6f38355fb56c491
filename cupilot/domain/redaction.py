"""Remove secrets from text: the one list of what they look like. Best effort by shape; knows no secret itself.

Log lines and messages are searched for all shapes. Prompts hold source code, which must stay as it is, so they are
searched only for shapes that code does not have (``a = rk-offset_of_the_tile`` is code, and looks like a key).
"""

from __future__ import annotations

import re

SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""Names of environment variables whose values are secrets."""

HIDDEN = "***"
"""In place of a secret in log lines and messages."""
REMOVED = "[removed]"
"""In place of a secret in prompts, answers and what is recorded of them."""
_MARK = "\0"
"""Stands for either in the replacements below."""

_IN_MESSAGES: tuple[tuple[re.Pattern[str], str], ...] = (
    # The header in any writing; before the schemes, whose value it holds.
    (re.compile(r"(?i)(authorization[\"']?\s*[:=,]\s*[\"']?)(?:(?:bearer|basic)\s+)?[^\s\"',}]+"), rf"\1{_MARK}"),
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}"), rf"\1{_MARK}"),
    (re.compile(r"(://[^\s:/@]*:)[^\s@]+(@)"), rf"\1{_MARK}\2"),
    (re.compile(r"\b(cpk_[0-9a-f]{8})_[\w-]{8,}"), rf"\1_{_MARK}"),
    (re.compile(r"\b((?:sk|rk|pk)-)[\w-]{12,}|\b(AIza|gsk_|hf_|xai-|ghp_)[\w-]{16,}"), rf"\1\2{_MARK}"),
    (
        re.compile(r"(?i)((?:api[_-]?key|token|secret|password|passwd)[\"']?\s*[:=]\s*[\"']?)[^\s\"',;&)}]{6,}"),
        rf"\1{_MARK}",
    ),
)
_ANYWHERE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"), _MARK),
    (
        re.compile(
            r"""(?ix)\b(?:
              sk-[a-z0-9_-]{16,}                 # OpenAI, Anthropic, OpenRouter, LiteLLM
            | cpk_[a-z0-9_-]{16,}                # this service
            | hf_[a-z0-9]{16,}                   # Hugging Face
            | gsk_[a-z0-9]{16,} | xai-[a-z0-9]{16,} | nvapi-[a-z0-9_-]{16,}
            | AIza[a-z0-9_-]{30,}                # Google
            | (?:AKIA|ASIA)[A-Z0-9]{16}          # AWS
            | gh[pousr]_[a-z0-9]{20,} | github_pat_[a-z0-9_]{20,} | glpat-[a-z0-9_-]{16,}
            | xox[abprs]-[a-z0-9-]{10,}          # Slack
            | eyJ[a-z0-9_-]{8,}\.[a-z0-9_-]{8,}\.[a-z0-9_-]{8,}      # JSON web token
            )"""
        ),
        _MARK,
    ),
    (re.compile(r"\b(whsec_)[A-Za-z0-9+/=_-]{8,}"), rf"\1{_MARK}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{16,}"), rf"\1 {_MARK}"),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]{1,20}://)[^\s/@:'\"<>]*:[^\s/@'\"<>]+@"), rf"\1{_MARK}@"),
    (
        re.compile(
            r"""(?ix)\b([a-z0-9_]*(?:api_?key|access_?key|secret|passwd|password|credential|(?P<token>token))s?)  # name
            (["']?\s*[:=]\s*)
            # Numbers of a text's tokens are computed: that is code, with operators or with names made of words.
            (?(token)(?![^\s"'(){}\[\],;]*[*%<>&|^?]|[a-z]+(?:_(?:[a-z]+\d{0,2}|\d{1,2}[a-z]?))+(?:[\s(){}\[\],;\\]|\Z)))
            (["']?)(?=[^\s"']*\d)([^\s"'(){}\[\],;\\]{12,}+)
            (?(token)(?!\s*[-+*/<>&|?!%^;(\[]))
            (["']?)"""
        ),
        rf"\1\3\4{_MARK}\6",
    ),
)


def redact_message(text: str) -> str:
    """Return a log line or message with everything that looks like a secret hidden."""
    return _replace(text, (*_IN_MESSAGES, *_ANYWHERE), HIDDEN)


def redact_prompt(text: str) -> str:
    """Return text that may hold source code with everything that looks like a secret removed; code stays as it was."""
    return _replace(text, _ANYWHERE, REMOVED)


def _replace(text: str, shapes: tuple[tuple[re.Pattern[str], str], ...], mark: str) -> str:
    for pattern, replacement in shapes:
        text = pattern.sub(replacement.replace(_MARK, mark), text)
    return text
