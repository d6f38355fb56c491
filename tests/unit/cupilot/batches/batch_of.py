"""A small batch and answers to it; nothing is judged."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cupilot.domain.batches.files import pack, sha256, sign, to_object
from cupilot.domain.batches.manifest import BatchEntry, Manifest, Operation, Question
from cupilot.domain.batches.results import BatchRecord, ResultHeader
from cupilot.domain.evaluation import Evaluation, Failure, FailureKind, Preparation, Verdict
from cupilot.domain.hardware import Device, Environment
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem, Target
from cupilot.domain.roofline import place
from cupilot.domain.states import StepKind
from tests.unit.cupilot.factories import facts, kernel, peaks

KEY = b"k" * 32
NOW = datetime.now(UTC)
DEVICE = Device(
    target=Target.CPU, uid="cpu-1", name="Test CPU", arch="x86-64-avx2", units=2, memory_bytes=2**33, cache_bytes=2**20
)


def problem(name: str = "relu") -> Problem:
    return Problem(name=name, source=f"# {name}\nclass Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n")


def preparation(of: Problem) -> Preparation:
    known = facts(problem_hash=of.content_hash())
    return Preparation.model_validate(
        {
            "facts": known,
            "placement": place(known, peaks()),
            "peaks": peaks(),
            "environment": Environment(device=DEVICE),
            "baseline_us": {"low": 9, "median": 10, "high": 11},
            "laws": ("own",),
            "tolerances": {"own": 1e-6},
            "admission": {},
        }
    )


def question(
    operation: Operation = Operation.EVALUATE, of: Problem | None = None, code: Kernel | None = None
) -> tuple[Question, dict[str, str]]:
    """A question, and the objects that it names."""
    of, code = of or problem(), code or kernel(target=Target.CPU)
    values = {"problem": to_object(of)}
    if operation in (Operation.EVALUATE, Operation.CONFIRM):
        values |= {"preparation": to_object(preparation(of)), "kernel": to_object(code)}
    asked = Question.model_validate(
        {
            "operation": operation,
            **{name: key for name, (key, _) in values.items()},
            "problem_hash": of.content_hash(),
            "kernel_hash": code.content_hash() if "kernel" in values else None,
            "timeout": 60.0,
        }
    )
    return asked, dict(values.values())


def entry(asked: Question, key: str = "c0/evaluate/0", avoids: str | None = None) -> BatchEntry:
    return BatchEntry(
        step=uuid.uuid4(),
        job=uuid.uuid4(),
        key=key,
        kind=StepKind.EVALUATE,
        attempt=1,
        avoids=avoids,
        question=asked,
    )


def manifest(*entries: BatchEntry) -> Manifest:
    return Manifest(
        batch=uuid.uuid4(),
        target=Target.CPU,
        device_class="cpu",
        exported_at=NOW,
        expires_at=NOW + timedelta(hours=1),
        software="test",
        steps=entries or (entry(question()[0]),),
    )


def batch_bytes(of: Manifest | None = None, objects: dict[str, str] | None = None) -> bytes:
    content = (of or manifest()).model_dump_json().encode()
    return pack(content, sign(KEY, content), question()[1] if objects is None else objects)


def batch_file(folder: Path, of: Manifest | None = None, objects: dict[str, str] | None = None) -> Path:
    path = folder / "some.batch"
    path.write_bytes(batch_bytes(of, objects))
    return path


def header_of(of: Manifest) -> ResultHeader:
    content = of.model_dump_json().encode()
    return ResultHeader(batch=of.batch, manifest=sha256(content), signature=sign(KEY, content))


def answer(to: BatchEntry, **changes: object) -> BatchRecord:
    """A kernel that did not compile."""
    evaluation = Evaluation(
        kernel_hash=to.question.kernel_hash or "",
        problem_hash=to.question.problem_hash,
        verdict=Verdict.REJECTED,
        failure=Failure(kind=FailureKind.COMPILE_ERROR, message="expected ;"),
    )
    fields = {
        "step": to.step,
        "attempt": to.attempt,
        "entry": to.content_hash(),
        "evaluation": evaluation,
        "seconds": 1.5,
        "device": DEVICE,
    }
    return BatchRecord.model_validate({**fields, **changes})
