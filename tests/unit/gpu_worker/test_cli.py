"""``python -m gpu_worker``: output for people and programs, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from cupilot.domain.evaluation import Evaluation, PreparationResult
from cupilot.domain.hardware import Device
from gpu_worker import __main__ as command
from gpu_worker.__main__ import main
from gpu_worker.evaluator import Evaluator
from tests.unit.gpu_worker.lines import KERNEL, PLAN, SOURCE

pytestmark = pytest.mark.judge


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "line.py").write_text(SOURCE)
    (tmp_path / "line.cpp").write_text(KERNEL)
    (tmp_path / "wrong.cpp").write_text(KERNEL.replace("+ 1.0f", "+ 1.5f"))
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    return tmp_path


@pytest.fixture
def folder(work_dir: Path) -> list[str]:
    return ["--work-dir", str(work_dir)]


@pytest.fixture
def warm(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the commands that follow use the judge that runs already, instead of one each."""
    return lambda: monkeypatch.setattr(command, "Evaluator", lambda *_, **__: nullcontext(evaluator))


def test_device(folder: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["device", "--json", *folder]) == 0
    device = Device.model_validate_json(capsys.readouterr().out)
    assert device.device_class == "cpu"
    assert main(["device", *folder]) == 0
    assert device.name in capsys.readouterr().out


def test_prepare_then_evaluate(
    files: Path, folder: list[str], warm: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    problem = ["--problem", str(files / "line.py"), *folder]
    assert main(["prepare", "--json", *problem]) == 0
    output = capsys.readouterr().out
    assert PreparationResult.model_validate_json(output).preparation is not None
    (files / "known.json").write_text(output)
    warm()
    rest = ["--plan", str(files / "plan.json"), "--preparation", str(files / "known.json"), *problem]
    assert main(["evaluate", "--kernel", str(files / "line.cpp"), *rest]) == 0
    text = capsys.readouterr().out
    assert "audited" in text
    assert "over eager" in text
    assert main(["evaluate", "--json", "--kernel", str(files / "wrong.cpp"), *rest]) == 1
    assert Evaluation.model_validate_json(capsys.readouterr().out).failure is not None
    other = [*rest, "--policy", "half"]
    assert main(["evaluate", "--kernel", str(files / "line.cpp"), *other]) == 2
    assert "another problem or policy" in capsys.readouterr().err


def test_unusable_arguments(files: Path, folder: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (files / "broken.py").write_text("def f(:\n")
    assert main(["prepare", "--problem", str(files / "broken.py"), *folder]) == 2
    assert "not valid Python" in capsys.readouterr().err
    assert main(["prepare", "--problem", str(files / "missing.py"), *folder]) == 2
    assert main(["device", "--threads", "100000", *folder]) == 2
    with pytest.raises(SystemExit) as caught:
        main(["evaluate", "--problem", "x"])
    assert caught.value.code == 2


def test_files_that_cannot_be_imported(files: Path, folder: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (files / "other.py").write_text("class Other: ...")
    assert main(["judge", str(files / "line.py"), str(files / "other.py"), *folder]) == 2
    assert "does not define ModelNew" in capsys.readouterr().err
    assert main(["judge", str(files / "line.py"), str(files / "line.cpp"), *folder]) == 2
    assert "needs a launch plan" in capsys.readouterr().err
    (files / "new.py").write_text("class ModelNew: ...")
    plan = ["--plan", str(files / "plan.json")]
    assert main(["judge", str(files / "line.py"), str(files / "new.py"), *plan, *folder]) == 2
    assert "has no launch plan" in capsys.readouterr().err
    assert main(["judge", str(files / "line.py"), str(files / "new.py"), "--function", "run", *folder]) == 2
    assert "not the source of a torch extension" in capsys.readouterr().err
    line = [str(files / "line.py"), str(files / "line.cpp"), *plan]
    assert main(["judge", *line, "--function", "run", *folder]) == 2
    assert "--function is for torch extensions" in capsys.readouterr().err


def test_unusable_problem(
    files: Path, folder: list[str], warm: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    warm()
    (files / "raising.py").write_text(SOURCE.replace("return x * 2.0 + 1.0", "raise ValueError('no')"))
    assert main(["prepare", "--json", "--problem", str(files / "raising.py"), *folder]) == 2
    result = PreparationResult.model_validate_json(capsys.readouterr().out)
    assert result.failure is not None
    assert "ValueError: no" in result.failure.message
