"""Control groups in a folder that stands for the system's: this checks what is written where."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_worker.sandbox import cgroup
from gpu_worker.sandbox.cgroup import ControlGroup, delegated


def tree(mount: Path, controllers: str) -> Path:
    """A delegated group with the worker's beneath it; the file that says so."""
    (mount / "service" / "worker").mkdir(parents=True)
    (mount / "service" / "cgroup.subtree_control").write_text(controllers)
    own = mount / "own"
    own.write_text("1:name=systemd:/elsewhere\n0::/service/worker\n")
    return own


@pytest.mark.parametrize("controllers", ["cpu memory pids", "memory pids"])
def test_groups_are_made_beside_the_worker_s(tmp_path: Path, controllers: str) -> None:
    assert delegated(tmp_path, tree(tmp_path, controllers)) == tmp_path / "service"


@pytest.mark.parametrize("controllers", ["", "memory", "cpu pids"])
def test_no_groups_without_both_controllers(tmp_path: Path, controllers: str) -> None:
    assert delegated(tmp_path, tree(tmp_path, controllers)) is None


def test_no_groups_without_version_2_or_outside_of_the_mount(tmp_path: Path) -> None:
    own = tmp_path / "own"
    for text in ("1:name=systemd:/elsewhere\n", "0::/\n", "0::/../..\n"):
        own.write_text(text)
        assert delegated(tmp_path, own) is None
    assert delegated(tmp_path, tmp_path / "missing") is None


def test_limits_and_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "_REMOVE_SECONDS", 0.0)
    group = ControlGroup(tmp_path, memory_bytes=2**30, threads=72)
    assert (group.folder / "memory.max").read_text() == str(2**30)
    assert (group.folder / "memory.swap.max").read_text() == "0"
    assert (group.folder / "pids.max").read_text() == "72"
    group.add(1234)
    assert (group.folder / "cgroup.procs").read_text() == "1234"
    assert not group.out_of_memory()
    (group.folder / "memory.events").write_text("oom 3\noom_kill 0\n")
    assert not group.out_of_memory()
    (group.folder / "memory.events").write_text("oom 3\noom_kill 1\n")
    assert group.out_of_memory()
    group.remove()
    assert (group.folder / "cgroup.kill").read_text() == "1"


def test_a_group_without_limits_has_none(tmp_path: Path) -> None:
    assert not list(ControlGroup(tmp_path, memory_bytes=None, threads=None).folder.iterdir())
