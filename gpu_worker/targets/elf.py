"""Reads where machine code lies in a 64-bit ELF file: a shared library, or a cubin. Standard library only.

The file is untrusted: whatever is no such file is an :class:`InvalidElf`. Structures: System V ABI, ``elf(5)``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

PAGE = 4096

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC = struct.Struct("<qQ")

_EXECUTABLE, _WRITABLE = 1, 2  # PF_X, PF_W
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK, _PT_GNU_RELRO = 1, 2, 0x6474E551, 0x6474E552
_SHT_NOBITS = 8
_SHF_EXECINSTR = 4
_DT_TEXTREL, _DT_FLAGS, _DF_TEXTREL = 22, 30, 4


class InvalidElf(ValueError):
    """No 64-bit little-endian ELF file, or one whose tables lie outside of it."""


@dataclass(frozen=True)
class Segment:
    """A program header."""

    kind: int
    flags: int
    offset: int
    address: int
    size: int
    """In the file."""
    memory: int
    """Bytes in memory; what the file does not hold is zero."""

    @property
    def executable(self) -> bool:
        """True if its memory may be executed."""
        return self.kind == _PT_LOAD and bool(self.flags & _EXECUTABLE)


@dataclass(frozen=True)
class Section:
    """A section header."""

    name: str
    flags: int
    offset: int
    address: int
    size: int
    """In the file: 0 where it holds no bytes there."""
    memory: int
    """Bytes in memory."""

    @property
    def executable(self) -> bool:
        """True if it is marked as machine code, or named so."""
        return bool(self.flags & _SHF_EXECINSTR) or self.name.startswith(".text")


@dataclass(frozen=True)
class Image:
    """An ELF file's headers and its bytes."""

    data: bytes
    segments: tuple[Segment, ...]
    sections: tuple[Section, ...]

    @classmethod
    def read(cls, data: bytes) -> Image:
        """Read the headers of a file."""
        try:
            header = _HEADER.unpack_from(data)
            if header[0][:6] != b"\x7fELF\x02\x01":
                raise InvalidElf("not a 64-bit little-endian ELF file")
            segments = tuple(_segment(data, header[5] + place * header[9]) for place in range(header[10]))
            rows = [_SECTION.unpack_from(data, header[6] + place * header[11]) for place in range(header[12])]
            names = _bytes(data, rows[header[13]][4], rows[header[13]][5]) if rows else b""
        except (struct.error, IndexError, OverflowError) as error:
            raise InvalidElf(f"its headers are not there: {error}") from error
        return cls(data, segments, tuple(_section(names, row) for row in rows))

    def code_sections(self) -> list[Section]:
        """Return the sections with machine code."""
        return [section for section in self.sections if section.executable and section.size]

    def code_maps(self) -> tuple[tuple[int, int], ...]:
        """Return file offset and length of each mapping with which a loader maps this library's machine code."""
        maps = []
        for segment in self.segments:
            if segment.executable:
                start, end = segment.address // PAGE * PAGE, -(-(segment.address + segment.size) // PAGE) * PAGE
                maps.append((segment.offset // PAGE * PAGE, end - start))
        return tuple(maps)

    def writable_places(self) -> list[tuple[int, int]]:
        """Return address and bytes of what stays writable of a library's memory: its static variables, and its GOT."""
        sealed = max((part.address + part.memory for part in self.segments if part.kind == _PT_GNU_RELRO), default=0)
        sealed -= sealed % PAGE  # the dynamic linker makes whole pages read-only
        places = []
        for segment in self.segments:
            start, end = max(segment.address, sealed), segment.address + segment.memory
            if segment.kind == _PT_LOAD and segment.flags & _WRITABLE and start < end:
                places.append((start, end - start))
        return places

    def device_variables(self) -> bool:
        """Return whether a cubin has variables in device memory."""
        return any(section.memory and section.name.startswith(".nv.global") for section in self.sections)

    def writable_code(self) -> str | None:
        """Return why memory of this library could be written and then executed, in words; None where it could not."""
        for segment in self.segments:
            if segment.executable and segment.flags & _WRITABLE:
                held = [section.name for section in self.sections if section.size and _within(section, segment)]
                return f"its segment with {', '.join(held) or 'no named section'} is writable and executable"
        stack = next((segment for segment in self.segments if segment.kind == _PT_GNU_STACK), None)
        if stack is None or stack.flags & _EXECUTABLE:
            return "it asks for an executable stack"
        if self._has_text_relocations():
            return "its machine code is written to while it is loaded (text relocations)"
        return None

    def unnamed_code(self) -> str | None:
        """Return where bytes may be executed that no section names as machine code, which no disassembly shows."""
        for segment in self.segments:
            if segment.executable:
                rest = bytearray(_bytes(self.data, segment.offset, segment.size))
                for section in self.code_sections():
                    start = section.offset - segment.offset
                    if start >= 0 and start + section.size <= len(rest):
                        rest[start : start + section.size] = bytes(section.size)
                if any(rest):
                    return f"{len(rest) - rest.count(0)} bytes of its executable memory are in no section of code"
        return None

    def _has_text_relocations(self) -> bool:
        for segment in self.segments:
            if segment.kind == _PT_DYNAMIC:
                table = _bytes(self.data, segment.offset, segment.size)
                entries = _DYNAMIC.iter_unpack(table[: len(table) // _DYNAMIC.size * _DYNAMIC.size])
                if any(tag == _DT_TEXTREL or (tag == _DT_FLAGS and value & _DF_TEXTREL) for tag, value in entries):
                    return True
        return False


def _segment(data: bytes, place: int) -> Segment:
    kind, flags, offset, address, _, size, memory, _ = _SEGMENT.unpack_from(data, place)
    return Segment(kind, flags, offset, address, size, memory)


def _section(names: bytes, row: tuple[int, ...]) -> Section:
    name, kind, flags, address, offset, size, *_ = row
    text = names[name:].split(b"\0", 1)[0].decode("ascii", "replace")
    return Section(text, flags, offset, address, 0 if kind == _SHT_NOBITS else size, size)


def _within(section: Section, segment: Segment) -> bool:
    return segment.offset <= section.offset and section.offset + section.size <= segment.offset + segment.size


def _bytes(data: bytes, start: int, size: int) -> bytes:
    if start + size > len(data):
        raise InvalidElf("a part of it lies behind its end")
    return data[start : start + size]
