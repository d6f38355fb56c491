"""No change of the REST contract goes unseen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from api import contract


def schema(**fields: Any) -> dict[str, Any]:
    return {"components": {"schemas": {"Job": {"properties": fields, "required": ["id"]}}}}


def test_the_api_is_what_its_contract_says() -> None:
    found = list(contract.differences(json.loads(contract.KEPT.read_text(encoding="utf-8")), contract.served()))
    assert not found, "the REST contract changed; if that is meant: python -m api.contract --write\n" + "\n".join(found)


def test_what_is_gone_new_or_another_is_named_by_its_place() -> None:
    before = schema(id={"type": "string"}, state={"type": "string"})
    after = schema(id={"type": "integer"}, labels={"type": "object"})
    where = "components > schemas > Job > properties"
    assert list(contract.differences(before, after)) == [
        f'~ {where} > id > type: "string" is now "integer"',
        f"+ {where} > labels",
        f"- {where} > state",
    ]


def test_words_may_change_and_names_that_look_like_words_may_not() -> None:
    said = contract.shapes(schema(title={"title": "Title", "type": "string", "description": "What it is."}))
    assert said == schema(title={"type": "string"})


def test_a_change_fails_until_it_is_taken_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "contract.json"
    monkeypatch.setattr(contract, "KEPT", kept)
    monkeypatch.setattr(contract, "served", lambda: schema(id={"type": "string"}))
    assert contract.main([]) == 1
    assert capsys.readouterr().out == "+ components\n"
    assert contract.main(["--write"]) == 0
    assert contract.main([]) == 0
