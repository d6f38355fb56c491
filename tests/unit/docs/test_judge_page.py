"""The page about the judge can be followed: every defence has code and a test, and its numbers are the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_worker.judge import exactness, laws
from gpu_worker.judge.cases import MOST_ERROR
from gpu_worker.judge.clocks import BUSY_BLOCKS, MISMATCHED_BLOCKS
from gpu_worker.judge.cold_start import COLD_START_FACTOR, COLD_START_SHARE, COLD_START_TRIES
from gpu_worker.judge.comparison import PYTORCH_FACTOR
from gpu_worker.judge.fillings import WANTED
from gpu_worker.judge.mixing import NEAREST
from gpu_worker.judge.statistics import CONFIDENCE, RESAMPLES
from gpu_worker.judge.timing import CHECKED_LAUNCHES, MIN_PAIRS, WIDE_PAIRS, WIDEST
from gpu_worker.judge.tolerance import LEAST_ERROR, MOST_CONDITIONING, PRECISIONS, TIGHTEST_FACTOR
from gpu_worker.sweep import HOPELESS, NEAR_FLOOR
from gpu_worker.targets import cpu_judge
from gpu_worker.targets.cpu_host import CpuHost
from gpu_worker.targets.cuda import judge as cuda_judge
from gpu_worker.targets.cuda.host import CudaHost
from gpu_worker.verdict import BELOW_FLOOR

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/judge.md"
TEXT = PAGE.read_text(encoding="utf-8")
DEFENCES = [
    line.strip("| \n").split(" | ")
    for line in TEXT.partition("## Defences and their tests")[2].partition("\n## ")[0].splitlines()
    if line.startswith("| ") and "`test_" in line
]
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("defence", DEFENCES, ids=lambda defence: str(defence[0]))
def test_a_defence_leads_to_its_code_and_its_test(defence: list[str]) -> None:
    _, code, tests = defence
    modules = re.findall(r"`([\w/]+)`", code)
    assert modules
    for module in modules:
        assert any((ROOT / room / f"{module}.py").exists() for room in ("gpu_worker", ".")), module
    named = set(re.findall(r"`(test_\w+)`", tests))
    assert named
    assert named <= TESTS


def test_no_defence_is_without_a_row() -> None:
    assert len(DEFENCES) >= 50


def test_the_bounds_where_pytorch_is_no_measure_are_those_of_the_judge() -> None:
    assert f"its own answer errs by {MOST_ERROR} or more" in TEXT
    assert f"the tolerance at most {MOST_ERROR}, and a\nnote says so" in TEXT
    assert f"moves the answer by {MOST_CONDITIONING} or more" in TEXT


def test_the_laws_of_the_page_are_those_of_the_judge() -> None:
    section = TEXT.partition("## What a kernel is given")[2].partition("## What is timed")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert listed == [laws.OWN, *laws.TRIED, laws.PARAMETERS, laws.NEGATED, laws.PERTURBED, laws.INTEGERS]


def test_the_numbers_of_the_page_are_those_of_the_judge() -> None:
    for policy, precision in PRECISIONS.items():
        row = (
            rf"^\| `{policy.value}` \| {precision.factor:.0f} \| ([\de.-]+) \| [^|]*\({precision.lower_bits} bits\) \|$"
        )
        match = re.search(row, TEXT, re.MULTILINE)
        assert match, policy
        assert float(match[1]) == precision.floor
    assert LEAST_ERROR == 16 * 2.0**-24
    assert (TIGHTEST_FACTOR, exactness.ALLOWED_QUANTA, BELOW_FLOOR, PYTORCH_FACTOR) == (4.0, 0.25, 0.85, 1.25)
    assert (RESAMPLES, CONFIDENCE) == (2000, (2.5, 97.5))
    assert (HOPELESS, NEAR_FLOOR, CudaHost.sweep_points, CpuHost.sweep_points) == (0.2, 0.95, 12, 3)
    assert (CHECKED_LAUNCHES, WANTED, NEAREST, WIDEST, WIDE_PAIRS) == (3, 3, 0.25, 2.5, 24)
    assert (MIN_PAIRS, MISMATCHED_BLOCKS, BUSY_BLOCKS) == (6, 6, 60)
    assert (COLD_START_FACTOR, COLD_START_SHARE, COLD_START_TRIES) == (1.25, 8, 20)
    assert (cpu_judge.LEAST_COLD_START_SECONDS, cuda_judge.COLD_START_SECONDS) == (5e-4, 8e-6)
    assert (cpu_judge.WAIT_FACTOR, cpu_judge.LEAST_SLACK_SECONDS, cpu_judge.CLOCK_SLACK_SECONDS) == (4.0, 2e-4, 2e-3)
