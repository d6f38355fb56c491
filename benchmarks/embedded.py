"""An embedded stack of a script's own, whose agents use the model that the script serves, driven by what users type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Environment = Mapping[str, str]


def environment(folder: Path, model: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of commands and stack: data below ``folder``, one model for every role.

    No other setting of ours is in it.
    """
    models = folder / "models.json"
    models.write_text(json.dumps({"default": [model]}))
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("CUPILOT_")},
        "CUPILOT_DATA": str(folder / "stack"),
        "CUPILOT_LLM_MODELS_FILE": str(models),
    }


@contextmanager
def running(within: Environment) -> Iterator[None]:
    """Start the stack, and stop it at the end."""
    cupilot(within, "up", "--detach", check=True)
    try:
        yield
    finally:
        cupilot(within, "down", check=True)


def cupilot(within: Environment, *words: str, check: bool = False, shown: bool = False) -> str:
    """Run a command and return what it prints, errors included.

    With ``shown`` it is also written to standard error as it comes, for long commands.
    """
    argv = [str(Path(sys.executable).with_name("cupilot")), *words]
    lines: list[str] = []
    with subprocess.Popen(argv, env=within, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if shown:
                print(line, end="", file=sys.stderr, flush=True)
    printed = "".join(lines).strip()
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, argv, printed)
    return printed
