"""Slots: where each tensor and workspace lies in the arena, guard zones between them, poison inside.

Knows bytes, not right and wrong values.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from cupilot.domain.problem import DType, Role, TensorSpec
from gpu_worker.judge.dtypes import TORCH_DTYPES
from gpu_worker.targets.base import ALIGNMENT, JudgeDevice

GUARD_BYTES = 1024
"""On both sides of every buffer: an unrolled vector loop that runs over writes a few hundred bytes."""

DIGEST_COLUMNS = 2**18
"""Least number of sums that a digest of a large tensor is made of; a secret number of fewer than twice as many."""

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORKSPACE_POISON = 0xFF
"""A byte that makes every float type NaN and every integer -1."""

_OTHER_WORKSPACES = (0x00, 0x00, None)
"""A workspace is poison in half of all launches, of which most mistakes show; else zeros, what the slot's last launch
left (None), or a random byte: nothing is always there that a kernel could count on."""

WATCHED_BYTES = 2**16
"""Of the inputs of all slots together: of 100 slots, a hundredth of one's input is changed unseen once in 700 times."""

FEWEST_WATCHED = 16
"""Of each tensor of each slot."""


Digests = Mapping[int, Sequence[int]]
"""Numbers of the given tensors, by slot."""


@dataclass(frozen=True)
class Watch:
    """Random bytes of what some slots' kernels are given, and what they were."""

    rows: torch.Tensor
    places: Mapping[str, torch.Tensor]
    values: Mapping[str, torch.Tensor]


