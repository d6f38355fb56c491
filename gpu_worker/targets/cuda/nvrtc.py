"""NVRTC through its C interface (nvrtc.h of CUDA 13): one translation unit to a cubin. Standard library only.

Not cuda-bindings: importing those takes as long as compiling a typical kernel, and each build has its own process.
"""

from __future__ import annotations

import ctypes
import os

COMPILATION_ERROR = 6
"""``NVRTC_ERROR_COMPILATION``: the source is wrong."""


class CompilerFault(Exception):
    """NVRTC or the disassembler failed; not the source's fault."""


class Program:
    """One NVRTC translation unit with virtual header files."""

    def __init__(self, library: str | os.PathLike[str], unit: str, files: dict[str, str]) -> None:
        folder = os.path.dirname(library)
        for name in os.listdir(folder):
            if name.startswith("libnvrtc-builtins.so."):
                ctypes.CDLL(f"{folder}/{name}")  # NVRTC asks for it by name alone, and wheels lie on no search path
        self._library = ctypes.CDLL(os.fspath(library))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        self._handle = ctypes.c_void_p()
        texts = (ctypes.c_char_p * len(files))(*(text.encode() for text in files.values()))
        names = (ctypes.c_char_p * len(files))(*(name.encode() for name in files))
        created = self._library.nvrtcCreateProgram(
            ctypes.byref(self._handle), unit.encode(), b"unit.cu", len(files), texts, names
        )
        self._check(created)

    def compile(self, options: list[str]) -> bool:
        """Return whether the unit compiled; faults that are not the source's raise :class:`CompilerFault`."""
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = self._library.nvrtcCompileProgram(self._handle, len(options), words)
        if status not in (0, COMPILATION_ERROR):
            raise CompilerFault(f"{self._words(status)}: {self.log()}")
        return bool(status == 0)

    def log(self) -> str:
        """Return the compiler's log."""
        return self._bytes("nvrtcGetProgramLog").rstrip(b"\0 \n").decode(errors="replace")

    def cubin(self) -> bytes:
        """Return the machine code."""
        return self._bytes("nvrtcGetCUBIN")

    def _bytes(self, getter: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(self._library[f"{getter}Size"](self._handle, ctypes.byref(size)))
        text = ctypes.create_string_buffer(max(size.value, 1))
        self._check(self._library[getter](self._handle, text))
        return text.raw[: size.value]

    def _check(self, status: int) -> None:
        if status != 0:
            raise CompilerFault(self._words(status))

    def _words(self, status: int) -> str:
        return str(self._library.nvrtcGetErrorString(status).decode())
