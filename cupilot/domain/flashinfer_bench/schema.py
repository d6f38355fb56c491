"""The schema's records, as flashinfer-bench 0.1 and SOL-ExecBench write them (https://github.com/flashinfer-ai/flashinfer-bench).

Lenient about fields that it does not know; what cannot be judged is refused where a record is turned into a problem.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from cupilot.domain.errors import InvalidInput


class InvalidRecord(InvalidInput):
    """A file is no definition, workload or solution of the schema, or one that cannot be judged here."""

    code = "invalid_flashinfer_bench"


class Record(BaseModel):
    """Base of the records: frozen, with unknown fields kept, so that what is written again is complete."""

    model_config = ConfigDict(frozen=True, extra="allow", ser_json_inf_nan="strings")


class ConstAxis(Record):
    """An axis of one size."""

    type: Literal["const"]
    value: int = Field(ge=0)


class VarAxis(Record):
    """An axis whose size each workload gives."""

    type: Literal["var"]


class ExprAxis(Record):
    """An axis whose size follows from others."""

    type: Literal["expr"]
    expression: str


Axis = Annotated[ConstAxis | VarAxis | ExprAxis, Field(discriminator="type")]


class Tensor(Record):
    """An input or output; a scalar where ``shape`` is null."""

    shape: tuple[str, ...] | None
    """Names of axes, or numbers."""
    dtype: str


class Definition(Record):
    """A computation: axes, inputs, outputs, and a reference with a function ``run``."""

    name: str = Field(min_length=1)
    op_type: str = ""
    axes: dict[str, Axis]
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    reference: str = Field(min_length=1)
    description: str | None = None
    custom_inputs_entrypoint: str | None = None


class Input(Record):
    """Source of a workload's input."""

    type: Literal["random", "scalar", "safetensors", "custom"]
    value: int | float | bool | None = None
    """Of a scalar."""


class Workload(Record):
    """Sizes of the variable axes, and where the inputs come from."""

    uuid: str = Field(min_length=1)
    axes: dict[str, int]
    inputs: dict[str, Input]
    weight: float = Field(default=1.0, gt=0)
    """Its share in the mean speedup; ours, the schema has none."""


class SourceFile(Record):
    """One file of a solution."""

    path: str
    content: str


class BuildSpec(Record):
    """Build and call options of a solution."""

    language: str
    target_hardware: tuple[str, ...] = ()
    entry_point: str = Field(pattern=r"^[^:]+::\w+$")
    """``file::function``."""
    destination_passing_style: bool = True
    binding: str | None = None


class Solution(Record):
    """An implementation of a definition."""

    name: str
    definition: str
    author: str
    spec: BuildSpec
    sources: tuple[SourceFile, ...] = Field(min_length=1)
    description: str | None = None


R = TypeVar("R", bound=Record)


def read(kind: type[R], text: str, where: str) -> R:
    """Return the record that a JSON text is; raises :class:`InvalidRecord`, which names the field."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        message = f"{where} is no {kind.__name__.lower()} of flashinfer-bench: {at + ': ' if at else ''}{first['msg']}"
        raise InvalidRecord(message, where=where) from error


def read_workloads(text: str, where: str) -> tuple[Workload, ...]:
    """Return the workloads of a JSONL text: workloads themselves, or traces with one each, as the data sets have."""
    workloads = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        workloads.append(read(Workload, _inner(line), f"{where}:{number}"))
    if not workloads:
        raise InvalidRecord(f"{where} has no workload", hint="one JSON object a line", where=where)
    return tuple(workloads)


def _inner(line: str) -> str:
    """Return the workload of a line that is a trace, else the line."""
    try:
        record: Any = json.loads(line)
    except ValueError:
        return line
    return json.dumps(record["workload"]) if isinstance(record, dict) and "workload" in record else line


def lines(records: Iterable[dict[str, Any]]) -> str:
    """Return JSONL; numbers that JSON does not have as the texts that the schema has for them."""
    return "".join(to_json(record, inf_nan_mode="strings").decode() + "\n" for record in records)
