"""Finds names of a problem's file that nothing defines, by its text. Runs nothing.

What is found is certain to fail once it is reached; that nothing is found says little. PyTorch's own names are looked
up in its files, which are read, not imported: a service that takes jobs in need not have PyTorch.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from cupilot.domain.syntax import parse

_IMPLICIT = frozenset({*dir(builtins), "__file__", "__name__", "__class__", "__doc__"})
_STUBS = {
    "torch": ("__init__.py", "_C/_VariableFunctions.pyi", "_C/__init__.pyi", "functional.py"),
    "torch.nn": ("nn/__init__.py", "nn/modules/__init__.py"),
    "torch.nn.functional": ("nn/functional.py", "nn/functional.pyi"),
}
"""Files, in PyTorch's folder, in which each module's names stand."""
_WORD = re.compile(r"\b[A-Za-z]\w+\b")


def undefined_names(source: str) -> list[str]:
    """Return a sentence for each name that the file uses and nothing defines, in the order of lines."""
    try:
        tree = parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = [*_unbound(tree), *_not_of_pytorch(tree)]
    return [text for _, text in sorted(dict.fromkeys(found))]


def _unbound(tree: ast.Module) -> Iterator[tuple[int, str]]:
    bound = set(_IMPLICIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            return
        if isinstance(node, ast.Name) and (not isinstance(node.ctx, ast.Load) or node.id in ("exec", "globals")):
            bound.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bound.add(node.rest)
        elif isinstance(node, ast.Global):
            bound.update(node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in bound:
            near = get_close_matches(node.id, sorted(bound - _IMPLICIT), n=1, cutoff=0.75)
            yield node.lineno, _sentence(node, f"`{node.id}` is not defined anywhere in the file", near)


def _not_of_pytorch(tree: ast.Module) -> Iterator[tuple[int, str]]:
    modules = _modules(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Attribute | ast.Name):
            continue
        module = _module_of(node.value, modules)
        names = _names(module) if module in _STUBS else frozenset()
        if names and node.attr not in names and not node.attr.startswith("_"):
            near = get_close_matches(node.attr, sorted(names), n=1, cutoff=0.75)
            yield node.lineno, _sentence(node, f"PyTorch has no `{module}.{node.attr}`", near)


def _sentence(node: ast.expr, what: str, near: list[str]) -> str:
    meant = f"; did you mean {near[0]}?" if near else "."
    return f"Line {node.lineno} of the problem's file: {what}{meant}"


def _modules(tree: ast.Module) -> dict[str, str]:
    """Return the modules of PyTorch by the names under which the file imports them."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module in ("torch", "torch.nn"):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {name: module for name, module in found.items() if module in _STUBS}


def _module_of(value: ast.expr, modules: dict[str, str]) -> str:
    if isinstance(value, ast.Attribute):
        outer = _module_of(value.value, modules)
        return f"{outer}.{value.attr}" if outer else ""
    return modules.get(value.id, "") if isinstance(value, ast.Name) else ""


@cache
def _names(module: str) -> frozenset[str]:
    """Return every word in the files of a module, and its submodules; nothing where PyTorch is not installed."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return frozenset()
    folder = Path(spec.origin).parent
    texts = [path.read_text(encoding="utf-8") for name in _STUBS[module] if (path := folder / name).is_file()]
    if len(texts) < 2:
        return frozenset()
    inside = folder.joinpath(*module.split(".")[1:])
    parts = {path.stem for path in inside.iterdir()} if inside.is_dir() else set()
    return frozenset({*parts, *(word for text in texts for word in _WORD.findall(text))})
