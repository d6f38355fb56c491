"""Champions that ship: whole, verified, exportable, and the same as what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cupilot.cli.app import app
from cupilot.domain import champions, problems
from cupilot.domain.champions import Champion, InvalidChampion
from cupilot.domain.errors import NotFound
from cupilot.domain.kernel import resolve
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.exports import ExportFormat, Winner, files, refusals
from cupilot.reports.champion import report_of, summary

ALL = champions.champions()
STATEFUL = {"batch_norm"}
"""Problems whose module changes its own buffers, which no module with a kernel in its place does."""


def named(champion: Champion) -> str:
    return f"{champion.problem}-{champion.policy}-{champion.arch}"


def test_champions_ship_for_current_problems_and_one_stands_for_each() -> None:
    assert len(ALL) >= 14
    places = [(item.problem, item.policy, item.target, item.arch) for item in ALL]
    assert len(set(places)) == len(places)
    assert {item.problem_hash for item in ALL} <= set(problems.hashes())


@pytest.mark.parametrize("champion", ALL, ids=named)
def test_a_champion_can_be_exported_and_its_plan_fits(champion: Champion) -> None:
    assert resolve(champion.kernel, champion.preparation.facts).launches
    assert not champion.preparation.warnings
    winner = Winner.of(report_of(champion))
    refused = {form for form, why in refusals(winner).items() if why is not None}
    assert refused <= {ExportFormat.CUPY} or champion.problem in STATEFUL
    bundle = files(winner, ExportFormat.BUNDLE)
    assert bundle["kernel.cu"] == champion.kernel.source
    assert f"--gpu-architecture={champion.arch}a" in winner.options()
    assert summary(champion).speedup.high >= 1.0


def test_a_changed_file_is_refused() -> None:
    text = champions.dump(ALL[0])
    assert champions.parse(text, "a") == ALL[0]
    data = json.loads(text)
    data["champion"]["measured_at"] = "2020-01-01T00:00:00+00:00"
    with pytest.raises(InvalidChampion, match="does not have the hash"):
        champions.parse(json.dumps(data), "a")
    with pytest.raises(InvalidChampion):
        champions.parse("{}", "a")


def test_a_kernel_that_was_not_measured_is_no_champion() -> None:
    other = ALL[0].kernel.model_copy(update={"source": ALL[0].kernel.source + "\n"})
    with pytest.raises(ValueError, match="of another kernel"):
        Champion.model_validate(ALL[0].model_dump() | {"kernel": other.model_dump()})


def test_the_best_of_a_problem_is_found_and_what_is_missing_is_explained() -> None:
    found = champions.best("max_pool2d", Target.CUDA)
    assert champions.by_kernel(found.kernel.content_hash()[:12]) == found
    with pytest.raises(NotFound) as missing:
        champions.best("max_pool2d", Target.CUDA, policy=NumericsPolicy.HALF)
    assert missing.value.hint == "there is one under fp32 on sm_90"
    with pytest.raises(NotFound, match="on cuda \\(sm_80\\) ships"):
        champions.best("max_pool2d", Target.CUDA, arch="sm_80")
    with pytest.raises(NotFound) as misspelt:
        champions.best("max_pool", Target.CUDA)
    assert "max_pool2d" in str(misspelt.value.hint)
    with pytest.raises(NotFound):
        champions.by_kernel("")


def test_forms_and_policies_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--format", "torch"], ["--format", "kernelbench"]):
        assert CliRunner().invoke(app, ["best", "max_pool2d", "--target", "cuda", *more]).exit_code == 0
    policy = champions.best("max_pool2d", Target.CUDA).policy.value
    assert Path("cupilot-results", "max_pool2d", f"sm_90-{policy}", "kernel.cu").exists()
    exports = Path("cupilot-exports", "max_pool2d", f"sm_90-{policy}")
    assert sorted(path.name for path in exports.iterdir()) == ["kernelbench", "torch"]


def test_the_command_answers_without_a_service(tmp_path: Path) -> None:
    out = tmp_path / "best"
    done = CliRunner().invoke(app, ["best", "max_pool2d", "--target", "cuda", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "as fast as PyTorch eager" in done.output
    assert "NVIDIA H200 (sm_90)" in done.output
    champion = champions.best("max_pool2d", Target.CUDA)
    assert (out / "kernel.cu").read_text(encoding="utf-8") == champion.kernel.source
    done = CliRunner().invoke(app, ["best", "max_pool2d", "--format", "torch", "--out", str(tmp_path / "torch")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "torch" / "pyproject.toml").exists()
    assert CliRunner().invoke(app, ["best", "max_pool2d", "--format", "exe"]).exit_code == 2
    named = ["best", "max_pool2d", "--format", "torch", "--name", "mine", "--out", str(tmp_path / "named")]
    assert CliRunner().invoke(app, named).exit_code == 0
    assert (tmp_path / "named" / "cupilot_mine").is_dir()
