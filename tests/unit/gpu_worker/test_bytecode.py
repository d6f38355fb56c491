"""Which installations of torch judges need bytecode of their own for."""

from __future__ import annotations

import compileall
import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

from gpu_worker.bytecode import Bytecode


@pytest.mark.parametrize(
    ("compiled", "needed"),
    [
        ([], True),
        (["__init__.py", "fx/graph.py"], True),
        (["__init__.py", "fx/graph.py", "_inductor/codegen/cpp.py"], False),
    ],
    ids=["nothing", "what import torch compiles", "all"],
)
def test_a_copy_is_kept_where_torch_is_not_compiled_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str], needed: bool
) -> None:
    package = tmp_path / "torch"
    for name in ("__init__.py", "fx/graph.py", "_inductor/codegen/cpp.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("")
    for name in compiled:
        assert compileall.compile_file(package / name, quiet=1)
    found = importlib.machinery.ModuleSpec("torch", None, origin=str(package / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: found)
    bytecode = Bytecode(tmp_path / "work")
    assert (bytecode.needed, bool(bytecode.flags())) == (needed, needed)
