"""Starts of the embedded stack's workers, and their environment."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from cupilot.domain.problem import Target
from cupilot.embedded.folder import Folder
from cupilot.embedded.lifecycle import Options
from cupilot.embedded.models import MODEL_VARIABLES
from cupilot.embedded.pulse import limit_seconds
from cupilot.embedded.roles import Api, Cluster, Schema, make_workers, without_secrets


def agent_command(folder: Path, model_calls: int | None) -> list[str]:
    """Return the command of the stack's agent worker."""
    workers = make_workers(Folder(folder), {}, Cluster("http://127.0.0.1:1", folder / "key"), [], model_calls)
    return next(list(worker.command().argv) for worker in workers if worker.name == "agent")


def test_an_agent_worker_that_calls_models_does_several_steps_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in MODEL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert agent_command(tmp_path, None)[-2:] == ["--concurrency", "1"]
    assert agent_command(tmp_path, 3)[-2:] == ["--concurrency", "4"], "one more, for what asks no model"
    monkeypatch.setenv("CUPILOT_LLM_MODEL", "openai/some")
    assert agent_command(tmp_path, None)[-2:] == ["--concurrency", "9"]
    assert agent_command(tmp_path, 3)[-2:] == ["--concurrency", "4"]


@pytest.mark.parametrize("options", [Options(), Options(Target.CPU, 4)])
def test_options_reach_a_detached_supervisor(options: Options) -> None:
    assert Options.load(json.dumps(asdict(options))) == options


def test_secrets_of_others_are_kept_from_processes_and_our_own_settings_are_not() -> None:
    ours = {"CUPILOT_RATE_LIMIT_KEY": "0", "CUPILOT_METRICS_TOKEN": "x", "CUPILOT_LEASE_SECONDS": "9", "HOME": "/root"}
    others = {"OPENAI_API_KEY": "x", "HF_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "x", "CUPILOT_API_KEY": "x"}
    assert without_secrets(ours | others) == ours


def test_the_secret_of_single_sign_on_reaches_the_api_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPILOT_OIDC_CLIENT_SECRET", "x")
    monkeypatch.setenv("CUPILOT_OIDC_ISSUER", "https://id.example.org")
    cluster = Cluster("http://127.0.0.1:1", tmp_path / "key")
    workers = make_workers(Folder(tmp_path), {}, cluster, [], None)
    assert Api({}, cluster).command().environment["CUPILOT_OIDC_CLIENT_SECRET"] == "x"
    for worker in workers:
        assert "CUPILOT_OIDC_CLIENT_SECRET" not in worker.command().environment, worker.name
    assert "CUPILOT_OIDC_CLIENT_SECRET" not in without_secrets({"CUPILOT_OIDC_CLIENT_SECRET": "x"})


def test_a_migration_of_a_large_database_is_not_cut_off(tmp_path: Path) -> None:
    assert Schema(Folder(tmp_path), {}).ready_seconds >= 3600


@pytest.mark.parametrize(("chosen", "limit"), [(None, 120.0), ("300", 300.0), ("-1", 120.0)])
def test_a_part_may_be_silent_as_long_as_the_setting_says(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, limit: float
) -> None:
    """A wrong setting is told by the process that is started with it."""
    monkeypatch.setenv("CUPILOT_DATABASE_URL", "none of the stack's")
    if chosen is not None:
        monkeypatch.setenv("CUPILOT_HEALTH_SECONDS", chosen)
    assert limit_seconds({"CUPILOT_DATABASE_URL": "postgresql://stack"}) == limit
