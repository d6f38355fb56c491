"""For all tests: what the shell and the libraries leave behind in a process is put right."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.testing

import cupilot.domain.value

LONGEST = (
    "service/workers/test_processes.py",
    "service/embedded/test_stack.py",
    "service/workers/test_methods.py",
    "exploits/test_families.py",
    "exploits/test_hostile_references.py",
    "exploits/test_imported.py",
    "service/workers/test_model_faults.py",
    "service/workers/test_batch_end_to_end.py",
    "exploits/test_escapes.py",
    "service/faults/test_broken_inputs.py",
    "service/faults/test_kills.py",
    "service/faults/test_matrix.py",
    "unit/agents/playbook/test_compiler.py",
    "service/api/test_cli_stack.py",
    "unit/gpu_worker/test_evaluator.py",
    "service/test_a_day.py",
    "unit/agents/playbook/test_half_templates.py",
    "unit/gpu_worker/test_warm_judge.py",
    "exploits/test_cheating_kernels.py",
    "service/api/test_openapi_fuzz.py",
    "unit/benchmarks/test_judged_coverage.py",
    "unit/agents/playbook/test_templates.py",
    "unit/architecture/test_standalone.py",
    "unit/exports/test_cpu_exports.py",
    "unit/agents/llm/test_check.py",
)
"""Files that take longest, longest first: what begins last must be short, or one process ends long after the other."""

# A shell that starts the run in the background makes it ignore interrupts, and so all its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

# LiteLLM asks for "the" event loop after each call. Python 3.11 then makes one that nobody closes, and whichever test
# is running when it is collected fails for its sockets. A thread that was told to have none gets none, as in 3.14.
asyncio.set_event_loop(None)

# As a laptop's. A virtual machine is shown all of a large host's: the judge would spend half of its time evicting it.
os.environ["CUPILOT_CPU_CACHE_MIB"] = "8"

# Before the command line, which has models built at their first use: the API's are built at once, whatever test begins.
assert not cupilot.domain.value.BUILD_LATER

# For each command that a test types, typer builds the whole command line: 0.08 s, longer than most commands take.
typer.testing._get_command = functools.cache(typer.testing._get_command)


@pytest.fixture(scope="module", autouse=True)
def _garbage() -> Iterator[None]:
    """Collect what a file leaves at its end: sockets that a library's client left open fail no other file's test.

    What is still in use then is not looked at again: libraries and thousands of tests took seconds each time.
    """
    yield
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "unclosed", ResourceWarning)
        gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of garbage collection."""
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Give each process cores of its own, or one core that it shares with as few others as can be.

    Kernels and PyTorch wait long for threads that wait for a core.
    """
    if hasattr(config, "workerinput"):
        # The process that replaces one that crashed has a higher number than there are processes.
        number, count = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
        cores = sorted(os.sched_getaffinity(0))
        mine = cores[number % count :: count] or [cores[number % len(cores)]]
        os.sched_setaffinity(0, mine)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For commands in this process: no stack of this machine, an empty folder and home, and no waiting."""
    for name in ("CUPILOT_URL", "CUPILOT_API_KEY", "CUPILOT_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cupilot.client.protocol.FIRST_PAUSE_SECONDS", 0.0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest files where several processes share the work."""
    if hasattr(config, "workerinput"):
        here = Path(__file__).parent
        place = {here / name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: place.get(item.path, len(LONGEST)))
