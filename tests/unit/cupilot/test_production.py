"""Production refuses unsafe settings, naming each; development takes them all."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cupilot.settings import Settings

SAFE = {
    "environment": "production",
    "database_url": "postgresql+psycopg2://cupilot:Zx81kq@db:5432/cupilot",
    "redis_url": "redis://:Zx81kq@redis:6379/0",
    "metrics_token": "0123456789abcdef",
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
