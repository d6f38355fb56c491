"""Reads machine code: instruction families counted from ``nvdisasm`` text, resources from ptxas.

Only reads text that other programs wrote; runs none of them. Opcode names: NVIDIA, "CUDA Binary Utilities", chapter
"Instruction Set Reference" (Turing to Blackwell).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)([^;]*);")
_REGISTER = re.compile(r"\s*U?R\d")
_SPILL = re.compile(r"^(?:ptxas.*?| +)(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", re.M)
_REGISTERS = re.compile(r"^ptxas.*?Used (\d+) registers", re.M)
_SHARED = re.compile(r"^ptxas.*?Used .*?(\d+) bytes smem", re.M)

_HALF_ROOTS = frozenset({
    "HADD2", "HMUL2", "HFMA2", "HMNMX2", "HSET2", "HSETP2", "HADD2_32I", "HMUL2_32I", "HFMA2_32I",
    "VHMNMX", "FHADD", "FHFMA",
})  # fmt: skip
"""The last three are Blackwell's: three-way minima, and sums that take a half operand as it is."""
_HALF_BY_TYPE = frozenset({"MUFU", "ATOM", "ATOMG", "ATOMS", "RED", "REDG", "REDAS", "UBLKRED", "UTMAREDG"})
"""Instructions that compute in whatever type their modifiers name."""
_APPROXIMATE = (".SIN", ".COS", ".TANH")
"""Of the special functions, those that no accurate routine of CUDA's library rests on; others are steps of such."""
_CONVERSIONS = frozenset({"F2F", "F2FP", "I2F", "I2FP"})
_GROUPS: dict[str, tuple[str, ...]] = {
    "async_copy": ("LDGSTS", "UBLKCP", "UBLKRED", "UTMALDG", "UTMASTG", "UTMAREDG"),
    "atomic": ("ATOM", "ATOMG", "ATOMS", "RED", "REDG", "REDAS"),
    "barrier": ("BAR",),
    "cluster_barrier": ("UCGABAR_ARV", "UCGABAR_WAIT"),
    "double_arithmetic": ("DFMA", "DADD", "DMUL"),
    "float_arithmetic": ("FFMA", "FADD", "FMUL", "FFMA2", "FADD2", "FMUL2"),
    "global_load": ("LDG", "LD"),
    "global_store": ("STG", "ST"),
    "local_memory": ("LDL", "STL"),
    "shared_memory": ("LDS", "STS", "LDSM", "STSM"),
    "shuffle": ("SHFL",),
    "special_function": ("MUFU",),
}
_FAMILY = {root: family for family, roots in _GROUPS.items() for root in roots}
_TENSOR_COPIES = {"UTMALDG": "tma_load", "UTMASTG": "tma_store", "UTMAREDG": "tma_store"}
"""Copies by a tensor map, which are asynchronous copies too."""

_VECTOR = {"global_load": "vector_load_128", "global_store": "vector_store_128"}
_HINTS = {".CONSTANT": "read_only_load", ".EF": "streaming"}
"""Hints of an access to global memory to the caches: by the read-only path; to be evicted first."""
INSTRUCTION_BYTES = 16
"""From Volta on."""

_CLOCKS = ("SR_CLOCK", "SR_GLOBALTIMER")
_HALF_TYPES = (".F16", ".BF16", ".E4M3", ".E5M2", ".E2M1", ".E2M3", ".E3M2")


@dataclass(frozen=True)
class Resources:
    """The largest over a cubin's kernels; ``None`` where ptxas did not say."""

    registers: int | None
    stack_bytes: int | None
    spill_bytes: int | None
    """Spill stores plus spill loads, in bytes of code that ptxas emitted for them."""
    shared_bytes: int | None


