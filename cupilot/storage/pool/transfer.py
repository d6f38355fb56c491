"""Export and import entries as lines of JSON. A line that is no entry is reported, and stops no other.

An imported entry is a claim: it is marked with where it came from, keeps its age, and never counts as measured here.
A kernel stands in the first line of an export that names it, whole; an import takes it only where its hash is what the
entry says. Sources leave only for those who have them: what the team measured itself, or was given with its source.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any

from pydantic import ValidationError
from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from cupilot.domain.imported import KernelKind
from cupilot.domain.kernel import MAX_SOURCE_BYTES, Kernel
from cupilot.domain.pool import PoolEntry, Provenance, Sharing
from cupilot.domain.value import in_utc
from cupilot.storage.db.scope import scoped
from cupilot.storage.db.tables.jobs import KernelRow
from cupilot.storage.db.tables.pool import PoolRow
from cupilot.storage.jobs.evolving import store_kernel
from cupilot.storage.pool.references import ensure_reference, reference_of
from cupilot.storage.pool.rows import remember

FORMAT = 1
MAX_LINE_BYTES = 65_536
"""Of an entry without its kernel."""
MAX_KERNEL_BYTES = 2 * MAX_SOURCE_BYTES
"""Of a kernel as JSON; a larger one stays behind."""
MAX_SPEEDUP = 10_000.0
BATCH = 500
AHEAD = timedelta(days=1)
"""Largest lead of another machine's clock."""


Position = tuple[datetime, uuid.UUID]
"""Of the last entry that was read."""


@dataclass(frozen=True)
class InvalidLine:
    """A line that is no entry."""

    line: int
    reason: str


@dataclass(frozen=True)
class Imported:
    """Result of an import."""

    lines: int
    added: int
    known: int
    bad: tuple[InvalidLine, ...]


class _LineError(ValueError):
    """The line is no entry; the message says why."""


def exported(
    session: Session, team: uuid.UUID, after: Position | None, sent: set[str] | None = None
) -> tuple[list[str], Position | None]:
    """Return lines of the team's own entries beyond a position, oldest first; where to go on, or None at the end.

    ``sent`` are hashes of kernels that earlier lines held, to which those of these lines are added; None: no sources.
    """
    query = scoped(select(PoolRow), team).order_by(PoolRow.created_at, PoolRow.id).limit(BATCH)
    if after is not None:
        query = query.where(tuple_(PoolRow.created_at, PoolRow.id) > after)
    rows = session.scalars(query).all()
    entries = [row.body for row in rows]
    kernels = {} if sent is None else _kernels(session, entries, sent)
    # Each at the first entry that names it, and at no other.
    lines = [line_of(entry, kernels.pop(entry.kernel_hash or "", None)) + "\n" for entry in entries]
    return lines, (rows[-1].created_at, rows[-1].id) if len(rows) == BATCH else None


def line_of(entry: PoolEntry, kernel: dict[str, Any] | None = None) -> str:
    """Return an entry without its team, perhaps with its kernel."""
    data = {"format": FORMAT, "entry": entry.model_dump(mode="json", exclude={"team"})}
    return json.dumps(data | ({"kernel": kernel} if kernel else {}), sort_keys=True)


def _kernels(session: Session, entries: Sequence[PoolEntry], sent: set[str]) -> dict[str, dict[str, Any]]:
    """Return kernels of the entries by hash, as JSON, of those whose sources the team has and that were not sent yet.

    A hash alone proves nothing: whoever imports a claim may name any.
    """
    own = {entry.kernel_hash for entry in entries if _has_source(entry)} - sent
    rows = session.scalars(select(KernelRow).where(KernelRow.hash.in_(own), KernelRow.pruned_at.is_(None)))
    kernels = {
        row.hash: {"target": row.target.value, "source": row.source, "plan": row.plan.model_dump(mode="json")}
        for row in rows
        if row.plan is not None
    }
    sent |= kernels.keys()
    return {key: kernel for key, kernel in kernels.items() if _fits(kernel)}


def _has_source(entry: PoolEntry) -> bool:
    provenance = entry.provenance
    return provenance.kernel_kind is KernelKind.PLANNED and (entry.measured_here or provenance.with_kernel)


def _fits(kernel: dict[str, Any]) -> bool:
    return len(json.dumps(kernel).encode()) <= MAX_KERNEL_BYTES


