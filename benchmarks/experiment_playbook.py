"""Runs the playbook's ablation on a service and keeps its report: ``python -m benchmarks.experiment_playbook``.

First jobs on related operators give the strategy pool something to remember, then the matrix of
``benchmarks/experiment_playbook.toml`` runs (``experiment_playbook_cuda.toml`` is for a GPU). Without ``--server`` the
embedded stack of ``--data`` is used, which must be up. The report is written as it stands where ``--minutes`` run out,
and says so.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cupilot.cli import matrix
from cupilot.cli.experiment_view import progress_line
from cupilot.cli.files import write_result
from cupilot.client import Client
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Budgets
from cupilot.domain.problem import Target
from cupilot.domain.problems import Size
from cupilot.schemas import ExperimentView, JobRequest, ProblemInput

MATRIX = Path(__file__).with_suffix(".toml")
TEACHERS = ("log_softmax", "rms_norm_rows")


def main() -> int:
    """Teach, run, keep; 0 when every job of the experiment is final."""
    options = _options()
    with Client(options.server, data=options.data) as client:
        request = matrix.request({**matrix.read(options.matrix), "target": options.target})
        jobs = [client.submit(_teacher(name, options.teach_size, request.target)) for name in options.teach]
        for job in jobs:
            done = client.wait(job.id)
            print(f"taught by {done.problem.name}: {done.state}, {done.verdicts}", flush=True)
        made = client.submit_experiment(request)
        final = _wait(client, made, options.minutes * 60)
        write_result(client.experiment_download(made.id), made.id, options.out)
        print(f"{progress_line(client.experiment(made.id))}; report in {options.out}")
    return 0 if final else 1


def _teacher(name: str, size: Size | None, target: Target) -> JobRequest:
    method = SceConfig(population=4, generations=1, elites=1, repair_rounds=1)
    return JobRequest(
        problem=ProblemInput(id=name, size=size), target=target, method=method, budgets=Budgets(candidates=6)
    )


def _wait(client: Client, experiment: ExperimentView, seconds: float) -> bool:
    said = ""

    def say(view: ExperimentView) -> None:
        nonlocal said
        if progress_line(view) != said:
            said = progress_line(view)
            print(said, flush=True)

    try:
        client.wait_for_experiment(experiment.id, say, timeout=seconds)
    except TimeoutError:
        return False
    return True


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.experiment_playbook", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--matrix", type=Path, default=MATRIX)
    parser.add_argument("--target", choices=[target.value for target in Target], default=Target.CPU.value)
    parser.add_argument("--teach", nargs="*", default=TEACHERS, help="built-in problems that jobs run on before")
    parser.add_argument("--teach-size", choices=["small", "full"], help="of those; by default what suits the target")
    parser.add_argument("--server", help="URL of a service; else the data folder's stack")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--minutes", type=float, default=24 * 60, help="keep the report as it stands after so long")
    parser.add_argument("--out", type=Path, required=True, help="folder for the report")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
