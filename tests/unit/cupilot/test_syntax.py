"""Python text is parsed by one thread at a time."""

from __future__ import annotations

import ast
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cupilot.domain import syntax

ROOMS = ("agents", "api", "cupilot", "workers")
ROOT = Path(__file__).parents[3]


def test_no_two_threads_parse_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most = 0, 0
    guard = threading.Lock()
    parsed = ast.parse

    def watched(*args: str, **keywords: str) -> ast.AST:
        nonlocal inside, most
        with guard:
            inside += 1
            most = max(most, inside)
        try:
            return parsed(*args, **keywords)  # type: ignore[call-overload, no-any-return]
        finally:
            with guard:
                inside -= 1

    monkeypatch.setattr(ast, "parse", watched)
    text = "x = " + "+".join(["1"] * 200)
    with ThreadPoolExecutor(8) as threads:
        trees = list(threads.map(syntax.parse, [text] * 100))
        expressions = list(threads.map(syntax.parse_expression, ["a + b"] * 100))
    assert most == 1
    assert all(isinstance(tree, ast.Module) for tree in trees)
    assert all(isinstance(tree, ast.Expression) for tree in expressions)


def test_what_threads_of_the_service_parse_goes_that_way() -> None:
    """The judge's processes have one thread that parses; everything else shares its process with other requests."""
    direct = [
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if "ast.parse(" in path.read_text(encoding="utf-8")
    ]
    assert direct == ["cupilot/domain/syntax.py"]
