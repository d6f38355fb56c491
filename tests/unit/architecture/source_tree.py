"""The source tree as the architecture tests see it: parsed modules and what each imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROOMS = ("cupilot", "agents", "gpu_worker", "workers", "api", "migrations")


@dataclass(frozen=True)
class Import:
    """One name that a module imports."""

    name: str
    """Dotted, e.g. ``cupilot.storage.db.tables.jobs``; for ``from a import b`` it is ``a.b``."""
    line: int
    at_module_level: bool

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Module:
    """One file of the source tree."""

    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def room(self) -> str:
        return self.path.relative_to(ROOT).parts[0]

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=str(self.path))

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        return tuple(_imports(self))

    def within(self, *folders: str) -> bool:
        """Return whether the file lies in one of these folders, or is one of these files."""
        return any(str(self) == folder or str(self).startswith(folder.rstrip("/") + "/") for folder in folders)

    def calls(self, *methods: str) -> list[int]:
        """Lines that call a function or method of one of these names."""
        return [
            node.lineno
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call)
            and (
                (isinstance(node.func, ast.Attribute) and node.func.attr in methods)
                or (isinstance(node.func, ast.Name) and node.func.id in methods)
            )
        ]


def _imports(module: Module) -> Iterator[Import]:
    def visit(node: ast.AST, at_module_level: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, at_module_level)
            elif isinstance(child, ast.ImportFrom):
                for alias in child.names:
                    yield Import(f"{_absolute(module, child)}.{alias.name}", child.lineno, at_module_level)
            elif not _type_checking_only(child):
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from visit(child, at_module_level and not inside)

    return visit(module.tree, True)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = list(module.path.relative_to(ROOT).with_suffix("").parts)[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def _type_checking_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


SUITES = tuple(f"cupilot/domain/problems/{suite}/" for suite in ("level1", "fusion", "inference"))


def modules() -> list[Module]:
    """Every module of the product; the built-in problems are data, not modules."""
    return [
        Module(path)
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if not any(data in path.as_posix() for data in (*SUITES, "cupilot/exports/runtime"))
    ]
