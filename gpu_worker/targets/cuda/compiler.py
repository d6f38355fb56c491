"""The compiler process: device code to a cubin by NVRTC or nvcc, and facts about its machine code. Run in a sandbox.

Needs the standard library and NVRTC, or a toolkit; no GPU or driver. Judges nothing. On a folder that holds
``kernel.cu`` and ``problem.h``, ``build`` and ``nvcc`` write ``kernel.bin`` and print the compiler's messages to
stderr, and ``inspect`` prints facts about the binary as one JSON object; ``precompile`` writes a precompiled header.
A command imports what it alone needs, since imports are a good part of a short build (``benchmarks.builds``).
Start: ``python -I compiler.py SOURCE_ROOT COMMAND ...``.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv.pop(1))

from cupilot import device_headers as headers
from gpu_worker.targets.cuda import log
from gpu_worker.targets.cuda.nvrtc import CompilerFault, Program

SOURCE = "kernel.cu"
HEADER = "problem.h"
BINARY = "kernel.bin"
RESOURCES = "resources.txt"
DISASSEMBLY_SECONDS = 120.0
ADDR_NO_RANDOMIZE = 0x0040000
"""personality(2)."""


def build(folder: Path, library: Path, options: list[str], pch: Path | None) -> bool:
    """Compile ``kernel.cu``; messages go to stderr, shortened to what helps to mend the source."""
    source = (folder / SOURCE).read_text(encoding="utf-8")
    files = {HEADER: (folder / HEADER).read_text(encoding="utf-8"), SOURCE: source, **headers.STAND_INS}
    prefix = headers.COMMON
    if pch is not None and pch.stat().st_size and headers.wants_precompiled(source):
        prefix += headers.SLOW
        options = [*options, f"--use-pch={pch}"]
    program = Program(library, f'{prefix}#include "{SOURCE}"\n', files)
    ok = program.compile(options)
    text = program.log()
    sys.stderr.write(log.digest(text))
    if ok:
        (folder / RESOURCES).write_text(text, encoding="utf-8")
        (folder / BINARY).write_bytes(program.cubin())
    return ok


def build_with_nvcc(folder: Path, nvcc: Path, options: list[str]) -> bool:
    """As :func:`build`, by a toolkit's driver, which leaves its intermediate files in the folder while it runs."""
    import subprocess

    done = subprocess.run(
        [str(nvcc), "--cubin", *options, "-o", BINARY, SOURCE],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    text = done.stdout + done.stderr
    if text.startswith("nvcc fatal"):
        raise CompilerFault(text.strip()[:2000])
    sys.stderr.write(log.digest(text))
    if done.returncode == 0:
        (folder / RESOURCES).write_text(text, encoding="utf-8")
    return done.returncode == 0


def precompile(pch: Path, library: Path, options: list[str]) -> bool:
    """Write the precompiled form of the slow headers."""
    program = Program(library, headers.COMMON + headers.SLOW, headers.STAND_INS)
    ok = program.compile([*options, f"--create-pch={pch}"])
    if not ok or not pch.exists():
        sys.stderr.write(log.digest(program.log()))
        return False
    return True


def inspect(folder: Path, nvdisasm: str) -> dict[str, Any]:
    """Resources that ptxas reported and instruction families that the disassembly shows."""
    import subprocess

    from gpu_worker.targets.cuda import sass

    done = subprocess.run(
        [nvdisasm, "--print-code", "--no-dataflow", str(folder / BINARY)],
        capture_output=True,
        text=True,
        timeout=DISASSEMBLY_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise CompilerFault(f"nvdisasm: {done.stderr.strip()[:500]}")
    found = sass.resources((folder / RESOURCES).read_text(encoding="utf-8"))
    return {
        "registers": found.registers,
        "stack_bytes": found.stack_bytes,
        "spill_bytes": found.spill_bytes,
        "shared_bytes": found.shared_bytes,
        "instructions": sass.families(done.stdout),
    }


def fix_addresses() -> bool:
    """Start this process again without address randomisation, or say that it cannot be switched off.

    A precompiled header is a memory image that NVRTC can only load at the address where it was made.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    present: int = libc.personality(0xFFFFFFFF)
    if present == -1 or present & ADDR_NO_RANDOMIZE:
        return present != -1
    if libc.personality(present | ADDR_NO_RANDOMIZE) != -1:
        os.execv(sys.executable, sys.orig_argv)
    return False


def main() -> int:
    """The command line; exit code 0 when the command did its work, 1 when the source is wrong, 3 on a fault."""
    parser = argparse.ArgumentParser(prog="compiler")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("build", "precompile"):
        command = commands.add_parser(name)
        command.add_argument("path", type=Path)
        command.add_argument("--pch", type=Path)
        command.add_argument("--nvrtc", type=Path, required=True)
        command.add_argument("--option", action="append", default=[])
    toolkit = commands.add_parser("nvcc")
    toolkit.add_argument("path", type=Path)
    toolkit.add_argument("--nvcc", type=Path, required=True)
    toolkit.add_argument("--option", action="append", default=[])
    inspection = commands.add_parser("inspect")
    inspection.add_argument("path", type=Path)
    inspection.add_argument("--nvdisasm", required=True)
    arguments = parser.parse_args()
    try:
        return _run(arguments)
    except CompilerFault as fault:
        sys.stderr.write(f"compiler fault: {fault}\n")
        return 3


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "build":
        pch = arguments.pch if arguments.pch is not None and fix_addresses() else None
        return 0 if build(arguments.path, arguments.nvrtc, arguments.option, pch) else 1
    if arguments.command == "precompile":
        made = fix_addresses() and precompile(arguments.path, arguments.nvrtc, arguments.option)
        return 0 if made else 1
    if arguments.command == "nvcc":
        return 0 if build_with_nvcc(arguments.path, arguments.nvcc, arguments.option) else 1
    sys.stdout.write(json.dumps(inspect(arguments.path, arguments.nvdisasm)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
