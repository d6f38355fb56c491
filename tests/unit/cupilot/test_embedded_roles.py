"""Environment of the embedded stack's processes."""

from __future__ import annotations

from cupilot.embedded.roles import without_secrets


def test_secrets_of_others_are_kept_from_processes_and_our_own_settings_are_not() -> None:
    ours = {"CUPILOT_RATE_LIMIT_KEY": "0", "CUPILOT_METRICS_TOKEN": "x", "CUPILOT_LEASE_SECONDS": "9", "HOME": "/root"}
    others = {"OPENAI_API_KEY": "x", "HF_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "x", "CUPILOT_API_KEY": "x"}
    assert without_secrets(ours | others) == ours
