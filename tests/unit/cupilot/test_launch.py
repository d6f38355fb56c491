"""A role's start: imports first, then the gate, then the module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cupilot.embedded import launch


def test_garbage_is_collected_once_the_imports_are_done(tmp_path: Path) -> None:
    (tmp_path / "role.py").write_text("import gc, sys\nprint(__name__, gc.isenabled(), *sys.argv[1:])\n")
    done = subprocess.run(
        [sys.executable, launch.__file__, "role", "role", "argument"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["role False role role argument", "__main__ True argument"]
