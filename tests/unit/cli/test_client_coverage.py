"""Whatever the client can do, a command does: found by reading what each command's code calls, helpers included."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any

import pytest

from cupilot.client import Client
from tests.unit.cli.test_help import COMMANDS

METHODS = {name for name in dir(Client) if not name.startswith("_")}
NEED_NONE = {
    "all_deliveries": "webhooks log pages through deliveries",
    "all_experiment_jobs": "experiment report --csv jobs prints them",
    "all_experiments": "experiment list pages through experiments",
    "all_pool_entries": "pool list shows the newest, pool export writes all",
    "all_problems": "problems shows a page, which holds every built-in one",
    "all_steps": "steps pages through them",
    "batch_steps": "batch status --steps reads all of them, page by page",
    "close": "every command closes its client by leaving a with block",
    "events": "events reads all of them, page by page",
    "experiment_figure": "experiment report writes the download, which has every figure",
    "experiment_jobs": "experiment report --csv jobs prints them",
    "keys": "key list shows all of them, page by page",
    "members": "team members shows all of them, page by page",
    "team_events": "events reads all of them, page by page",
    "teams": "team list shows all of them, page by page",
    "user": "user list shows all users",
    "users": "user list shows all users, page by page",
    "wait": "watch follows the job with its events",
    "webhook": "webhooks list shows all there is to one",
    "webhooks": "webhooks list shows all of them, page by page",
}
"""Methods without a command, and what is there instead."""


@cache
def used() -> dict[str, set[str]]:
    """The commands that use a method, by the method's name."""
    found: dict[str, set[str]] = {name: set() for name in METHODS}
    for name, command in COMMANDS.items():
        for method in called(inspect.unwrap(command.callback), set()) & METHODS:
            found[method].add(name)
    return found


def called(code: Callable[..., Any], seen: set[Any]) -> set[str]:
    """Return what this function or class asks of a ``client``, with those of the command line that it names."""
    seen.add(code)
    tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    found = set(asked_of_client(tree))
    for named in named_by(tree, vars(sys.modules[code.__module__])):
        if named not in seen:
            found |= called(named, seen)
    return found


def asked_of_client(tree: ast.AST) -> Iterator[str]:
    """The attributes of everything that is called ``client``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "client":
            yield node.attr


def named_by(tree: ast.AST, names: dict[str, Any]) -> Iterator[Callable[..., Any]]:
    """Functions and classes of the command line that stand in the code, imports inside of functions included."""
    names = names | dict(imported(tree))
    for node in ast.walk(tree):
        named = names.get(node.id) if isinstance(node, ast.Name) else None
        if (inspect.isfunction(named) or inspect.isclass(named)) and named.__module__.startswith("cupilot.cli."):
            yield named


def imported(tree: ast.AST) -> Iterator[tuple[str, Any]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cupilot.cli."):
            module = import_module(node.module or "")
            yield from ((alias.asname or alias.name, getattr(module, alias.name)) for alias in node.names)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_method_has_a_command_or_a_reason(method: str) -> None:
    assert used()[method] or method in NEED_NONE, f"no command uses Client.{method}"


def test_only_methods_without_a_command_are_excused() -> None:
    assert NEED_NONE.keys() <= METHODS
    assert {method: used()[method] for method in NEED_NONE if used()[method]} == {}


def test_commands_are_found_behind_helpers_and_inner_imports() -> None:
    assert used()["candidate"] == {"candidate"}
    assert used()["put_member"] == {"team add"}
    assert used()["follow"] >= {"watch", "evolve"}
    assert used()["download"] == {"evolve", "result"}
    assert used()["stream_team_events"] == {"events"}