def resources(log: str) -> Resources:
    """Read ``--ptxas-options=-v`` output."""
    frames = [tuple(map(int, match)) for match in _SPILL.findall(log)]
    registers = [int(number) for number in _REGISTERS.findall(log)]
    shared = [int(number) for number in _SHARED.findall(log)]
    return Resources(
        registers=max(registers, default=None),
        stack_bytes=max((frame[0] for frame in frames), default=None),
        spill_bytes=max((frame[1] + frame[2] for frame in frames), default=None),
        shared_bytes=max(shared, default=0) if registers else None,
    )


def families(disassembly: str) -> dict[str, int]:
    """Count telling instruction families in ``nvdisasm`` text; a family that does not occur is absent.

    ``tensor_core`` counts every matrix instruction and ``tensor_<type>`` its operand types (``f16`` covers bf16).
    ``half_arithmetic`` leaves out what compilers emit for other ends: HFMA2 that only materialises a constant, and
    HADD2 that only widens to fp32. ``half_narrowing`` counts conversions to a 16-bit or smaller float, and
    ``computed_call`` calls of an address in a register, which may be data that is no section of code.
    """
    counts: Counter[str] = Counter()
    for opcode, operands in _INSTRUCTION.findall(disassembly):
        counts["instructions"] += 1
        counts.update(_families_of(opcode, operands))
    return dict(sorted(counts.items()))


def _families_of(opcode: str, operands: str) -> Iterable[str]:
    root, _, modifiers = opcode.partition(".")
    modifiers = f".{modifiers}"
    if any(clock in operands for clock in _CLOCKS):
        yield "clock_read"
    if root.endswith("MMA"):
        yield from ("tensor_core", f"tensor_{_tensor_type(root, modifiers)}")
    elif root == "CALL" and _REGISTER.match(operands):
        yield "computed_call"
    elif root in _HALF_ROOTS and not _is_constant_or_widening(root, modifiers, operands):
        yield "half_arithmetic"
    elif root in _CONVERSIONS and _narrows(modifiers):
        yield "half_narrowing"
    elif family := _FAMILY.get(root):
        yield family
        if root == "MUFU" and any(function in modifiers for function in _APPROXIMATE):
            yield "approximate_function"
        if root in _HALF_BY_TYPE and (".F16" in modifiers or ".BF16" in modifiers):
            yield "half_arithmetic"
        if root in _TENSOR_COPIES:
            yield _TENSOR_COPIES[root]
        if family in _VECTOR:
            yield from _ways(family, modifiers)


def _ways(family: str, modifiers: str) -> Iterable[str]:
    """Name how an access to global memory is made: in 128 bits at once, with a hint to the caches."""
    if ".128" in modifiers:
        yield _VECTOR[family]
    for hint, name in _HINTS.items():
        if hint in modifiers:
            yield name


def _tensor_type(root: str, modifiers: str) -> str:
    """Return the operand type, by default ``f16``: Blackwell's UTCHMMA is one text for half precision and for TF32."""
    if ".TF32" in modifiers:
        return "tf32"
    if root in ("IMMA", "IGMMA", "BMMA", "BGMMA", "UTCIMMA"):
        return "int"
    if root == "DMMA":
        return "f64"
    if root in ("QMMA", "QGMMA", "OMMA", "UTCQMMA", "UTCOMMA"):
        return "f8"
    return "f16"


def _is_constant_or_widening(root: str, modifiers: str, operands: str) -> bool:
    values = [value.strip() for value in operands.split(",")[1:]]
    if root.startswith("HFMA2"):
        return values[:2] == ["-RZ", "RZ"]
    return root.startswith("HADD2") and ".F32" in modifiers and values[:1] == ["-RZ"]


def _narrows(modifiers: str) -> bool:
    """Return whether the destination type, which SASS names first, is smaller than fp32."""
    types = [part for part in re.findall(r"\.[A-Z0-9]+", modifiers) if part in _HALF_TYPES or part in (".F32", ".F64")]
    return bool(types) and types[0] in _HALF_TYPES
