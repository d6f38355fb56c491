"""Profiles that ``cupilot login`` keeps, and their use."""

from __future__ import annotations

from pathlib import Path

import pytest

from cupilot.client.endpoint import find_endpoint
from cupilot.client.profiles import Profile, Profiles, load, profiles_file, save
from cupilot.domain.errors import InvalidInput, NotFound


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("CUPILOT_URL", "CUPILOT_API_KEY", "CUPILOT_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("CUPILOT_PROFILE", raising=False)


def kept() -> Path:
    profiles = {
        "default": Profile(url="https://one.example", api_key="cpk_one"),
        "lab": Profile(url="https://lab.example", api_key="cpk_lab"),
    }
    return save(Profiles(current="default", profiles=profiles))


def test_keys_are_for_their_owner_alone() -> None:
    path = kept()
    assert path.stat().st_mode & 0o777 == 0o600
    assert load().profiles["lab"].api_key == "cpk_lab"
    path.chmod(0o644)
    with pytest.raises(InvalidInput, match="others can read") as refused:
        load()
    assert refused.value.hint == f"chmod 600 {profiles_file()}"


def test_the_current_profile_is_used_where_nothing_else_names_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    kept()
    assert find_endpoint().url == "https://one.example"
    assert find_endpoint().api_key == "cpk_one"
    monkeypatch.setenv("CUPILOT_PROFILE", "lab")
    assert (find_endpoint().url, find_endpoint().api_key) == ("https://lab.example", "cpk_lab")
    monkeypatch.setenv("CUPILOT_PROFILE", "other")
    with pytest.raises(NotFound, match="no profile other"):
        find_endpoint()
    assert find_endpoint("https://one.example", "cpk_other").api_key == "cpk_other"


def test_a_profiles_key_is_shown_to_no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    kept()
    monkeypatch.setenv("CUPILOT_URL", "https://elsewhere.example")
    assert find_endpoint().api_key is None
    assert find_endpoint("https://one.example").api_key == "cpk_one"


def test_a_damaged_file_says_so() -> None:
    kept().write_text("{", encoding="utf-8")
    with pytest.raises(InvalidInput, match="damaged"):
        load()
