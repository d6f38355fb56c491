"""How long cuPilot takes to install from nothing and to come up: ``python -m benchmarks.startup [--install]``.

Prints Markdown with the machine named. The install is that of ``make install`` in a fresh clone with an empty home
folder; the stack is started in a fresh data folder, stopped, and started again. Nothing is kept. With ``--against
FOLDER``, another checkout, both start in turns on the same packages, and the ratio is printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.machine import machine
from cupilot import embedded
from cupilot.embedded import Progress

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--install", action="store_true", help="also install from nothing (downloads about 0.5 GB)")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="compare with the checkout in this folder")
    parser.add_argument("--runs", type=int, default=3, help="starts of a fresh stack; the median is printed")
    arguments = parser.parse_args()
    print(f"Machine: {machine()}\n")
    if arguments.against:
        _compare(arguments.against.resolve(), arguments.runs)
        return 0
    print("| what | seconds |")
    print("|---|---|")
    if arguments.install:
        _install()
    _stack(arguments.runs)
    return 0


def _install() -> None:
    with tempfile.TemporaryDirectory(prefix="cupilot-install-") as scratch:
        clone, home = Path(scratch, "clone"), Path(scratch, "home")
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        environment = os.environ | {"HOME": str(home)}
        environment.pop("VIRTUAL_ENV", None)
        seconds = _timed(["make", "--silent", "install"], clone, environment)
        print(f"| `make install` from nothing ({_size(clone / '.venv') / 1e9:.1f} GB) | {seconds:.1f} |")
        seconds = _timed(["make", "--silent", "install"], clone, environment)
        print(f"| `make install` again | {seconds:.2f} |")
        cold = [
            sys.executable.replace(sys.prefix, str(clone / ".venv")),
            "-P",
            "-m",
            "benchmarks.startup",
            "--runs",
            "1",
        ]
        first = subprocess.run(
            cold, cwd=clone, env=environment | {"PYTHONPATH": str(clone)}, capture_output=True, text=True, check=True
        )
        [line] = [line for line in first.stdout.splitlines() if line.startswith("| first start")]
        print(line.replace("first start", "first start right after the install (nothing byte-compiled)"))


def _stack(runs: int) -> None:
    firsts, agains, downs = [], [], []
    with tempfile.TemporaryDirectory(prefix="cupilot-stack-") as scratch:
        for number in range(runs):
            data = Path(scratch, str(number))
            firsts.append(_up(data))
            if number == 0:
                parts = {part.name: _memory(part.pid) for part in embedded.status(data).parts if part.pid}
            downs.append(_down(data))
            agains.append(_up(data))
            downs.append(_down(data))
    print(f"| first start of a stack, until every part is ready (median of {runs}) | {_median(firsts)} |")
    print(f"| start again | {_median(agains)} |")
    print(f"| stop | {_median(downs)} |")
    print(f"\nMemory (PSS) of the idle stack: {sum(parts.values()) / 1e6:.0f} MB: ", end="")
    print(", ".join(f"{name} {size / 1e6:.0f}" for name, size in parts.items()))


def _compare(other: Path, runs: int) -> None:
    """Each pair begins with the other one first every second time: what comes first warms the caches."""
    seconds: dict[Path, list[float]] = {ROOT: [], other: []}
    with tempfile.TemporaryDirectory(prefix="cupilot-stack-") as scratch:
        for number in range(runs + 1):
            for tree in (ROOT, other) if number % 2 else (other, ROOT):
                data = str(Path(scratch, f"{number}-{tree.name}"))
                command = [sys.executable, "-P", "-m", "cupilot.cli"]
                environment = os.environ | {"PYTHONPATH": str(tree)}
                taken = _timed([*command, "up", "--detach", "--target", "cpu", "--data", data], tree, environment)
                _timed([*command, "down", "--data", data], tree, environment)
                if number:  # the first pair writes bytecode
                    seconds[tree].append(taken)
    ratios = [mine / its for mine, its in zip(seconds[ROOT], seconds[other], strict=True)]
    print("| first start of a stack, seconds | here | there | here / there |")
    print("|---|---|---|---|")
    for number, (mine, its, ratio) in enumerate(zip(seconds[ROOT], seconds[other], ratios, strict=True), start=1):
        print(f"| pair {number} | {mine:.1f} | {its:.1f} | {ratio:.2f} |")
    print(f"| median | {_median(seconds[ROOT])} | {_median(seconds[other])} | {statistics.median(ratios):.2f} |")


def _up(data: Path) -> float:
    started = time.monotonic()
    embedded.up(data, foreground=False, on_progress=_ignore)
    return time.monotonic() - started


def _down(data: Path) -> float:
    started = time.monotonic()
    embedded.down(data)
    return time.monotonic() - started


def _ignore(progress: Progress) -> None:
    """Progress does not matter here."""


def _memory(pid: int) -> int:
    """Proportional set size of a process and its descendants, in bytes."""
    process = psutil.Process(pid)
    return sum(each.memory_full_info().pss for each in [process, *process.children(recursive=True)])


def _timed(argv: list[str], folder: Path, environment: dict[str, str]) -> float:
    started = time.monotonic()
    subprocess.run(argv, cwd=folder, env=environment, check=True, capture_output=True)
    return time.monotonic() - started


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def _median(seconds: list[float]) -> str:
    spread = f" ({min(seconds):.1f} to {max(seconds):.1f})" if len(seconds) > 1 else ""
    return f"{statistics.median(seconds):.1f}{spread}"


if __name__ == "__main__":
    sys.exit(main())
