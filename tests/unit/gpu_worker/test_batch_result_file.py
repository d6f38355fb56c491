"""The result file on disk: what a killed run leaves is taken up, what is not ours is not touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from cupilot.domain.batches.errors import InvalidResultFile
from cupilot.domain.batches.files import BatchFile
from cupilot.domain.batches.manifest import Manifest
from cupilot.domain.batches.results import MAX_LINE_BYTES, read_header, read_record
from cupilot.domain.evaluation import Failure, FailureKind
from gpu_worker.batch.result_file import ResultFile, ResultInUse
from tests.unit.cupilot.batches.batch_of import answer, batch_file, entry, manifest, question


@pytest.fixture
def of() -> Manifest:
    asked, _ = question()
    return manifest(*(entry(asked) for _ in range(3)))


@pytest.fixture
def batch(of: Manifest, tmp_path: Path) -> BatchFile:
    return BatchFile(batch_file(tmp_path, of))


def filled(path: Path, batch: BatchFile, count: int = 2) -> bytes:
    with ResultFile(path, batch) as result:
        for step in batch.manifest.steps[:count]:
            result.add(answer(step))
    return path.read_bytes()


def test_each_record_is_a_whole_line_and_a_second_run_goes_on(batch: BatchFile, tmp_path: Path) -> None:
    path = tmp_path / "results"
    first = filled(path, batch)
    with ResultFile(path, batch) as result:
        assert result.done == {step.step for step in batch.manifest.steps[:2]}
        result.add(answer(batch.manifest.steps[2]))
    assert path.read_bytes().startswith(first)
    lines = path.read_text().split("\n")
    header = read_header(lines[0])
    assert [read_record(header, line).step for line in lines[1:-1]] == [step.step for step in batch.manifest.steps]


def test_wherever_a_run_died_only_its_last_line_is_lost(batch: BatchFile, tmp_path: Path) -> None:
    whole, path = filled(tmp_path / "whole", batch), tmp_path / "torn"
    for length in range(0, len(whole) + 1, 7):
        path.write_bytes(whole[:length])
        with ResultFile(path, batch) as result:
            assert len(result.done) == max(whole[:length].count(b"\n") - 1, 0)
            result.add(answer(batch.manifest.steps[2]))
        with ResultFile(path, batch) as result:
            assert batch.manifest.steps[2].step in result.done


def test_a_damaged_line_is_judged_again(batch: BatchFile, tmp_path: Path) -> None:
    path = tmp_path / "results"
    content = bytearray(filled(path, batch))
    content[content.find(b"\n") + 100] ^= 1
    path.write_bytes(bytes(content))
    with ResultFile(path, batch) as result:
        assert result.done == {batch.manifest.steps[1].step}


@pytest.mark.parametrize("content", [b"dear diary\n", b"no end", b"\xff\xfe\n", b"\n\n"])
def test_a_file_of_something_else_is_left_alone(batch: BatchFile, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "diary"
    path.write_bytes(content)
    with pytest.raises(InvalidResultFile):
        ResultFile(path, batch)
    assert path.read_bytes() == content


def test_results_of_another_batch_are_left_alone(batch: BatchFile, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    path = tmp_path / "results"
    content = filled(path, BatchFile(batch_file(other)), count=0)
    with pytest.raises(InvalidResultFile, match="another batch"):
        ResultFile(path, batch)
    assert path.read_bytes() == content


def test_one_run_at_a_time_adds_to_it(batch: BatchFile, tmp_path: Path) -> None:
    path = tmp_path / "results"
    with ResultFile(path, batch), pytest.raises(ResultInUse):
        ResultFile(path, batch)
    with ResultFile(path, batch):
        pass


def test_an_answer_that_is_too_large_is_the_machines_failure(batch: BatchFile, tmp_path: Path) -> None:
    path, step = tmp_path / "results", batch.manifest.steps[0]
    huge = Failure(kind=FailureKind.COMPILE_ERROR, message="", details={"log": "x" * MAX_LINE_BYTES})
    record = answer(step)
    assert record.evaluation is not None
    evaluation = record.evaluation.model_copy(update={"failure": huge})
    with ResultFile(path, batch) as result:
        written = result.add(record.model_copy(update={"evaluation": evaluation}))
    lines = path.read_text().split("\n")
    kept = read_record(read_header(lines[0]), lines[1])
    assert kept.failure is not None
    assert kept.failure.kind is FailureKind.INFRASTRUCTURE
    assert kept == written