def import_lines(
    session: Session, team: uuid.UUID, lines: Sequence[str], source: str, *, first_line: int = 1
) -> Imported:
    """Take lines into the team's pool, privately; those that it has already stay as they are."""
    good: dict[uuid.UUID, PoolEntry] = {}
    kernels: dict[str, Kernel] = {}
    bad: list[InvalidLine] = []
    number = repeated = 0
    for place, line in enumerate(lines, first_line):
        if not line.strip():
            continue
        number += 1
        try:
            entry, kernel = _entry(line, team, source)
        except _LineError as error:
            bad.append(InvalidLine(place, str(error)))
            continue
        repeated += uuid.UUID(entry.id) in good
        good[uuid.UUID(entry.id)] = entry
        if kernel is not None:
            kernels[kernel.content_hash()] = kernel
    existing = _known(session, team, good)
    new = [entry for key, entry in good.items() if key not in existing]
    # In one order, whoever imports: two imports at once must not wait for each other's descriptions crosswise.
    for reference in sorted({reference_of(entry) for entry in new}, key=lambda entry: entry.id):
        ensure_reference(session, reference)
    for key in sorted(kernels.keys() & {entry.kernel_hash for entry in new}):
        store_kernel(session, kernels[key])
    for entry in new:
        remember(session, entry, Sharing.PRIVATE)
    return Imported(number, len(new), len(existing) + repeated, tuple(bad))


def _known(session: Session, team: uuid.UUID, entries: dict[uuid.UUID, PoolEntry]) -> set[uuid.UUID]:
    """Return those that the team has: imported before, or measured itself and come back from elsewhere."""
    originals = {uuid.UUID(entry.provenance.imported_id): key for key, entry in entries.items()}
    query = scoped(select(PoolRow), team).where(PoolRow.id.in_([*entries, *originals]))
    return {originals.get(row.id, row.id) for row in session.scalars(query)}


def _entry(line: str, team: uuid.UUID, source: str) -> tuple[PoolEntry, Kernel | None]:
    if len(line.encode()) > MAX_LINE_BYTES + MAX_KERNEL_BYTES:
        raise _LineError(f"longer than {MAX_LINE_BYTES + MAX_KERNEL_BYTES} bytes")
    if "\\u0000" in line or "\0" in line:
        raise _LineError("contains the character U+0000")
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _LineError(f"not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("entry"), dict):
        raise _LineError(f'not an entry: an object with "format": {FORMAT} and an "entry"')
    told_entry = json.dumps({**data["entry"], "team": str(team)})
    if len(told_entry.encode()) > MAX_LINE_BYTES:
        raise _LineError(f"the entry is longer than {MAX_LINE_BYTES} bytes")
    try:
        entry = PoolEntry.model_validate_json(told_entry)
    except (ValidationError, ValueError) as error:
        raise _LineError(_first_problem(error)) from error
    _check(entry)
    kernel = _kernel(data.get("kernel"), entry)
    original = entry.provenance.imported_id or entry.id
    provenance = Provenance(
        method=entry.provenance.method,
        agents=entry.provenance.agents,
        imported_from=source,
        imported_id=original,
        with_kernel=kernel is not None,
    )
    return entry.model_copy(update={"id": str(uuid.uuid5(team, original)), "provenance": provenance}), kernel


def _kernel(data: object, entry: PoolEntry) -> Kernel | None:
    """Return the kernel that came with an entry, if it is the one that the entry is about."""
    if data is None:
        return None
    try:
        kernel = Kernel.model_validate(data)
    except (ValidationError, ValueError) as error:
        raise _LineError(f"kernel: {_first_problem(error)}") from error
    if kernel.content_hash() != entry.kernel_hash:
        raise _LineError("kernel: its hash is not the entry's kernel_hash")
    if kernel.target is not entry.target:
        raise _LineError(f"kernel: for {kernel.target.value}, the entry is about {entry.target.value}")
    return kernel


def _check(entry: PoolEntry) -> None:
    for name, value in (("id", entry.id), ("provenance.imported_id", entry.provenance.imported_id or entry.id)):
        try:
            uuid.UUID(value)
        except ValueError as error:
            raise _LineError(f"{name}: not a UUID") from error
    counts = entry.verdict.counts
    if counts != (entry.speedup is not None):
        raise _LineError(
            f"speedup: {'required for' if counts else 'not allowed for'} a kernel that is {entry.verdict.value}"
        )
    if entry.speedup is not None and not (isfinite(entry.speedup) and 0 < entry.speedup <= MAX_SPEEDUP):
        raise _LineError(f"speedup: {entry.speedup} is not between 0 and {MAX_SPEEDUP:g}")
    if counts and entry.failure is not None:
        raise _LineError("failure: not allowed for a kernel that counts")
    try:
        made = datetime.fromisoformat(entry.created_at)
        moment = in_utc(made)
    except ValueError as error:
        raise _LineError("created_at: not a time in ISO 8601") from error
    if made.tzinfo is None:
        raise _LineError("created_at: has no time zone")
    if moment > datetime.now(UTC) + AHEAD:
        raise _LineError("created_at: lies in the future")
    if not entry.op_class or len(entry.op_class) > 64 or len(entry.problem_name) > 200:
        raise _LineError("op_class or problem_name: empty or too long")


def _first_problem(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where or 'entry'}: {first['msg']}"
    return str(error)
