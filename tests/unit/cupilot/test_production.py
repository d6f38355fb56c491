"""Production refuses unsafe settings, naming each; development takes them all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from cupilot.embedded import stack as embedded
from cupilot.embedded.errors import StartFailed
from cupilot.production import UnsafeProduction, check_environment, check_model_urls
from cupilot.settings import Settings

ROOT = Path(__file__).parents[3]
SAFE = {
    "environment": "production",
    "database_url": "postgresql+psycopg2://cupilot:Zx81kq@db:5432/cupilot",
    "redis_url": "redis://:Zx81kq@redis:6379/0",
    "metrics_token": "0123456789abcdef",
    "oidc_issuer": "https://id.example.org",
    "oidc_client_id": "cupilot",
    "oidc_redirect_url": "https://cupilot.example.org/ui/sso/callback",
}


def test_safe_settings_start() -> None:
    Settings.model_validate(SAFE)
    Settings.model_validate({name: value for name, value in SAFE.items() if name != "metrics_token"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("database_url", Settings.model_fields["database_url"].default.get_secret_value()),
        ("database_url", "postgresql+psycopg2://cupilot@db/cupilot"),
        ("database_url", "postgresql+psycopg2://cupilot:postgres@db/cupilot"),
        ("redis_url", Settings.model_fields["redis_url"].default.get_secret_value()),
        ("redis_url", "redis://:redis@redis:6379/0"),
        ("metrics_token", "short"),
        ("log_level", "DEBUG"),
        ("webhook_networks", "10.20.0.0/16, 127.0.0.0/8"),
        ("webhook_networks", "0.0.0.0/0"),
        ("webhook_networks", "169.254.169.254/32"),
        ("webhook_networks", "::1/128"),
        ("trusted_proxies", "*"),
        ("trusted_proxies", "10.0.0.1, 0.0.0.0/0"),
        ("oidc_redirect_url", "http://cupilot.example.org/ui/sso/callback"),
        ("heartbeat_seconds", "20"),
        ("visibility_timeout_seconds", "300"),
    ],
)
def test_an_unsafe_setting_is_named_and_its_value_is_not(name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=f"CUPILOT_{name.upper()}") as raised:
        Settings.model_validate(SAFE | {name: value})
    assert "Zx81kq" not in str(raised.value)
    Settings.model_validate({name: value})


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ValidationError) as raised:
        Settings(environment="production")
    assert {"CUPILOT_DATABASE_URL", "CUPILOT_REDIS_URL"} <= set(str(raised.value).replace(":", " ").split())


def test_receivers_and_proxies_of_a_private_network_may_be_named() -> None:
    Settings.model_validate(SAFE | {"webhook_networks": "10.20.0.0/16, fd00::/8", "trusted_proxies": "10.0.0.0/8"})


@pytest.mark.parametrize("name", ["CUPILOT_LLM_API_KEY", "CUPILOT_LLM_MODELS_FILE", "OPENAI_API_KEY", "HF_TOKEN"])
def test_model_keys_are_for_agents_only(name: str) -> None:
    check_environment("agent", {name: "sk-hunter2"})
    check_environment("gpu", {name: "", "OPENAI_BASE_URL": "http://vllm/v1", "DD_API_KEY": "not a model's"})
    for role in ("gpu", "scheduler", "webhooks", "the API"):
        with pytest.raises(UnsafeProduction, match=name) as raised:
            check_environment(role, {name: "sk-hunter2"})
        assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "fine"),
    [
        ("https://api.example.com/v1", True),
        ("http://api.example.com/v1", False),
        ("http://8.8.8.8/v1", False),
        ("http://[2606:4700::1]/v1", False),
        ("http://10.3.2.1:8000/v1", True),
        ("http://127.0.0.1:11434", True),
        ("http://vllm:8000/v1", True),
        ("http://vllm.models.svc/v1", True),
        ("http://vllm.models.svc.cluster.local/v1", True),
        ("http://vllm.internal/v1", True),
        ("http://internal.example.com/v1", False),
    ],
)
def test_keys_and_prompts_are_not_sent_in_the_clear_to_others(url: str, fine: bool) -> None:
    if fine:
        check_model_urls([url])
        return
    with pytest.raises(UnsafeProduction, match="without TLS"):
        check_model_urls(["https://fine.example.com", url])


RUN_IN_TURN = """
import contextlib, io, json, os, runpy, sys
from cupilot.settings import settings

for module, arguments, environment in json.loads(sys.argv[1]):
    os.environ.clear()
    os.environ.update(environment)
    settings.cache_clear()
    sys.argv = [module, *arguments]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            message = end.code if isinstance(end.code, str) else ""
            print(json.dumps([1 if message else end.code, said.getvalue() + message]))
"""
"""Start processes of the service as ``python -m`` would, one after the other: importing one takes seconds."""

ENDS = [
    ("api", [], {"CUPILOT_REDIS_URL": "redis://redis/0"}, "CUPILOT_REDIS_URL has no password"),
    ("api", [], {"OPENAI_API_KEY": "sk-hunter2"}, "OPENAI_API_KEY"),
    ("api", [], {"CUPILOT_API_PORT": "many"}, "CUPILOT_API_PORT: Input should be a valid integer"),
    ("workers", ["webhooks"], {"CUPILOT_LLM_API_KEY": "sk-hunter2"}, "CUPILOT_LLM_API_KEY"),
    (
        "workers",
        ["agent"],
        {"CUPILOT_LLM_MODEL": "openai/m", "CUPILOT_LLM_API_BASE": "http://api.example.com/v1"},
        "without TLS",
    ),
    ("migrations", [], {"CUPILOT_DATABASE_URL": "postgresql://cupilot:cupilot@db/x"}, "CUPILOT_DATABASE_URL"),
]


def test_a_process_says_what_is_wrong_and_ends() -> None:
    safe = {f"CUPILOT_{name.upper()}": value for name, value in SAFE.items()}
    processes = [(module, arguments, safe | changes) for module, arguments, changes, _ in ENDS]
    command = [sys.executable, "-c", RUN_IN_TURN, json.dumps(processes)]
    done = subprocess.run(command, env=safe, cwd=ROOT, capture_output=True, text=True, check=False)
    ended = [json.loads(line) for line in done.stdout.splitlines()]
    assert [code for code, _ in ended] == [1] * len(ENDS), done.stderr
    for (_, stderr), (*_, said) in zip(ended, ENDS, strict=True):
        assert said in stderr
        assert "Traceback" not in stderr
        assert "hunter2" not in stderr


def test_a_process_that_ends_so_prints_nothing_else() -> None:
    environment = {f"CUPILOT_{name.upper()}": value for name, value in SAFE.items()} | ENDS[-1][2]
    process = [sys.executable, "-m", "migrations"]
    done = subprocess.run(process, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert ENDS[-1][3] in done.stderr
    assert "Traceback" not in done.stderr


def test_the_embedded_stack_is_not_production(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPILOT_ENVIRONMENT", "production")
    with pytest.raises(StartFailed, match="for one person"):
        embedded.up(tmp_path / "data", foreground=False, on_progress=lambda _: None)
    assert not (tmp_path / "data").exists()
