"""Measure the kernel of this folder again, and compare with what was recorded. Standard library only.

Runs ``python -m gpu_worker confirm``: fresh processes, fresh inputs, both baselines. Exit codes: 0 the kernel still
counts and its speedup agrees, 1 the speedup differs, 2 the kernel does not count here, 3 it could not be measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
AGREES = 0.05
"""Medians this close (relative) agree, though their intervals do not touch: drivers move times by this."""
NEEDED = f"""not measured: this needs cuPilot's judge, the module gpu_worker, which {sys.executable} does not have
  next: in a checkout of cuPilot run  make install  and then  .venv/bin/python {HERE / "reproduce.py"}"""
COUNTS = ("audited", "reproduced")


def main() -> int:
    """Measure the kernel, compare with the record, and print the outcome."""
    options = _options()
    if importlib.util.find_spec("gpu_worker") is None:
        print(NEEDED)
        return 3
    recorded = _read("evaluation.json")
    measured = measure(recorded, options)
    if measured is None:
        return 3
    for line in differences(recorded["environment"] or {}, measured["environment"] or {}):
        print(line)
    return verdict(recorded, measured)


def measure(recorded: dict[str, Any], options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the evaluation that this machine gives; None where it cannot."""
    facts = _read("preparation.json")["facts"]
    target = "cuda" if (HERE / "kernel.cu").exists() else "cpu"
    source = "kernel.cu" if target == "cuda" else "kernel.cpp"
    command = [sys.executable, "-m", "gpu_worker", "confirm", "--json", "--target", target]
    command += ["--problem", "problem.py", "--kernel", source, "--plan", "plan.json", "--policy", facts["policy"]]
    command += ["--timeout", str(options.timeout)]
    if ((recorded["build"] or {}).get("compiler") or "").startswith("nvcc"):
        command += ["--builder", "nvcc"]
    threads = (recorded["environment"] or {}).get("threads")
    if options.device:
        command += ["--device", options.device]
    if options.threads or (threads and options.same_threads):
        command += ["--threads", str(options.threads or threads)]
    done = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        answer = {}
    if "verdict" not in answer:
        print(f"not measured: {answer.get('failure') or f'gpu_worker ended with {done.returncode}'}")
        return None
    return answer


def differences(recorded: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Return in what this machine differs from the one on which it was measured."""
    lines = []
    pairs: list[tuple[str, Any, Any]] = [("device", _device(recorded), _device(here))]
    pairs += [(name, recorded.get(name), here.get(name)) for name in ("driver", "cuda", "torch", "compiler", "threads")]
    for name, then, now in pairs:
        if then != now:
            lines.append(f"{name} differs: recorded on {then}, this is {now}")
    return lines or ["device, driver and versions are those of the record"]


def verdict(recorded: dict[str, Any], measured: dict[str, Any]) -> int:
    """Print what became of verdict and speedups; the exit code."""
    print(f"verdict: recorded {recorded['verdict']}, here {measured['verdict']}")
    if measured["verdict"] not in COUNTS:
        failure = measured.get("failure") or {}
        print(f"the kernel does not count here: {failure.get('kind')}: {failure.get('message')}")
        return 2
    agreed = True
    here = {item["baseline"]: item["speedup"] for item in measured["comparisons"]}
    for item in recorded["comparisons"]:
        then, now = item["speedup"], here.get(item["baseline"])
        if now is None:
            print(f"speedup over {item['baseline']}: not measured here")
            continue
        close = agree(then, now)
        words = "agrees" if close else "differs"
        print(f"speedup over {item['baseline']}: recorded {_interval(then)}, here {_interval(now)}: {words}")
        agreed = agreed and close
    return 0 if agreed else 1


def agree(then: dict[str, float], now: dict[str, float]) -> bool:
    """Return whether two speedups are the same as far as can be told."""
    touch = then["low"] <= now["high"] and now["low"] <= then["high"]
    return touch or abs(now["median"] / then["median"] - 1) <= AGREES


def _interval(value: dict[str, float]) -> str:
    return f"{value['median']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"


def _device(environment: dict[str, Any]) -> str:
    device = environment.get("device") or {}
    return f"{device.get('name')} ({device.get('arch')})"


def _read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((HERE / name).read_text(encoding="utf-8"))
    return document


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure this kernel again and compare with the record.")
    parser.add_argument("--device", help="GPU UUID or index; the first by default")
    parser.add_argument("--threads", type=int, help="of a CPU kernel; all cores by default")
    parser.add_argument("--same-threads", action="store_true", help="as many threads as in the record")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for each of the two steps")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
