"""Commands to read and write the files of flashinfer-bench: definitions, workloads, solutions and traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from cupilot.cli.options import Json, OnlyJson
from cupilot.domain.errors import InvalidInput
from cupilot.domain.evaluation import Evaluation
from cupilot.domain.flashinfer_bench import reading, writing
from cupilot.domain.flashinfer_bench.schema import Definition, Solution, Workload, lines, read, read_workloads

MAX_BYTES = 16 * 2**20
"""Larger than any file of the schema without tensors."""

app = typer.Typer(
    help="Read and write files of flashinfer-bench.",
    no_args_is_help=True,
)

DefinitionFile = Annotated[Path, typer.Argument(metavar="DEFINITION.json", help="What is to be computed.")]
WorkloadsFile = Annotated[Path, typer.Argument(metavar="WORKLOADS.jsonl", help="A workload, or a trace, a line.")]
OutFile = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Else the standard output.")]


@app.command()
def problem(
    definition: DefinitionFile, workloads: WorkloadsFile, *, out: OutFile = None, as_json: Json = False
) -> None:
    """Write a definition and its workloads as a problem file. Every command takes it.

    \b
    Example:
        cupilot flashinfer problem rmsnorm_h4096.json rmsnorm_h4096.jsonl -o rmsnorm.py
        cupilot evolve rmsnorm.py --policy half --agents llm
    """
    described = _definition(definition)
    policy = reading.policy_of(described).value
    source = reading.problem_source(described, _workloads(workloads))
    _write(json.dumps({"source": source, "policy": policy}, indent=2) + "\n" if as_json else source, out)
    if not as_json:
        typer.echo(f"its element types ask for --policy {policy}", err=True)


@app.command()
def kernel(
    definition: DefinitionFile,
    solution: Annotated[Path, typer.Argument(metavar="SOLUTION.json", help="An implementation of the definition.")],
    *,
    out: OutFile = None,
    as_json: Json = False,
) -> None:
    """Write a solution as a file that can be judged. A ModelNew file, or a torch extension.

    \b
    Example:
        cupilot flashinfer kernel rmsnorm_h4096.json their_solution.json -o theirs.py
        cupilot judge rmsnorm.py theirs.py --policy half
    """
    implementation = read(Solution, _text(solution), str(solution))
    source = reading.modelnew_source(_definition(definition), implementation)
    _write(json.dumps({"source": source}, indent=2) + "\n" if as_json else source, out)


@app.command()
def solution(
    definition: DefinitionFile,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A ModelNew file, such as an export for KernelBench.")],
    *,
    name: Annotated[str, typer.Option("--name", help="The solution's name.")],
    hardware: Annotated[
        list[str] | None, typer.Option("--hardware", metavar="NAME", help="What it was proven on; repeat [cuda].")
    ] = None,
    out: OutFile = None,
    as_json: OnlyJson = False,  # noqa: ARG001
) -> None:
    """Write a file with ModelNew as a solution.

    \b
    Example:
        cupilot export last --format kernelbench -o proven
        cupilot flashinfer solution rmsnorm_h4096.json proven/rmsnorm_modelnew.py --name rmsnorm_cupilot
    """
    made = writing.solution(_definition(definition), name, _text(file), target_hardware=tuple(hardware or ["cuda"]))
    _write(made.model_dump_json(indent=2, exclude_none=True) + "\n", out)


@app.command()
def traces(
    definition: DefinitionFile,
    workloads: WorkloadsFile,
    evaluation: Annotated[
        Path, typer.Argument(metavar="EVALUATION.json", help="Output of `python -m gpu_worker judge --json`.")
    ],
    *,
    solution: Annotated[str, typer.Option("--solution", metavar="NAME", help="Name of the solution that was judged.")],
    out: OutFile = None,
    as_json: OnlyJson = False,  # noqa: ARG001
) -> None:
    """Write an evaluation as traces. One JSON object a line, for each workload that was judged.

    \b
    Example:
        cupilot flashinfer traces rmsnorm_h4096.json rmsnorm_h4096.jsonl evaluation.json --solution theirs
    """
    try:
        judged = Evaluation.model_validate_json(_text(evaluation))
    except ValidationError as error:
        raise InvalidInput(f"{evaluation} is no evaluation: {error.errors()[0]['msg']}", where="EVALUATION") from error
    made = writing.traces(_definition(definition), _workloads(workloads), solution, judged)
    _write(lines(made), out)


def _definition(path: Path) -> Definition:
    return read(Definition, _text(path), str(path))


def _workloads(path: Path) -> tuple[Workload, ...]:
    return read_workloads(_text(path), str(path))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text", where=str(path)) from error
    if len(data) > MAX_BYTES:
        raise InvalidInput(f"{path} is larger than {MAX_BYTES} bytes", where=str(path))
    return text


def _write(text: str, out: Path | None) -> None:
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{out} cannot be written: {error.strerror}", where="--out") from error
