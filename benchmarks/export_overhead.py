"""Measure an exported operator's host time: ``python -m benchmarks.export_overhead --against FOLDER``.

The same small kernel is exported by this checkout and by the one in FOLDER. Both packages are imported into one
process, and they and PyTorch's eager reference are called in turns, in an order that is drawn anew each round; a
round's number is its quickest call, since machines are busy with other things, too. The tensors of the CPU case are so
small that nearly all of the time is the host's. ``--target cuda`` does it on a GPU, where a call is timed until it
returns, not until the kernel has ended. Prints the record, and the profile of a thousand calls. Best with
OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import json
import math
import os
import pstats
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import records

ROOT = Path(__file__).resolve().parent.parent
_EXPORT = """
import sys
from pathlib import Path
from cupilot.exports import ExportFormat, files
from tests.unit.exports import cuda_cases, winners
target, name, folder = sys.argv[1:]
case = cuda_cases.CUDA_CASES["layer norm"] if target == "cuda" else winners.CPU_CASES["layer norm"]
text, kernel = case[0], case[1]() if callable(case[1]) else case[1]
for path, content in files(winners.winner(name, text, kernel), ExportFormat.TORCH).items():
    place = Path(folder, path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content.encode())
"""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, required=True, metavar="FOLDER", help="another checkout")
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=200, help="rounds of 20 calls of each; at least 2")
    parser.add_argument("--out", type=Path, help="the record as JSON")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: quartiles need at least 2")
    with tempfile.TemporaryDirectory(prefix="cupilot-exports-") as scratch, torch.no_grad():
        os.environ["XDG_CACHE_HOME"] = scratch
        torch.set_num_threads(1)
        here = _package(ROOT, options.target, "layer norm here", scratch)
        there = _package(options.against.resolve(), options.target, "layer norm there", scratch)
        device = torch.device(options.target)
        wanted = here.reference.get_init_inputs()
        models = {"eager": here.reference.Model, "there": there.Model, "here": here.Model}
        arguments = [tensor.to(device) for tensor in here.reference.get_inputs()]
        calls = {name: _call(cls(*wanted).to(device), arguments) for name, cls in models.items()}
        for name in ("here", "there"):
            torch.testing.assert_close(calls[name](), calls["eager"](), rtol=1e-4, atol=1e-4)
        record = _record(_times(calls, options.rounds), [list(tensor.shape) for tensor in arguments], options.target)
        print(json.dumps(record, indent=1))
        if options.out:
            records.write(options.out, record)
        _profile(calls["here"])
    return 0


def _package(tree: Path, target: str, name: str, scratch: str) -> Any:
    folder = Path(scratch, name.replace(" ", "_"))
    environment = os.environ | {"PYTHONPATH": str(tree)}
    command = [sys.executable, "-P", "-c", _EXPORT, target, name, str(folder)]
    subprocess.run(command, cwd=tree, env=environment, check=True)
    sys.path.insert(0, str(folder))
    return importlib.import_module(f"cupilot_{name.replace(' ', '_')}")


def _call(model: torch.nn.Module, arguments: list[torch.Tensor]) -> Callable[[], Any]:
    return lambda: model(*arguments)


def _times(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return the microseconds of the quickest call of each round."""
    chance = random.Random(1)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 10):
        for name in chance.sample(sorted(calls), len(calls)):
            call = calls[name]
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            quickest = math.inf
            for _ in range(20):
                started = time.perf_counter()
                call()
                quickest = min(quickest, time.perf_counter() - started)
            if number >= 10:
                times[name].append(quickest * 1e6)
    return times


def _record(times: dict[str, list[float]], shapes: list[list[int]], target: str) -> dict[str, Any]:
    """Return first quartile, median and third quartile of all rounds: microseconds a call, and ratios of rounds."""
    device = f", {torch.cuda.get_device_name()}" if target == "cuda" else ""
    record = records.stamp()
    record["machine"] += f"{device}, torch {torch.__version__}"
    record["what"] = f"layer norm of {shapes}, {target}"
    record["microseconds_a_call"] = {name: statistics.quantiles(values, n=4) for name, values in times.items()}
    for over in ("there", "eager"):
        ratios = [other / mine for other, mine in zip(times[over], times["here"], strict=True)]
        record[f"{over}_over_here"] = statistics.quantiles(ratios, n=4)
    return record


def _profile(call: Callable[[], Any]) -> None:
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(1_000):
        call()
    profile.disable()
    print("\n```")
    pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(12)
    print("```")


if __name__ == "__main__":
    sys.exit(main())
