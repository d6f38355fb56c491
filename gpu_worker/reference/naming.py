"""Names of tensors and scalars at the kernel boundary: C identifiers made from Python's names."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Iterable
from typing import Any

_CPP_WORDS = frozenset({
    "alignas", "alignof", "and", "asm", "auto", "bool", "break", "case", "catch", "char", "class", "const",
    "constexpr", "const_cast", "continue", "decltype", "default", "delete", "do", "double", "dynamic_cast", "else",
    "enum", "explicit", "export", "extern", "false", "float", "for", "friend", "goto", "if", "inline", "int", "long",
    "mutable", "namespace", "new", "noexcept", "not", "nullptr", "operator", "or", "private", "protected", "public",
    "register", "return", "short", "signed", "sizeof", "static", "struct", "switch", "template", "this", "throw",
    "true", "try", "typedef", "typeid", "typename", "union", "unsigned", "using", "virtual", "void", "volatile",
    "wchar_t", "while", "xor", "main",
})  # fmt: skip


def identifier(text: str) -> str:
    """Return ``text`` as a C identifier that is no keyword of C++ or Python and has at most 60 characters."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)[:60] or "_"
    if name[0].isdigit():
        name = f"_{name}"
    return f"{name}_" if name in _CPP_WORDS or keyword.iskeyword(name) else name


def unique(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Return the names, each made different from the others and from ``taken``, also when written in upper case."""
    used = {name.upper() for name in taken}
    result = []
    for name in names:
        candidate, number = name, 1
        while candidate.upper() in used:
            number += 1
            candidate = f"{name}_{number}"
        used.add(candidate.upper())
        result.append(candidate)
    return result


def argument_names(function: Any, count: int) -> list[str]:
    """Name the first ``count`` positional parameters of a bound method; ``x0``, ``x1``... where it has none."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = [item.name for item in inspect.signature(function).parameters.values() if item.kind in kinds]
    except (TypeError, ValueError):
        parameters = []
    return [parameters[index] if index < len(parameters) else f"x{index}" for index in range(count)]
