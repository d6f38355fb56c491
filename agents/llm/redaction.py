"""Blanks secrets in text that goes to a model or into the records: keys, credentials in URLs, secret-looking settings.

Best effort by shape, over what people paste into problem files and what programs print. It knows no secret itself.
"""

from __future__ import annotations

import re

REMOVED = "[removed]"

_KEYS = re.compile(
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
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{16,}")
_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{1,20}://)[^\s/@:'\"<>]*:[^\s/@'\"<>]+@")
_SETTING = re.compile(
    r"""(?ix)\b([a-z0-9_]*(?:api_?key|access_?key|secret|passwd|password|credential|(?P<token>token))s?)   # its name
    (["']?\s*[:=]\s*)(["']?)(?=[^\s"']*\d)([^\s"'(){}\[\],;]{12,}+)
    (?(token)(?!\s*[-+*/<>&|?!%^;(\[]))   # numbers of a text's tokens are computed: that is code
    (["']?)"""
)
_PRIVATE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)


def without_secrets(text: str) -> str:
    """The text with everything that looks like a secret blanked; the rest as it was."""
    text = _PRIVATE.sub(REMOVED, text)
    text = _KEYS.sub(REMOVED, text)
    text = _BEARER.sub(rf"\1 {REMOVED}", text)
    text = _URL.sub(rf"\1{REMOVED}@", text)
    return _SETTING.sub(rf"\1\3\4{REMOVED}\6", text)
