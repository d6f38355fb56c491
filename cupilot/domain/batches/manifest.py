"""The manifest of a batch: its steps, each with one question to the judge, and the terms they were exported on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from cupilot.domain.problem import Target
from cupilot.domain.states import StepKind
from cupilot.domain.value import Value, Vocabulary

MAX_STEPS = 2_000
"""Steps of a batch at most: some hours of one card."""
MAX_TIMEOUT = 86_400.0
VERSION = 2
"""Newest version of the format that this program reads. 1 has no questions that are ``fresh``."""

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Operation(Vocabulary):
    """Kind of question to the judge."""

    PREPARE = "prepare"
    TRACE = "trace"
    EVALUATE = "evaluate"
    CONFIRM = "confirm"


class Question(Value):
    """One call of the judge (:class:`gpu_worker.evaluator.Evaluator`); its large arguments are objects of the file."""

    operation: Operation
    problem: Hash
    """Object: a :class:`cupilot.domain.problem.Problem`."""
    problem_hash: Hash
    """Content hash of the problem."""
    preparation: Hash | None = None
    """Object: a :class:`cupilot.domain.evaluation.Preparation`, of ``evaluate`` and ``confirm``."""
    kernel: Hash | None = None
    """Object: the kernel, of ``evaluate`` and ``confirm``."""
    kernel_hash: Hash | None = None
    """Content hash of the kernel, under which its evaluation is kept."""
    imported: bool = False
    """True if the kernel is a :class:`cupilot.domain.imported.ImportedKernel`."""
    incumbent: float | None = None
    candidate: bool = True
    fresh: bool = False
    """True if an evaluation must be measured and not recalled."""
    tunables: dict[str, int] = {}
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT)]
    """Seconds."""

    @model_validator(mode="after")
    def _whole(self) -> Question:
        needs_kernel = self.operation in (Operation.EVALUATE, Operation.CONFIRM)
        parts = (self.preparation, self.kernel, self.kernel_hash)
        if any((part is not None) is not needs_kernel for part in parts):
            raise ValueError("a preparation and a kernel belong to evaluate and confirm, and to nothing else")
        return self

    @model_serializer(mode="wrap")
    def _as_in_version_1(self, serialised: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave ``fresh`` out where it is not wanted, so that hashes of entries are those of version 1."""
        data: dict[str, Any] = serialised(self)
        return data if self.fresh else {name: value for name, value in data.items() if name != "fresh"}

    def objects(self) -> Iterator[str]:
        """Yield the hashes of the objects that the question needs."""
        yield from (name for name in (self.problem, self.preparation, self.kernel) if name is not None)

    def same_subject(self, other: Question) -> bool:
        """Return whether both ask the same of the same objects; incumbent and timeout may have changed meanwhile."""
        terms = {"incumbent": None, "timeout": 1.0}
        return self.model_copy(update=terms) == other.model_copy(update=terms)


class BatchEntry(Value):
    """One step of a batch."""

    step: UUID
    job: UUID
    key: Annotated[str, Field(max_length=100)]
    """Name of the step within its job, e.g. ``c12/evaluate/1``."""
    kind: StepKind
    attempt: Annotated[int, Field(ge=1)]
    """The claim's fencing token: results count only while the step is running at this attempt."""
    avoids: Annotated[str | None, Field(max_length=200)] = None
    """Device that is to have the step only where the batch has no other one."""
    question: Question


class Manifest(Value):
    """A batch: where its steps may run, until when, and the steps themselves."""

    format: Literal["cupilot-batch"] = "cupilot-batch"
    version: Literal[1, 2] = 1
    batch: UUID
    target: Target
    device_class: Annotated[str, Field(max_length=64)]
    """The only class of devices that may judge it, e.g. ``sm_90``."""
    exported_at: datetime
    expires_at: datetime
    """End of the lease: results that come later are refused."""
    software: str
    """Version of the service that exported it."""
    sweep: int | None = None
    """Values of a kernel's tunables that may be tried; None for what suits the target."""
    compile_baseline: bool = True
    """True if confirmations compare with ``torch.compile``."""
    autotune: bool | None = None
    """True if confirmations compare with ``torch.compile max-autotune``; None for what suits the target."""
    steps: Annotated[tuple[BatchEntry, ...], Field(min_length=1, max_length=MAX_STEPS)]

    def objects(self) -> set[str]:
        """Return the hashes of all objects that the steps need."""
        return {name for entry in self.steps for name in entry.question.objects()}


def version_of(steps: Iterable[BatchEntry]) -> Literal[1, 2]:
    """Return the oldest version of the format that says all of these steps."""
    return 2 if any(entry.question.fresh for entry in steps) else 1
