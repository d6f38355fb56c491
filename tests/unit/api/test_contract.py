"""No change of the REST contract goes unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api import contract


def schema(**fields: Any) -> dict[str, Any]:
    return {"components": {"schemas": {"Job": {"properties": fields, "required": ["id"]}}}}


def test_the_api_is_what_its_contract_says() -> None:
    listed = contract.KEPT.read_text(encoding="utf-8").splitlines()
    unlisted = contract.unlisted(listed, contract.changes(contract.served()))
    assert not unlisted, "the REST contract changed; if that is meant: python -m api.contract --write\n" + "\n".join(
        unlisted
    )


def test_what_is_gone_new_or_another_is_named_by_its_place() -> None:
    before = schema(id={"type": "string"}, state={"type": "string"})
    after = schema(id={"type": "integer"}, labels={"type": "object"})
    where = "components > schemas > Job > properties"
    assert list(contract.differences(before, after)) == [
        f'~ {where} > id > type: "string" is now "integer"',
        f"+ {where} > labels",
        f"- {where} > state",
    ]


def test_parameters_are_compared_by_name() -> None:
    before, after = ({"parameters": [{"in": "query", "name": name}]} for name in ("after", "cursor"))
    found = list(contract.differences({"paths": before}, {"paths": after}))
    assert found == ["- paths > parameters > query after", "+ paths > parameters > query cursor"]


def test_a_change_of_what_is_new_since_the_release_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(contract, "RELEASED", tmp_path / "released.json")
    contract.write(contract.RELEASED, _service())
    assert contract.read(contract.RELEASED)["paths"] == _service()["paths"]
    listed = contract.changes(schema(id={"type": "string"}))
    assert contract.unlisted(listed, contract.changes(schema(id={"type": "integer"}))) == [
        "~ what is new since the release"
    ]


def test_words_may_change_and_names_that_look_like_words_may_not() -> None:
    said = contract.shapes(schema(title={"title": "Title", "type": "string", "description": "What it is."}))
    assert said == schema(title={"type": "string"})


def test_a_change_fails_until_it_is_taken_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contract, "KEPT", tmp_path / "changes.txt")
    monkeypatch.setattr(contract, "RELEASED", tmp_path / "released.json")
    monkeypatch.setattr(contract, "served", lambda: _service("id"))
    assert contract.main([]) == 1
    assert capsys.readouterr().out == "+ paths\n"
    assert contract.main(["--write"]) == 0
    assert contract.main([]) == 0


def test_what_breaks_clients_of_the_last_release_cannot_be_taken_over_but_by_a_release(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contract, "KEPT", tmp_path / "changes.txt")
    monkeypatch.setattr(contract, "RELEASED", tmp_path / "released.json")
    monkeypatch.setattr(contract, "served", lambda: _service("id", "state"))
    assert contract.main(["--release"]) == 0
    monkeypatch.setattr(contract, "served", lambda: _service("id"))
    assert contract.main(["--write"]) == 1
    assert "BREAKS CLIENTS: GET /jobs 200.state is gone\n" in capsys.readouterr().out
    assert contract.main([]) == 1
    assert contract.main(["--release"]) == 0
    assert contract.main([]) == 0


def _service(*fields: str) -> dict[str, Any]:
    """The contract of a service with one route, whose answer has these fields."""
    answer = {"type": "object", "properties": {name: {"type": "string"} for name in fields}}
    return {"paths": {"/jobs": {"get": {"responses": {"200": {"content": {"application/json": {"schema": answer}}}}}}}}
