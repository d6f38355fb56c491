"""Duties of every module to its reader, and what only few modules may do."""

from __future__ import annotations

import ast

from tests.unit.architecture.source_tree import Module

MAX_LINES = 400


def test_every_module_opens_with_a_docstring(modules: list[Module]) -> None:
    silent = [str(m) for m in modules if m.text.strip() and ast.get_docstring(m.tree) is None]
    assert not silent, "no opening docstring (what it does and does not do):\n" + "\n".join(silent)


def test_no_module_is_longer_than_a_reader_can_hold(modules: list[Module]) -> None:
    long = {str(m): m.text.count("\n") for m in modules}
    over = [f"{name}: {lines} lines" for name, lines in long.items() if lines > MAX_LINES]
    assert not over, f"more than {MAX_LINES} lines:\n" + "\n".join(over)


def test_nothing_is_left_for_later(modules: list[Module]) -> None:
    marks = ("TODO", "FIXME", "XXX", "HACK")
    found = [
        f"{m}:{number}: {line.strip()}"
        for m in modules
        for number, line in enumerate(m.text.splitlines(), start=1)
        if any(mark in line for mark in marks)
    ]
    assert not found, "unfinished:\n" + "\n".join(found)


def test_transactions_are_opened_at_the_edge_only(modules: list[Module]) -> None:
    """One transaction a request or a step: a repository that committed would cut it in two."""
    edges = ("cupilot/storage/db/engine.py", "cupilot/storage/keys.py")  # the latter is a command line
    inner = [m for m in modules if m.within("cupilot/storage") and not m.within(*edges)]
    assert inner
    found = [f"{m}:{line}" for m in inner for line in m.calls("commit", "transaction", "begin", "sessionmaker")]
    found += [f"{m}:{line}" for m in modules for line in m.calls("commit")]
    assert not found, (
        "commits belong to cupilot.storage.db.engine.Database.transaction, opened by api and workers:\n"
        + ("\n".join(found))
    )


def test_messages_leave_through_the_outbox_relay_only(modules: list[Module]) -> None:
    """A message that is sent beside the outbox is lost, or speaks of a row that was rolled back."""
    senders = {str(m) for m in modules if m.calls("delay", "apply_async", "send_task")}
    assert len(senders) <= 1, f"more than the outbox relay publishes messages: {sorted(senders)}"
    assert all(sender.startswith("workers/") for sender in senders), f"only workers publish: {sorted(senders)}"


def test_states_are_changed_by_their_owner_only(modules: list[Module]) -> None:
    """Nobody but an owner assigns ``.state``: transitions of jobs and their parts, llm_calls of model calls."""
    owners = ("cupilot/storage/db/transitions.py", "cupilot/storage/models/calls.py")
    found = [
        f"{m}:{node.lineno}: {ast.unparse(node)}"
        for m in modules
        if m.within("workers", "api", "cupilot/storage") and not m.within(*owners)
        for node in ast.walk(m.tree)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and target.attr == "state" and ast.unparse(target.value) != "self"
    ]
    assert not found, "use cupilot.storage.db.transitions:\n" + "\n".join(found)
