"""Launches of the ``cuda`` target in the making: the statements of each, and the kernels that hold them in the end."""

from __future__ import annotations

from dataclasses import dataclass

from agents.playbook.compiler.cuda import merged
from agents.playbook.compiler.cuda.tiles import Tiled, Tiles
from agents.playbook.compiler.emission import statements
from agents.playbook.compiler.groups import Group, Program
from agents.playbook.compiler.parameters import Pointers
from cupilot.domain.kernel import MAX_LAUNCHES, Launch, Tunable

BLOCK = 256
"""Threads of a block."""


@dataclass
class Cuda:
    """Launches in the making."""

    program: Program
    pointers: Pointers
    workspace_bytes: int
    tiles: Tiles | None = None
    """Tiles of products; None for a thread a result."""

    def __post_init__(self) -> None:
        self.parts: list[merged.Part] = []
        self.functions: dict[str, None] = {}
        """Device functions that launches call, each once."""

    def add(self, name: str, group: Group, body: list[str], blocks: int, *, extra: bool = False) -> None:
        """Add the work of a launch over so many blocks."""
        self.add_tiled(name, group, Tiled(body, blocks, 0, []), extra=extra)

    def add_tiled(self, name: str, group: Group, made: Tiled, *, extra: bool = False) -> None:
        """Add the work of a launch with what it needs beyond its statements."""
        workspace = extra or self.pointers.needs_workspace(group)
        text = "\n".join(made.lines)
        used = [line for line in self.pointers.declarations(group) if declared(line) in text]
        lines, blocks = (*used, *made.lines), min(made.blocks, 2**31 - 1)
        maps = tuple(made.maps(name, self.pointers)) if made.maps is not None else ()
        self.parts.append(
            merged.Part(
                name,
                group,
                lines,
                blocks,
                workspace,
                made.shared_bytes,
                made.resident,
                made.threads,
                maps,
            )
        )
        self.functions |= dict.fromkeys(made.functions)

    def kernels(self) -> tuple[list[str], list[Launch], dict[str, Tunable]]:
        """Return functions, launches and tunables: a kernel a part, or for several where there are too many parts."""
        functions, launches = list[str](), list[Launch]()
        for parts in merged.segments(self.parts, MAX_LAUNCHES):
            if len(parts) == 1:
                functions.append(self._kernel(parts[0]))
                launches.append(self._launch(parts[0]))
            else:
                more, launch = merged.merged(parts, self.pointers, BLOCK)
                functions += more
                launches.append(launch)
        cooperative = any(launch.cooperative for launch in launches)
        return functions, launches, {merged.BLOCKS: merged.TUNABLE} if cooperative else {}

    def _kernel(self, part: merged.Part) -> str:
        maps = [
            f"const __grid_constant__ CUtensorMap map_{letter}" for letter, _ in zip("abcde", part.maps, strict=False)
        ]
        parameters = ", ".join([*maps, self.pointers.parameters([part.group], workspace=part.workspace)])
        bounds = f"{part.threads}, {part.resident}" if part.resident > 1 else f"{part.threads}"
        head = f'extern "C" __global__ void __launch_bounds__({bounds}) {part.name}({parameters}) {{'
        return "\n".join([head, *statements(part.lines, 1), "}"])

    def _launch(self, part: merged.Part) -> Launch:
        arguments = self.pointers.launch_arguments([part.group], workspace=part.workspace)
        return Launch(
            kernel=part.name,
            args=(*(item.name for item in part.maps), *arguments),
            grid=(str(part.blocks),),
            block=(str(part.threads),),
            shared_bytes=str(part.shared_bytes),
        )


def declared(line: str) -> str:
    """Return the name that a pointer's declaration declares."""
    return line.split(" = ", maxsplit=1)[0].rsplit("* ", maxsplit=1)[-1]
