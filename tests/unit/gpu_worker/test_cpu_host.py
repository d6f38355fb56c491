"""Options of a judge of the ``cpu`` target."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cupilot.domain.errors import InvalidInput
from gpu_worker.targets.cpu_host import CACHE_VARIABLE, CpuHost, last_level_cache


def test_torch_compile_takes_the_widest_vectors_untried() -> None:
    ask = "import torch._inductor.config as config; print(config.cpp.vec_isa_ok)"
    environment = {"PATH": os.environ["PATH"], **CpuHost().judge_access().environment}
    told = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout == "True\n", "what PyTorch itself calls the setting"


def test_the_last_level_is_all_of_its_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    for cpu in range(4):
        for index, (level, size, shared) in enumerate((("1", "48K", f"{cpu}"), ("3", "32M", ("0-1", "2-3")[cpu // 2]))):
            folder = tmp_path / f"cpu{cpu}/cache/index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
                (folder / name).write_text(f"{text}\n")
    assert last_level_cache(tmp_path) == 64 * 2**20
    assert last_level_cache(tmp_path / "nowhere") == 32 * 2**20


def test_a_smaller_cache_may_be_counted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "24")
    assert CpuHost().judge_options()["cache_bytes"] == 24 * 2**20
    monkeypatch.delenv(CACHE_VARIABLE)
    assert CpuHost().judge_options()["cache_bytes"] == last_level_cache()


@pytest.mark.parametrize("chosen", ["0", "-1", "32 MB", "1e3", "٣"])
def test_another_cache_than_a_number_of_mib_is_refused(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, chosen)
    with pytest.raises(InvalidInput, match="number of MiB"):
        CpuHost()