class Slots:
    """``count`` equal slots in one arena."""

    def __init__(
        self, device: JudgeDevice, specs: Sequence[TensorSpec], workspace: Mapping[str, int], count: int
    ) -> None:
        self._specs = list(specs)
        self._given = [spec for spec in specs if spec.role is not Role.OUTPUT]
        self._outputs = [spec for spec in specs if spec.role is Role.OUTPUT]
        sizes = {spec.name: spec.storage_elements * spec.dtype.itemsize for spec in specs} | dict(workspace)
        self._workspace = list(workspace)
        self._sizes = sizes
        self._offsets, self.slot_bytes = _lay_out(sizes)
        self.tensor_bytes = slot_size(specs, {})
        """Of a slot, what both kernel and baseline go through; a workspace may be declared and never touched."""
        self.count = count
        self._device = device
        self._arena = device.allocate(count * self.slot_bytes)
        self._rows = self._arena.bytes.view(count, self.slot_bytes)
        columns = DIGEST_COLUMNS + secrets.randbelow(DIGEST_COLUMNS)
        most = max((self._digested_words(spec.name) for spec in self._given), default=1)
        self._factors = _random_words(min(columns, most), self._rows.device)
        self._guard = torch.randint(0, 256, (GUARD_BYTES,), dtype=torch.uint8).to(self._arena.bytes.device)
        self._poisons: dict[tuple[int, str], int] = {}
        self.renew()

    @property
    def handle(self) -> dict[str, object]:
        """For the runner's ``attach``."""
        return self._arena.handle

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Sent along with the handle."""
        return self._arena.descriptors

    def offsets(self) -> list[dict[str, int]]:
        """Return the byte offset of each name, by slot, for the runner's ``bind``."""
        return [
            {name: slot * self.slot_bytes + offset for name, offset in self._offsets.items()}
            for slot in range(self.count)
        ]

    def settle(self) -> None:
        """Wait until all that was written is in memory: the runner's launches do not wait for this process's."""
        self._device.synchronize()

    def close(self) -> None:
        """Release the memory."""
        self._arena.close()

    def given(self, slot: int) -> list[torch.Tensor]:
        """Return views of the tensors that the kernel is given, with their strides."""
        return [self._view(slot, spec) for spec in self._given]

    def outputs(self, slot: int) -> list[torch.Tensor]:
        """Return views of the outputs, with their strides."""
        return [self._view(slot, spec) for spec in self._outputs]

    def storages(self, slot: int) -> list[torch.Tensor]:
        """Return the given tensors as flat storage, gaps included."""
        return [self._storage(slot, spec) for spec in self._given]

    def rows(self, spec: TensorSpec) -> torch.Tensor:
        """Return the flat storages of a tensor in all slots, one a row."""
        start = self._offsets[spec.name]
        return self._rows[:, start : start + self._sizes[spec.name]].view(TORCH_DTYPES[spec.dtype])

    def fill(self, slot: int, tensors: Sequence[torch.Tensor]) -> None:
        """Write the given tensors, or their flat storages."""
        for storage, tensor in zip(self.storages(slot), tensors, strict=True):
            storage.copy_(flat_storage(tensor))

    def digest(self, slot: int) -> list[int]:
        """Return a number for each given tensor of a slot, which tells whether a byte has changed since.

        Words are laid out in rows of a secret length; the sums of the columns times secret odd numbers are added,
        modulo 2^64. One changed word always shows, and several can hide each other by chance only.
        """
        return [self._digest(slot, spec.name) for spec in self._given]

    def changed_since(self, slot: int, digest: Sequence[int]) -> str | None:
        """Name of a given tensor of a slot that is not what it was when digested; None where all are."""
        pairs = zip(self._given, digest, strict=True)
        return next((spec.name for spec, before in pairs if self._digest(slot, spec.name) != before), None)

    def _digest(self, slot: int, name: str) -> int:
        start = self._offsets[name]
        words = self._rows[slot, start : start + 8 * self._digested_words(name)].view(torch.int64)
        columns = len(self._factors)
        if len(words) <= columns:
            return int((words * self._factors[: len(words)]).sum())
        last = len(words) % columns
        sums = words[: len(words) - last].view(-1, columns).sum(0)
        sums[:last] += words[len(words) - last :]
        return int((sums * self._factors).sum())

    def _digested_words(self, name: str) -> int:
        return -(-self._sizes[name] // 8)

    def watch(self, order: Sequence[int]) -> Watch:
        """Remember random bytes of what these slots' kernels are given."""
        rows = torch.tensor(list(order), device=self._rows.device)[:, None]
        count = max(FEWEST_WATCHED, WATCHED_BYTES // (len(order) * len(self._given)))
        places = {spec.name: self._some_bytes(spec.name, count) for spec in self._given}
        return Watch(rows, places, {name: self._rows[rows, columns] for name, columns in places.items()})

    def _some_bytes(self, name: str, count: int) -> torch.Tensor:
        """Return places in a slot's row: all of a tensor that has no more than so many bytes."""
        size, device = self._sizes[name], self._rows.device
        within = torch.arange(size, device=device) if size <= count else torch.randint(size, (count,), device=device)
        return self._offsets[name] + within

    def changed(self, watch: Watch) -> str | None:
        """Name of a tensor of which a watched byte is no longer what it was; None where all are."""
        for name, columns in watch.places.items():
            if not torch.equal(self._rows[watch.rows, columns], watch.values[name]):
                return name
        return None

    def poison(self, slot: int) -> None:
        """Fill outputs with a random bit pattern (a NaN in floating types), workspace with a drawn byte."""
        for spec in self._outputs:
            pattern = _pattern(spec.dtype)
            self._poisons[slot, spec.name] = pattern
            self._words(slot, spec).fill_(pattern)
        for name in self._workspace:
            start, byte = self._offsets[name], _workspace_byte()
            if byte is not None:
                self._rows[slot, start : start + self._sizes[name]].fill_(byte)

    def adopt(self, slot: int, index: int, storage: torch.Tensor, pattern: int) -> None:
        """Take the bytes of an output that lay elsewhere, where memory was poisoned with a pattern of 16 bits."""
        spec = self._outputs[index]
        self._poisons[slot, spec.name] = sum(pattern << 16 * place for place in range(spec.dtype.itemsize // 2))
        self._words(slot, spec).copy_(storage.view(_WORDS[spec.dtype.itemsize]))

    def untouched(self, slot: int) -> bool:
        """Return whether all of a slot's outputs are still what :meth:`poison` wrote."""
        return all(self._is_poison(slot, spec) for spec in self._outputs)

    def _is_poison(self, slot: int, spec: TensorSpec) -> bool:
        words, pattern = self._words(slot, spec), self._poisons[slot, spec.name]
        least, most = torch.aminmax(words) if words.numel() else (pattern, pattern)
        return int(least) == int(most) == pattern

    def unwritten(self, slot: int, index: int) -> torch.Tensor:
        """Mark the elements of an output (flattened, logical order) that still hold the poison."""
        spec = self._outputs[index]
        words = self._words(slot, spec).as_strided(spec.shape, spec.strides)
        return (words == self._poisons[slot, spec.name]).reshape(-1)

    def places_in_outputs(self, order: Sequence[int], count: int) -> torch.Tensor:
        """Return so many random places in the outputs of these slots, for :meth:`at`."""
        names = [spec.name for spec in self._outputs if self._sizes[spec.name]]
        places = []
        for _ in range(count if names else 0):
            slot, name = secrets.choice(order), secrets.choice(names)
            places.append(slot * self.slot_bytes + self._offsets[name] + secrets.randbelow(self._sizes[name]))
        return torch.tensor(places, dtype=torch.int64)

    def at(self, places: torch.Tensor) -> torch.Tensor:
        """Return the bytes at places in the arena."""
        return self._arena.bytes[places]

    def probe_unwritten(self, slot: int, samples: int) -> bool:
        """Return whether one of a few random elements of the slot's outputs still holds the poison."""
        for spec in self._outputs:
            words = self._words(slot, spec)
            places = torch.randint(0, words.numel(), (min(samples, words.numel()),), device=words.device)
            shows = spec.dtype.itemsize > 1 or spec.dtype is DType.BOOL  # every other byte may be a right answer
            if shows and bool((words[places] == self._poisons[slot, spec.name]).any()):
                return True
        return False

    def broken_guard(self, slot: int) -> str | None:
        """Name of the buffer in front of or behind which something was written; None where the guards hold."""
        for name, offset in self._offsets.items():
            row, after = self._rows[slot], offset + self._sizes[name]
            before = row[offset - GUARD_BYTES : offset]
            tail = row[after : offset + _rounded(self._sizes[name]) + GUARD_BYTES]
            if not torch.equal(before, self._guard) or not torch.equal(tail, self._tail(name)):
                return name
        return None

    def renew(self) -> None:
        """Forget what an earlier kernel was given and left behind, for the next one to find, and make guards whole."""
        self._arena.bytes.fill_(_WORKSPACE_POISON)
        for name, offset in self._offsets.items():
            self._rows[:, offset - GUARD_BYTES : offset] = self._guard
            tail = self._tail(name)
            after = offset + self._sizes[name]
            self._rows[:, after : after + tail.numel()] = tail

    def _tail(self, name: str) -> torch.Tensor:
        gap = _rounded(self._sizes[name]) - self._sizes[name]
        return torch.cat([self._guard[:gap], self._guard])

    def _storage(self, slot: int, spec: TensorSpec) -> torch.Tensor:
        start = self._offsets[spec.name]
        return self._rows[slot, start : start + self._sizes[spec.name]].view(TORCH_DTYPES[spec.dtype])

    def _view(self, slot: int, spec: TensorSpec) -> torch.Tensor:
        storage = self._storage(slot, spec)
        return storage.as_strided(spec.shape, spec.strides, storage.storage_offset())

    def _words(self, slot: int, spec: TensorSpec) -> torch.Tensor:
        start = self._offsets[spec.name]
        return self._rows[slot, start : start + self._sizes[spec.name]].view(_WORDS[spec.dtype.itemsize])


def slot_size(specs: Sequence[TensorSpec], workspace: Mapping[str, int]) -> int:
    """Return bytes that one slot takes in an arena."""
    sizes = {spec.name: spec.storage_elements * spec.dtype.itemsize for spec in specs} | dict(workspace)
    return _lay_out(sizes)[1]


def flat_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Return the storage range of a tensor as one dimension, gaps included."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,), tensor.storage_offset())


def _random_words(count: int, device: torch.device) -> torch.Tensor:
    """Return random odd numbers of 64 bits."""
    return torch.randint(-(2**63), 2**63 - 1, (count,), dtype=torch.int64).bitwise_or_(1).to(device)


def _lay_out(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    offsets: dict[str, int] = {}
    position = GUARD_BYTES
    for name, size in sizes.items():
        offsets[name] = position
        position += _rounded(size) + GUARD_BYTES
    return offsets, position


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _workspace_byte() -> int | None:
    """Draw what a workspace is filled with; None leaves it as it is."""
    if secrets.randbelow(2):
        return _WORKSPACE_POISON
    return secrets.choice((*_OTHER_WORKSPACES, secrets.randbelow(256)))


def _pattern(dtype: DType) -> int:
    """Draw a bit pattern that no honest kernel writes: a quiet NaN with a random payload, or an unlikely integer.

    Never a payload of ones alone, which is CUDA's own NaN (``CUDART_NAN_BF16``).
    """
    bits = {
        DType.FLOAT32: 0x7FC00000 | secrets.randbelow(0x3FFFFE) + 1,
        DType.FLOAT16: 0x7E00 | secrets.randbelow(0x1FE) + 1,
        DType.BFLOAT16: 0x7FC0 | secrets.randbelow(0x3E) + 1,
        DType.FLOAT64: 0x7FF8 << 48 | secrets.randbits(48) | 1,
        DType.INT64: -(2**61) - secrets.randbits(48),
        DType.INT32: -(2**30) - secrets.randbits(24),
        DType.INT16: -(2**14) - secrets.randbits(10),
    }
    return bits.get(dtype, 0x80 | secrets.randbits(7))
