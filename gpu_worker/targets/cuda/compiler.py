"""The compiler process: device code to a cubin by NVRTC or nvcc, and facts about its machine code. Run in a sandbox.

Needs the standard library and NVRTC, or a toolkit; no GPU or driver. Judges nothing. On a folder that holds
``kernel.cu`` and ``problem.h``, ``build`` and ``nvcc`` write ``kernel.bin`` and print the compiler's messages to
stderr, and ``inspect`` prints facts about the binary as one JSON object; ``precompile`` writes a precompiled header.
A command imports what it alone needs, and ``build`` neither argparse nor pathlib nor re: imports are a good part of a
short build (``benchmarks.builds``). Start: ``python -I -S -c START SOURCE_ROOT COMMAND ...``, with :data:`START`.
"""

from __future__ import annotations

import ctypes
import os
import sys

from cupilot.domain import device_headers as headers
from gpu_worker.targets.cuda import log
from gpu_worker.targets.cuda.nvrtc import CompilerFault, Program

START = "import sys; sys.path.append(sys.argv[1]); from gpu_worker.targets.cuda import compiler; compiler.main()"
"""Not the file itself, which Python would compile anew for every build."""

SOURCE = "kernel.cu"
HEADER = "problem.h"
BINARY = "kernel.bin"
RESOURCES = "resources.txt"
DISASSEMBLY_SECONDS = 120.0
ADDR_NO_RANDOMIZE = 0x0040000
"""personality(2)."""


def build(folder: str, library: str, pch: str, *options: str) -> bool:
    """Compile ``kernel.cu``; messages go to stderr, shortened to what helps to mend the source.

    ``pch``: the precompiled form of the slow headers, for a kernel that wants them; else empty.
    """
    files = {HEADER: _read(f"{folder}/{HEADER}"), SOURCE: _read(f"{folder}/{SOURCE}"), **headers.STAND_INS}
    prefix = headers.COMMON
    if pch and fix_addresses() and os.stat(pch).st_size:
        prefix += headers.SLOW
        options = (*options, f"--use-pch={pch}")
    program = Program(library, f'{prefix}#include "{SOURCE}"\n', files)
    ok = program.compile([*options])
    text = program.log()
    sys.stderr.write(log.digest(text))
    if ok:
        _write(f"{folder}/{RESOURCES}", text.encode())
        _write(f"{folder}/{BINARY}", program.cubin())
    return ok


def build_with_nvcc(folder: str, nvcc: str, *options: str) -> bool:
    """Build as :func:`build` does, by a toolkit's driver, which writes intermediate files to the folder."""
    import subprocess

    done = subprocess.run(
        [nvcc, "--cubin", *options, "-o", BINARY, SOURCE],
        cwd=folder,
        env={**os.environ, "TMPDIR": folder},
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
        _write(f"{folder}/{RESOURCES}", text.encode())
    return done.returncode == 0


def precompile(pch: str, library: str, *options: str) -> bool:
    """Write the precompiled form of the slow headers."""
    if not fix_addresses():
        return False
    program = Program(library, headers.COMMON + headers.SLOW, headers.STAND_INS)
    ok = program.compile([*options, f"--create-pch={pch}"])
    if not ok or not os.path.exists(pch):
        sys.stderr.write(log.digest(program.log()))
        return False
    return True


def inspect(folder: str, nvdisasm: str) -> bool:
    """Print resources that ptxas reported and instruction families that the disassembly shows."""
    import json
    import subprocess

    from gpu_worker.targets.cuda import sass
    from gpu_worker.targets.elf import Image

    done = subprocess.run(
        [nvdisasm, "--print-code", "--no-dataflow", f"{folder}/{BINARY}"],
        capture_output=True,
        text=True,
        timeout=DISASSEMBLY_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise CompilerFault(f"nvdisasm: {done.stderr.strip()[:500]}")
    instructions = sass.families(done.stdout)
    with open(f"{folder}/{BINARY}", "rb") as file:
        held = sum(section.size for section in Image.read(file.read()).code_sections()) // sass.INSTRUCTION_BYTES
    if held != instructions.get("instructions", 0):
        raise CompilerFault(f"nvdisasm shows {instructions.get('instructions', 0)} of {held} instructions")
    resources = sass.resources(_read(f"{folder}/{RESOURCES}"))
    facts = {
        "registers": resources.registers,
        "stack_bytes": resources.stack_bytes,
        "spill_bytes": resources.spill_bytes,
        "shared_bytes": resources.shared_bytes,
        "instructions": instructions,
    }
    sys.stdout.write(json.dumps(facts) + "\n")
    return True


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


def main() -> None:
    """Run one command; exit code 0 when it did its work, 1 when the source is wrong, 3 on a fault."""
    name, *arguments = sys.argv[2:]
    try:
        code = 0 if _run(name, arguments) else 1
    except Exception as fault:  # of this program, and never of the source
        sys.stderr.write(f"compiler fault: {fault if isinstance(fault, CompilerFault) else repr(fault)}\n")
        code = 3
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # taking down the interpreter and NVRTC in order takes milliseconds, and leaves nothing more


def _run(command: str, arguments: list[str]) -> bool:
    if command == "build":
        return build(*arguments)
    if command == "precompile":
        return precompile(*arguments)
    if command == "nvcc":
        return build_with_nvcc(*arguments)
    return inspect(*arguments)


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
