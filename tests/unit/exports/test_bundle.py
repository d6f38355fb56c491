"""The bundle, run offline against the real judge on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cupilot.exports import ExportFormat
from tests.patience.judges import QUICK_STACK
from tests.unit.exports.installed import imported, write
from tests.unit.exports.winners import GELU, GELU_CPU, winner


@pytest.mark.judge
def test_the_bundle_measures_again_and_says_what_differs(tmp_path: Path) -> None:
    folder = write(winner("gelu", GELU, GELU_CPU), ExportFormat.BUNDLE, tmp_path)
    environment = {**os.environ, **QUICK_STACK}
    done = subprocess.run(
        [sys.executable, "reproduce.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "device differs: recorded on Test CPU" in done.stdout
    assert "verdict: recorded reproduced, here " in done.stdout
    assert "speedup over eager: recorded 1.5" in done.stdout


@pytest.mark.parametrize(
    ("verdict", "speedup", "code"),
    [
        ("audited", (1.4, 1.45, 1.6), 0),
        ("reproduced", (1.0, 1.1, 1.2), 1),
        ("rejected", (1.4, 1.5, 1.6), 2),
    ],
)
def test_what_it_says_of_another_measurement(
    tmp_path: Path, verdict: str, speedup: tuple[float, float, float], code: int
) -> None:
    folder = write(winner("gelu", GELU, GELU_CPU), ExportFormat.BUNDLE, tmp_path)
    recorded = json.loads((folder / "evaluation.json").read_text())
    low, median, high = speedup
    measured = {
        **recorded, "verdict": verdict,
        "comparisons": [{"baseline": "eager", "speedup": {"low": low, "median": median, "high": high}}],
    }  # fmt: skip
    with imported(folder, "reproduce") as script:
        assert script.verdict(recorded, measured) == code
        assert script.differences(recorded["environment"], recorded["environment"]) == [
            "device, driver and versions are those of the record"
        ]


def test_a_machine_without_the_judge_is_told_so(tmp_path: Path) -> None:
    folder = write(winner("gelu", GELU, GELU_CPU), ExportFormat.BUNDLE, tmp_path)
    (folder / "gpu_worker.py").write_text('raise ModuleNotFoundError("No module named gpu_worker")\n')
    done = subprocess.run([sys.executable, "reproduce.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "not measured" in done.stdout
