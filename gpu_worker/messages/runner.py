"""Messages between judge and runner: commands, and their answers.

Standard library only, because the runner has nothing else. The runner believes the judge; the judge validates what a
runner sends (:mod:`gpu_worker.judge.runner_link`), since host code of the kernel's may run there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

CHECKED = {"extra": "forbid"}
"""Pydantic's validation of an answer: it has no other fields."""

COPIED = -1
"""Place of a result that was copied to its slot."""

# Commands


@dataclass(frozen=True)
class Attach:
    """Map the judge's arena, whose descriptors come along."""

    handle: dict[str, Any]
    op: Literal["attach"] = "attach"


@dataclass(frozen=True)
class Lend:
    """Leave results of an imported file in this memory of the judge's, whose descriptor comes along."""

    handle: dict[str, Any]
    op: Literal["lend"] = "lend"


@dataclass(frozen=True)
class Free:
    """Let go of the results that were left in lent memory."""

    op: Literal["free"] = "free"


@dataclass(frozen=True)
class Load:
    """Load a binary and look up the entry points of its launches."""

    binary: str
    launches: Sequence[Mapping[str, Any]]
    """``ResolvedLaunch`` as JSON; of an imported file, one :class:`gpu_worker.signature.Signature`."""
    op: Literal["load"] = "load"


@dataclass(frozen=True)
class Bind:
    """Take these slots: byte offset in the arena by name of the tensor or workspace."""

    slots: Sequence[Mapping[str, int]]
    op: Literal["bind"] = "bind"


@dataclass(frozen=True)
class Run:
    """Run the whole plan once for each slot in this order."""

    order: Sequence[int]
    op: Literal["run"] = "run"


@dataclass(frozen=True)
class RunEmpty:
    """Do what a command to run an imported file costs beside the file: launch next to nothing, and wait for it."""

    op: Literal["run_empty"] = "run_empty"


@dataclass(frozen=True)
class Capture:
    """Make the whole plan, once for each slot in this order, one graph."""

    order: Sequence[int]
    op: Literal["capture"] = "capture"


@dataclass(frozen=True)
class Replay:
    """Run the graph that was captured last."""

    op: Literal["replay"] = "replay"


@dataclass(frozen=True)
class Reset:
    """Make the kernel's static memory what it was after loading."""

    op: Literal["reset"] = "reset"


Command: TypeAlias = Attach | Lend | Free | Load | Bind | Run | RunEmpty | Capture | Replay | Reset
_COMMANDS: dict[str, type[Command]] = {
    command.op: command for command in (Attach, Lend, Free, Load, Bind, Run, RunEmpty, Capture, Replay, Reset)
}

# Answers


@dataclass(frozen=True)
class Acknowledged:
    """The command was carried out."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = CHECKED
    ok: Literal[True] = True


@dataclass(frozen=True)
class Loaded:
    """The binary is loaded."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = CHECKED
    facts: dict[str, Any]
    """Worth recording, e.g. ``occupancy_pct``."""
    ok: Literal[True] = True


@dataclass(frozen=True)
class Captured:
    """The launches are a graph, unless there is a reason why they cannot be."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = CHECKED
    reason: str | None
    ok: Literal[True] = True


@dataclass(frozen=True)
class Timed:
    """All launches are done."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = CHECKED
    seconds: float
    """By the runner's own clock."""
    places: list[list[int]] = field(default_factory=list)
    """Places of each launch's results in lent memory, in bytes; :data:`COPIED` for one that was."""
    ok: Literal[True] = True


@dataclass(frozen=True)
class Freed:
    """Results were let go of."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = CHECKED
    ranges: list[list[int]]
    """[start, end) of the lent memory in which nothing lies, in bytes."""
    ok: Literal[True] = True


@dataclass(frozen=True)
class Failed:
    """The kernel did something wrong."""

    kind: str
    """A value of :class:`cupilot.domain.evaluation.FailureKind`."""
    message: str
    details: dict[str, Any] = field(default_factory=dict)
    ok: Literal[False] = False


Answer: TypeAlias = Acknowledged | Loaded | Captured | Timed | Freed | Failed


def as_json(message: Command | Answer) -> dict[str, Any]:
    """Return a message for the channel."""
    return dict(vars(message))


def command(data: Mapping[str, Any]) -> Command:
    """Return the command that the judge sent; raises KeyError or TypeError for what is none."""
    return _COMMANDS[data["op"]](**data)
