"""Times of strategies are kept problem by problem, and a run goes on where it ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import strategy_times


def test_a_run_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def timed(name: str, _: Any) -> dict[str, Any]:
        asked.append(name)
        return {"eager_us": 1.0, "strategies": []}

    monkeypatch.setattr(strategy_times, "_timed", timed)
    record = tmp_path / "record.json"
    options = ["--problems", "relu", "gelu", "--out", str(record)]
    assert strategy_times.main([*options, "--seconds", "-1"]) == 1
    assert strategy_times.main(options) == 0
    assert strategy_times.main(options) == 0
    assert asked == ["relu", "gelu"]
    assert set(json.loads(record.read_text())["problems"]) == {"relu", "gelu"}


def test_a_difference_is_counted_in_spreads() -> None:
    expected = torch.tensor([1.0, 3.0, float("inf"), float("nan")])
    same = strategy_times._difference(expected.clone(), expected)
    other = strategy_times._difference(expected + torch.tensor([0.0, 0.5, 0.0, 0.0]), expected)
    assert same == 0
    assert other == pytest.approx(0.5 / 2**0.5)


def test_records_of_several_runs_become_one(tmp_path: Path) -> None:
    stamp = {"commit": "a" * 40, "machine": "a machine", "begun": "2026-01-01T00:00:00+00:00"}
    first, second = (tmp_path / name for name in ("first.json", "second.json"))
    relu, gelu = ({"eager_us": time, "seconds": 1.0, "strategies": []} for time in (1.0, 2.0))
    first.write_text(json.dumps({**stamp, "command": "run relu", "problems": {"relu": relu}}))
    second.write_text(json.dumps({**stamp, "command": "run gelu", "problems": {"gelu": gelu}}))
    out = tmp_path / "one.json"
    assert strategy_times.main(["--merge", str(first), str(second), "--machine", "a card", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["problems"] == {
        "relu": {"eager_us": 1.0, "strategies": []},
        "gelu": {"eager_us": 2.0, "strategies": []},
    }
    assert (record["command"], record["commit"], record["machine"]) == ("run relu; run gelu", "a" * 40, "a card")


def test_rows_of_an_earlier_commit_name_it_and_give_way_to_newer_ones(tmp_path: Path) -> None:
    stamp = {"machine": "a machine", "begun": "2026-01-01T00:00:00+00:00", "command": "run"}
    old, new = ({"eager_us": time, "strategies": []} for time in (1.0, 2.0))
    first, second, out = (tmp_path / name for name in ("first.json", "second.json", "one.json"))
    first.write_text(json.dumps({**stamp, "commit": "a" * 40, "problems": {"relu": old, "gelu": old, "tanh": old}}))
    ended = {"failure": "the process ended"}
    second.write_text(json.dumps({**stamp, "commit": "b" * 40, "problems": {"relu": new, "tanh": ended}}))
    assert strategy_times.main(["--merge", str(first), str(second), "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["commit"] == "b" * 40
    assert record["problems"] == {"relu": new, "gelu": old | {"commit": "a" * 40}, "tanh": old | {"commit": "a" * 40}}
