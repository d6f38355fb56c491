"""Settings come from CUPILOT_ variables, and production is not started by accident."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cupilot.domain.webhooks import networks
from cupilot.settings import DEFAULT_DATABASE_URL, Settings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"CUPILOT_{name.upper()}", raising=False)


def test_defaults_are_for_development() -> None:
    settings = Settings()
    assert settings.environment == "development"
    assert settings.database_url.get_secret_value() == DEFAULT_DATABASE_URL


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPILOT_API_PORT", "9000")
    monkeypatch.setenv("CUPILOT_LEASE_SECONDS", "2.5")
    assert (Settings().api_port, Settings().lease_seconds) == (9000, 2.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LEASE_SECONDS", "0"),
        ("STEP_ATTEMPTS", "0"),
        ("API_PORT", "many"),
        ("API_PORT", "0"),
        ("EVALUATE_TIMEOUT_SECONDS", "0"),
        ("VISIBILITY_TIMEOUT_SECONDS", "-1"),
        ("TRUSTED_PROXIES", "nginx"),
        ("REDIS_URL", "redis:6379"),
    ],
)
def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"CUPILOT_{name}", value)
    with pytest.raises(ValidationError):
        Settings()


def test_a_star_stands_for_every_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPILOT_TRUSTED_PROXIES", "*")
    assert len(networks(Settings().trusted_proxies)) == 2


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg2"])
def test_an_address_of_postgres_without_a_driver_is_one(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """As operators of Postgres and clouds hand it out; SQLAlchemy would ask for a driver that no image holds."""
    monkeypatch.setenv("CUPILOT_DATABASE_URL", f"{scheme}://u:hunter2@db/x?sslmode=require")
    assert Settings().database_url.get_secret_value() == "postgresql+psycopg2://u:hunter2@db/x?sslmode=require"


@pytest.mark.parametrize("url", ["mysql://u:hunter2@db/x", "u:hunter2@db/x", ""])
def test_another_address_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("CUPILOT_DATABASE_URL", url)
    with pytest.raises(ValidationError, match="is no address of Postgres") as caught:
        Settings()
    assert "hunter2" not in str(caught.value)


def test_production_refuses_the_built_in_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPILOT_ENVIRONMENT", "production")
    with pytest.raises(ValidationError, match="CUPILOT_DATABASE_URL"):
        Settings()
    monkeypatch.setenv("CUPILOT_DATABASE_URL", "postgresql+psycopg2://cupilot:long-and-random@db/cupilot")
    monkeypatch.setenv("CUPILOT_REDIS_URL", "redis://:long-and-random@redis/0")
    assert Settings().environment == "production"


def test_secrets_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPILOT_DATABASE_URL", "postgresql://u:hunter2@db/x")
    monkeypatch.setenv("CUPILOT_REDIS_URL", "redis://:hunter2@queue/0")
    settings = Settings()
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in settings.model_dump_json()
