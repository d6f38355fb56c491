"""Arguments of launches: which tensors a group needs as pointers, and those that lie in the workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agents.playbook.compiler.emission import TYPES, Emitter, literal
from agents.playbook.compiler.groups import Group, Program, Target
from agents.playbook.compiler.tensors import Given, Scatter, Tensor
from agents.playbook.compiler.terms import Term


@dataclass(frozen=True)
class Pointers:
    """Names of pointers for one program."""

    program: Program
    workspace: str

    def of(self, tensor: object) -> str:
        """Return the name of the pointer to a tensor."""
        assert isinstance(tensor, Tensor)
        name = self.argument(tensor)
        return f"p_{name}" if name else f"w_{self.program.offsets[tensor]}_{TYPES[tensor.dtype].replace(' ', '_')}"

    def argument(self, tensor: Tensor) -> str:
        """Return the problem's tensor that this one lies in; empty where it lies in the workspace."""
        return tensor.name if isinstance(tensor, Given) else self.program.names.get(tensor, "")

    def beginning(self, tensor: Tensor) -> int:
        """Return the bytes from where a tensor's memory begins, the problem's or the workspace, to the tensor."""
        return 0 if self.argument(tensor) else self.program.offsets[tensor]

    def arguments(self, groups: Iterable[Group]) -> list[tuple[str, str, bool]]:
        """Return name, C++ type and whether it is only read, of each of the problem's tensors that groups use."""
        found: dict[str, tuple[str, str, bool]] = {}
        for group in groups:
            for tensor in [*group.loads(), *(target.tensor for target in group.targets)]:
                name = self.argument(tensor)
                if name:
                    found[name] = (name, TYPES[tensor.dtype], isinstance(tensor, Given))
        return list(found.values())

    def needs_workspace(self, group: Group) -> bool:
        """Return whether a group reads or writes the workspace."""
        tensors = [*group.loads(), *(target.tensor for target in group.targets)]
        return any(not self.argument(tensor) for tensor in tensors)

    def declarations(self, group: Group) -> list[str]:
        """Return the statements that name the workspace tensors of a group."""
        lines: dict[str, None] = {}
        for tensor in [*group.loads(), *(target.tensor for target in group.targets)]:
            if not self.argument(tensor):
                kind = TYPES[tensor.dtype]
                lines[f"{kind}* {self.of(tensor)} = ({kind}*)(arena + {self.program.offsets[tensor]}LL);"] = None
        return list(lines)

    def parameters(self, groups: Iterable[Group], *, workspace: bool) -> str:
        """Return a C++ parameter list."""
        items = [
            f"const {kind}* __restrict__ p_{name}" if given else f"{kind}* p_{name}"
            for name, kind, given in self.arguments(groups)
        ]
        return ", ".join([*items, *(["char* arena"] if workspace else [])])

    def launch_arguments(self, groups: Iterable[Group], *, workspace: bool) -> tuple[str, ...]:
        """Return the names that a launch passes, in the parameters' order."""
        names = [name for name, _, _ in self.arguments(groups)]
        return (*names, *([self.workspace] if workspace else []))


@dataclass(frozen=True)
class Stored:
    """A value that is to be stored, as C++ text."""

    pointer: str
    offset: str
    kind: str
    """Type of the value, in a register."""
    value: str
    inside: str
    """Condition under which it is stored; empty for always."""

    @property
    def statement(self) -> str:
        """Return the statement that stores it."""
        text = f"st({self.pointer}, {self.offset}, {self.value});"
        return f"if ({self.inside}) {text}" if self.inside else text


def values(group: Group, pointer: Callable[[object], str], accumulated: str) -> tuple[list[str], list[Stored]]:
    """Return the statements that compute a group's targets, and what is to be stored."""
    names: dict[Term, str] = {} if group.accumulated is None else {group.accumulated: accumulated}
    emitter = Emitter(names, pointer, "v")
    found = []
    for target in group.targets:
        (value,) = emitter.emit(unrounded(target.value, target.tensor))
        (offset,) = emitter.emit(target.tensor.offset(target_index(group, target)))
        inside = "" if target.inside is None else emitter.emit(target.inside)[0]
        kind = held_as(target.tensor)
        found.append(Stored(pointer(target.tensor), offset, kind, f"({kind}){value}", inside))
    return emitter.lines, found


def stores(group: Group, pointer: Callable[[object], str], accumulated: str) -> list[str]:
    """Return the statements that write a group's targets; ``accumulated`` is the reduction's result."""
    lines, found = values(group, pointer, accumulated)
    return [*lines, *(each.statement for each in found)]


def store(pointer: str, tensor: Tensor, offset: str, value: str) -> str:
    """Return the statement that writes an element of a tensor's type."""
    return f"st({pointer}, {offset}, ({held_as(tensor)}){value});"


def held_as(tensor: Tensor) -> str:
    """Return the C++ type of an element in a register."""
    kind = TYPES[tensor.dtype]
    return "float" if kind in ("f16", "bf16") else kind


def unrounded(value: Term, tensor: Tensor) -> Term:
    """Return a value that is to be stored in a tensor without the rounding that storing it does."""
    return value.args[0] if value.op == "round" and value.data == tensor.dtype else value


def store_of(target: Target, pointer: Callable[[object], str], offset: str, value: str) -> str:
    """Return the statement that writes a value at an offset of a target."""
    return store(pointer(target.tensor), target.tensor, offset, value)


def first_values(scatter: Scatter, pointer: Callable[[object], str]) -> str:
    """Return the statement that writes the value of an element that no item comes to, at offset ``o``."""
    return f"st({pointer(scatter)}, (idx)o, {literal(scatter.first, 'int64')});"


def brought(group: Group, scatter: Scatter, pointer: Callable[[object], str]) -> list[str]:
    """Return the statements by which an item comes to its element."""
    emitter = Emitter({}, pointer, "v")
    value, offset = emitter.emit(group.targets[0].value, scatter.offset(group.place))
    return [*emitter.lines, f"fn_bring_{scatter.kind}({pointer(scatter)} + {offset}, {value});"]


def target_index(group: Group, target: Target) -> tuple[Term, ...]:
    """Return the index at which a target is written."""
    index = target.place or group.index
    assert len(target.tensor.shape) == len(index)
    return index
