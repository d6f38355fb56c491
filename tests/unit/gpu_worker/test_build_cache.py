"""The folder of builds stays below its size, and takes nothing from whoever uses it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_worker import build_cache
from gpu_worker.build import Builder
from gpu_worker.build_cache import BuildCache
from gpu_worker.sandbox.sandbox import Sandbox
from gpu_worker.targets.cpu_toolchain import CpuToolchain

BUILD = 16_384
LONG_AGO = 1_000_000_000


def put(cache: BuildCache, key: str, used: float) -> Path:
    """Make a build that was used at this time."""
    with cache.locked(key) as place:
        place.mkdir()
        (place / "kernel.bin").write_bytes(os.urandom(BUILD))
    os.utime(place, (used, used))
    return place


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, most_bytes=5 * BUILD, look_every=1)
    places = {name: put(cache, name, LONG_AGO + age) for age, name in enumerate(("aa", "bb", "cc", "dd", "ee"))}
    with cache.locked("aa"):
        pass
    places["ff"] = put(cache, "ff", LONG_AGO + 9)
    cache.made()
    assert [name for name, place in places.items() if place.exists()] == ["aa", "ee", "ff"]
    assert not places["bb"].with_suffix(".lock").exists(), "a million locks are as many files"
    assert places["aa"].with_suffix(".lock").exists()


def test_builds_in_use_stay_however_large_the_folder_is(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, most_bytes=BUILD, look_every=1)
    old, held = put(cache, "aa", LONG_AGO), put(cache, "bb", LONG_AGO)
    with cache.locked("cc"):  # its build is being made
        os.utime(tmp_path / "cc/cc.lock", (LONG_AGO, LONG_AGO))
        with cache.locked("bb"):
            os.utime(held, (LONG_AGO, LONG_AGO))
            cache.made()
        assert not old.exists()
        assert held.exists()
        assert (tmp_path / "cc/cc.lock").exists()


def test_what_a_killed_process_left_goes(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    for name in ("build-left", "built-left", "build-now"):
        (tmp_path / name).mkdir()
    for name in ("build-left", "built-left"):
        os.utime(tmp_path / name, (LONG_AGO, LONG_AGO))
    cache.made()
    assert [path.name for path in tmp_path.iterdir()] == ["build-now"]


def test_a_lock_that_was_pruned_while_it_was_waited_for_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, lock = BuildCache(tmp_path), build_cache.fcntl.flock
    opened: list[int] = []

    def flock(file: object, operation: int) -> None:
        opened.append(operation)
        if len(opened) == 1:
            (tmp_path / "aa/aa.lock").unlink()
        lock(file, operation)  # type: ignore[arg-type]

    monkeypatch.setattr(build_cache.fcntl, "flock", flock)
    with cache.locked("aa"):
        assert len(opened) == 2
        assert (tmp_path / "aa/aa.lock").exists()


def test_a_builder_prunes_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BuildCache.__init__, "__kwdefaults__", {"most_bytes": 0, "look_every": 1, "in_use_seconds": 0})
    builder = Builder(CpuToolchain(), Sandbox(), tmp_path, "x86-64")
    for number in range(3):
        assert builder.build(f'extern "C" int run() {{ return {number}; }}', "").report.ok
    assert len([*tmp_path.glob("??/*/record.json")]) <= 1
