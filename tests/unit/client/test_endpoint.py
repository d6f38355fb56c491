"""Places in which the client looks for a server and its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from cupilot.client.endpoint import Endpoint, NoServer, data_folder, find_endpoint
from cupilot.domain.errors import InvalidInput


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty home and working folder, and no variables."""
    for name in ("CUPILOT_URL", "CUPILOT_API_KEY", "CUPILOT_DATA"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")


def _stack(folder: Path, url: str, key: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "url").write_text(url + "\n")
    (folder / "api_key").write_text(key + "\n")
    return folder


def test_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    _stack(Path(".cupilot"), "http://folder:1", "folder-key")
    monkeypatch.setenv("CUPILOT_URL", "http://env:1")
    monkeypatch.setenv("CUPILOT_API_KEY", "env-key")
    assert find_endpoint("http://given:1/", "given-key") == Endpoint("http://given:1", "given-key")


def test_the_environment_comes_before_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    _stack(Path(".cupilot"), "http://folder:1", "folder-key")
    assert find_endpoint() == Endpoint("http://folder:1", "folder-key")
    monkeypatch.setenv("CUPILOT_URL", "http://env:1")
    monkeypatch.setenv("CUPILOT_API_KEY", "env-key")
    assert find_endpoint() == Endpoint("http://env:1", "env-key")


def test_a_named_folder_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = _stack(tmp_path / "named", "http://named:1", "named-key")
    monkeypatch.setenv("CUPILOT_URL", "http://env:1")
    monkeypatch.setenv("CUPILOT_API_KEY", "env-key")
    assert find_endpoint(data=folder) == Endpoint("http://named:1", "named-key")


def test_a_folders_key_is_never_shown_to_another_server() -> None:
    _stack(Path(".cupilot"), "http://folder:1", "folder-key")
    assert find_endpoint("http://elsewhere:1").api_key is None
    assert find_endpoint("http://folder:1").api_key == "folder-key"


def test_the_home_folder_is_used_where_the_present_one_has_no_stack(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert data_folder() == Path(".cupilot")
    _stack(tmp_path / "home" / ".cupilot", "http://home:1", "home-key")
    assert find_endpoint() == Endpoint("http://home:1", "home-key")
    _stack(Path(".cupilot"), "http://here:1", "here-key")
    assert find_endpoint() == Endpoint("http://here:1", "here-key")
    monkeypatch.setenv("CUPILOT_DATA", str(_stack(tmp_path / "other", "http://other:1", "other-key")))
    assert find_endpoint() == Endpoint("http://other:1", "other-key")


def test_nothing_to_be_found_is_said() -> None:
    with pytest.raises(NoServer, match="no server is configured"):
        find_endpoint()
    Path(".cupilot").mkdir()
    Path(".cupilot/url").write_bytes(b"\xff\xfe")
    with pytest.raises(NoServer):
        find_endpoint()


@pytest.mark.parametrize(
    "url",
    ["localhost:80", "ftp://x", "//x", "file:///etc/passwd", "http://", "http://[", "http://h:99999", "http://h:x"],
)
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        find_endpoint(url)


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schl\u00fcssel", "\0"])
def test_a_key_that_cannot_be_one_is_refused_before_it_is_sent(key: str) -> None:
    with pytest.raises(InvalidInput, match="API key"):
        find_endpoint("http://given:1", key)
