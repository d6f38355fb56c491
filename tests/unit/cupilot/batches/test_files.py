"""The file of a batch: what was packed comes out, and nothing else does."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cupilot.domain.batches import files
from cupilot.domain.batches.errors import InvalidBatchFile
from cupilot.domain.batches.files import BatchFile, pack, sign
from cupilot.domain.batches.manifest import VERSION, Operation, version_of
from tests.unit.cupilot.batches.batch_of import KEY, batch_bytes, batch_file, entry, manifest, problem, question

Contents = dict[str, bytes]


def opened(path: Path) -> None:
    """Open a batch and read all of it."""
    with BatchFile(path) as batch:
        batch.check()


def repacked(content: bytes, change: Callable[[Contents], None]) -> bytes:
    """A batch whose entries were changed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()


def test_a_batch_comes_out_as_it_was_packed(tmp_path: Path) -> None:
    asked, objects = question()
    of = manifest(entry(asked))
    with BatchFile(batch_file(tmp_path, of, objects)) as batch:
        batch.check()
        assert batch.manifest == of
        assert batch.signature == sign(KEY, of.model_dump_json().encode())
        subject = batch.subject(asked)
        assert subject.problem == problem()
        assert subject.kernel is not None
        assert subject.kernel.content_hash() == asked.kernel_hash
    assert batch_bytes(of, objects) == batch_bytes(of, objects)


def test_objects_that_steps_share_are_packed_once(tmp_path: Path) -> None:
    asked, objects = question()
    other, further = question(Operation.PREPARE)
    path = batch_file(tmp_path, manifest(entry(asked), entry(asked), entry(other)), objects | further)
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) == 2 + 3
    opened(path)


def drop_an_object(entries: Contents) -> None:
    del entries[next(name for name in entries if name.startswith("objects/"))]


def change_an_object(entries: Contents) -> None:
    name = next(name for name in entries if b"not compiled" in entries[name])
    entries[name] = entries[name].replace(b"not compiled", b"so compiled!")


def name_another_kernel(entries: Contents) -> None:
    data = json.loads(entries["manifest.json"])
    data["steps"][0]["question"]["kernel_hash"] = "0" * 64
    entries["manifest.json"] = json.dumps(data).encode()


def swap_the_problem(entries: Contents) -> None:
    data = json.loads(entries["manifest.json"])
    data["steps"][0]["question"]["problem_hash"] = "0" * 64
    entries["manifest.json"] = json.dumps(data).encode()


def forget_the_kernel(entries: Contents) -> None:
    data = json.loads(entries["manifest.json"])
    data["steps"][0]["question"]["kernel"] = None
    entries["manifest.json"] = json.dumps(data).encode()


def leave_no_manifest(entries: Contents) -> None:
    del entries["manifest.json"]


def write_no_json(entries: Contents) -> None:
    entries["manifest.json"] = b"[" * 100_000


def come_from_the_future(entries: Contents) -> None:
    data = json.loads(entries["manifest.json"])
    entries["manifest.json"] = json.dumps(data | {"version": VERSION + 1}).encode()


def test_a_batch_is_of_version_2_only_where_a_question_says_more_than_version_1_could(tmp_path: Path) -> None:
    asked, objects = question()
    old, fresh = entry(asked), entry(asked.model_copy(update={"fresh": True}))
    assert (version_of([old]), version_of([old, fresh])) == (1, 2)
    assert "fresh" not in old.model_dump_json()
    assert old.content_hash() != old.model_copy(update={"question": fresh.question}).content_hash()
    whole = manifest(old, fresh).model_copy(update={"version": 2})
    with BatchFile(batch_file(tmp_path, whole, objects)) as batch:
        assert [item.question.fresh for item in batch.manifest.steps] == [False, True]
        assert [item.content_hash() for item in batch.manifest.steps] == [old.content_hash(), fresh.content_hash()]


@pytest.mark.parametrize(
    "change",
    [
        drop_an_object,
        change_an_object,
        name_another_kernel,
        swap_the_problem,
        forget_the_kernel,
        leave_no_manifest,
        write_no_json,
        come_from_the_future,
    ],
)
def test_a_changed_batch_is_refused(tmp_path: Path, change: Callable[[Contents], None]) -> None:
    path = tmp_path / "changed.batch"
    path.write_bytes(repacked(batch_bytes(), change))
    with pytest.raises(InvalidBatchFile):
        opened(path)


def test_an_entry_that_unpacks_to_more_than_it_may_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = batch_file(tmp_path)
    monkeypatch.setattr(files, "MAX_OBJECT_BYTES", 100)
    with pytest.raises(InvalidBatchFile, match="too large"):
        opened(path)
    monkeypatch.setattr(files, "MAX_BYTES", 1_000)
    with pytest.raises(InvalidBatchFile, match="larger than"):
        opened(path)


def test_what_is_no_zip_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"PK\x03\x04", b"{}", bytes(1_000)):
        path = tmp_path / "no.batch"
        path.write_bytes(content)
        with pytest.raises(InvalidBatchFile):
            opened(path)
    with pytest.raises(InvalidBatchFile):
        opened(tmp_path / "missing.batch")


def test_a_damaged_file_is_refused_or_read_as_it_was(tmp_path: Path) -> None:
    """Bytes are changed, left out and cut off at random: what then still opens has lost nothing."""
    whole, chance = batch_bytes(), random.Random(7)
    path = tmp_path / "damaged.batch"
    refused = 0
    for _ in range(400):
        content = bytearray(whole)
        kind, place = chance.randrange(3), chance.randrange(len(whole))
        if kind == 0:
            content[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del content[place : place + chance.randrange(1, 40)]
        else:
            del content[place:]
        path.write_bytes(bytes(content))
        try:
            opened(path)
        except InvalidBatchFile:
            refused += 1
    assert refused > 200


def test_a_signature_depends_on_key_and_manifest() -> None:
    signatures = {sign(key, content) for key in (b"a", b"b") for content in (b"x", b"y")}
    assert len(signatures) == 4
    assert pack(b"{}", "s", {}) == pack(b"{}", "s", {})
