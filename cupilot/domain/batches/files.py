"""The file of a batch: a zip of ``manifest.json``, its signature, and the objects of its steps by their hashes.

Signed by the service with a key that never leaves it (HMAC-SHA256 over the manifest). Whoever has no key can still tell
whether the content is whole: the manifest names the hash of every object. What is read is untrusted: each entry's name,
number and size are bounded, and nothing is unpacked to disk.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pydantic_core
from pydantic import ValidationError

from cupilot.domain.batches.errors import InvalidBatchFile
from cupilot.domain.batches.manifest import MAX_STEPS, VERSION, Manifest, Question
from cupilot.domain.evaluation import Preparation
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem
from cupilot.domain.value import Value

MAX_MANIFEST_BYTES = 8 * 2**20
MAX_OBJECT_BYTES = 8 * 2**20
"""A preparation holds the graph of its reference: some megabytes where that is large."""
KNOWN = 64
"""Objects that are kept once they were read."""
MAX_BYTES = 512 * 2**20
"""Of all that a batch holds, unpacked."""

_MANIFEST, _SIGNATURE, _FOLDER = "manifest.json", "signature", "objects/"
_WRITTEN = (1980, 1, 1, 0, 0, 0)
"""The same bytes for the same batch."""

ValueT = TypeVar("ValueT", bound=Value)


def sha256(content: bytes) -> str:
    """Return the SHA-256 of some bytes, in hex."""
    return hashlib.sha256(content).hexdigest()


def sign(key: bytes, manifest: bytes) -> str:
    """Return the signature of a manifest, in hex."""
    return hmac.new(key, manifest, hashlib.sha256).hexdigest()


def to_object(value: Value) -> tuple[str, str]:
    """Return a value as an object of a batch: its hash and its text."""
    text = value.model_dump_json()
    return sha256(text.encode()), text


def pack(manifest: bytes, signature: str, objects: Mapping[str, str]) -> bytes:
    """Return the file of a batch."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        contents = {_MANIFEST: manifest, _SIGNATURE: signature.encode()}
        contents |= {f"{_FOLDER}{name}": text.encode() for name, text in sorted(objects.items())}
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name, _WRITTEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return file.getvalue()


@dataclass(frozen=True)
class Subject:
    """The arguments of a question."""

    problem: Problem
    preparation: Preparation | None
    kernel: Kernel | ImportedKernel | None


class BatchFile:
    """An opened batch file; close it, or use it as a context manager."""

    def __init__(self, path: Path) -> None:
        """Read the manifest and check that everything it needs is there; raises :class:`InvalidBatchFile`."""
        self._name = path.name
        try:
            self._archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise InvalidBatchFile(f"{path} is no batch: {error}", where=str(path)) from error
        try:
            self._sizes = self._bounded()
            self._known: dict[tuple[str, type[Value]], Value] = {}
            """Objects that several steps share."""
            content = self._read(_MANIFEST, MAX_MANIFEST_BYTES)
            self.digest = sha256(content)
            """Hash of the manifest."""
            self.signature = self._read(_SIGNATURE, 1_000).decode("ascii", "replace").strip()
            self.manifest = self._manifest(content)
            missing = self.manifest.objects() - {name.removeprefix(_FOLDER) for name in self._sizes}
            if missing:
                raise self._invalid(f"{len(missing)} of its objects are missing")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> BatchFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._archive.close()

    def check(self) -> None:
        """Read every object; raises :class:`InvalidBatchFile` for the first that is not what the manifest says."""
        for entry in self.manifest.steps:
            self.subject(entry.question)

    def subject(self, question: Question) -> Subject:
        """Return the arguments of a question; raises :class:`InvalidBatchFile` where they are not what it names."""
        problem = self._shared(question.problem, Problem)
        if problem.content_hash() != question.problem_hash:
            raise self._invalid("a problem is not the one that its step names")
        preparation = self._shared(question.preparation, Preparation) if question.preparation else None
        kernel = self._kernel(question) if question.kernel else None
        return Subject(problem, preparation, kernel)

    def _kernel(self, question: Question) -> Kernel | ImportedKernel:
        assert question.kernel is not None
        kernel: Kernel | ImportedKernel
        if question.imported:
            kernel = self._object(question.kernel, ImportedKernel)
        else:
            kernel = self._object(question.kernel, Kernel)
        if kernel.content_hash() != question.kernel_hash:
            raise self._invalid("a kernel is not the one that its step names")
        return kernel

    def _shared(self, name: str, kind: type[ValueT]) -> ValueT:
        if (name, kind) not in self._known:
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[name, kind] = self._object(name, kind)
        known = self._known[name, kind]
        assert isinstance(known, kind)
        return known

    def _object(self, name: str, kind: type[ValueT]) -> ValueT:
        content = self._read(_FOLDER + name, MAX_OBJECT_BYTES)
        if sha256(content) != name:
            raise self._invalid(f"object {name[:12]} was changed")
        try:
            return kind.model_validate_json(content)
        except ValidationError as error:
            raise self._invalid(f"object {name[:12]} is no {kind.__name__}: {_first(error)}") from error

    def _bounded(self) -> Mapping[str, int]:
        entries = self._archive.infolist()
        if len(entries) > 2 + 3 * MAX_STEPS:
            raise self._invalid("it holds too many entries")
        sizes = {entry.filename: entry.file_size for entry in entries}
        if len(sizes) != len(entries):
            raise self._invalid("it holds an entry twice")
        if sum(sizes.values()) > MAX_BYTES:
            raise self._invalid(f"it is larger than {MAX_BYTES // 2**20} MiB")
        return sizes

    def _read(self, name: str, limit: int) -> bytes:
        if self._sizes.get(name, limit + 1) > limit:
            raise self._invalid(f"{name[:80]} is missing or too large")
        try:
            with self._archive.open(name) as entry:
                content = entry.read(limit + 1)
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, NotImplementedError) as error:
            raise self._invalid(f"{name[:80]} cannot be read: {error}") from error
        if len(content) > limit:
            raise self._invalid(f"{name[:80]} is too large")
        return content

    def _manifest(self, content: bytes) -> Manifest:
        try:
            data = pydantic_core.from_json(content, allow_inf_nan=False)
        except ValueError as error:
            raise self._invalid(f"the manifest is no JSON: {error}") from error
        version = data.get("version") if isinstance(data, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise self._invalid(f"its format is version {version}, which is newer than this program", "update cupilot")
        try:
            return Manifest.model_validate_json(content)
        except ValidationError as error:
            raise self._invalid(f"its manifest is not valid: {_first(error)}") from error

    def _invalid(self, reason: str, hint: str = "export it again, or copy it again") -> InvalidBatchFile:
        return InvalidBatchFile(f"{self._name} is no whole batch: {reason}", hint=hint, where=self._name)


def _first(error: ValidationError) -> str:
    mistake = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in mistake['loc'])}: {mistake['msg']}"[:300]
