"""Parse Python text, one thread at a time.

CPython 3.11 counts the depth of syntax trees for all threads together, and may fail with a SystemError (gh-106905).
"""

from __future__ import annotations

import ast
import threading

_ALONE = threading.Lock()


def parse(source: str) -> ast.Module:
    """Return the syntax tree of a module; raises what :func:`ast.parse` raises."""
    with _ALONE:
        return ast.parse(source)


def check_compiles(source: str) -> None:
    """Compile a module without running it; raises what :func:`compile` raises, also where each statement parses."""
    with _ALONE:
        compile(source, "<source>", "exec", dont_inherit=True)


def parse_expression(text: str) -> ast.Expression:
    """Return the syntax tree of one expression; raises what :func:`ast.parse` raises."""
    with _ALONE:
        return ast.parse(text, mode="eval")
