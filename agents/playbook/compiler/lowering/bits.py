"""Bits of a tensor read as another type: ``view(dtype)``, with elements of one size or packed into larger ones."""

from __future__ import annotations

from agents.playbook.compiler.lowering.calls import Call
from agents.playbook.compiler.tensors import Index, Tensor, mapped
from agents.playbook.compiler.terms import EIGHTS, Term, cast, const, make, modulo, number, over, plus, register, times

_BYTES = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1, **dict.fromkeys(EIGHTS, 1),
}  # fmt: skip


def _read_as(call: Call) -> Tensor:
    source, given, wanted = call.tensor(0), call.dtype_of(0), call.dtype
    if given not in _BYTES or wanted not in _BYTES:
        call.refuse(f"bits of {given} as {wanted} are not supported")
    small, large = sorted((_BYTES[given], _BYTES[wanted]))
    parts = large // small

    def word(index: Index) -> Term:
        return make(f"fn_word_{given}", "int64", source.at(index))

    def joined(index: Index) -> Term:
        first = times(index[-1], parts)
        result = const(0, "int64")
        for part in range(parts):
            bits = word((*index[:-1], plus(first, number(part))))
            shifted = make("fn_shl", "int64", bits, const(8 * small * part, "int64"))
            result = make("or", "int64", result, shifted)
        return result

    def divided(index: Index) -> Term:
        bits = word((*index[:-1], over(index[-1], parts)))
        by = make("mul", "int64", cast(modulo(index[-1], parts), "int64"), const(8 * small, "int64"))
        return make("and", "int64", make("fn_shr", "int64", bits, by), const((1 << 8 * small) - 1, "int64"))

    read = word if parts == 1 else joined if _BYTES[wanted] == large else divided
    held = "float32" if wanted in EIGHTS else wanted
    kind = register(held)
    return mapped(call.shape, held, lambda index: make(f"fn_of_word_{wanted}", kind, read(index)))


BITS = {"aten.view_copy.dtype": _read_as}
"""Calls that read bits."""
