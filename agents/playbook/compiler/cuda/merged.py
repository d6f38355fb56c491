"""Cooperative launches that do the work of several, one after the other, with a barrier of all blocks between them.

So graphs of more groups than a plan has launches have a kernel: recurrent layers, stacks of layers. Each block walks
over the blocks that a group's own launch would have had.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from agents.playbook.compiler.emission import statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.parameters import Pointers
from cupilot.domain.kernel import Launch, Tunable
from cupilot.domain.tensor_map import TensorMap

BLOCKS = "BLOCKS"
TUNABLE = Tunable(value=108, choices=(108, 264))
"""Blocks of a launch, which its card holds at once: one on each multiprocessor of an A100, two on each of an H100."""
SHARED_BYTES = 40 * 1024
"""Of a block, for the group that is at work; two blocks share a multiprocessor."""
_SHARED = re.compile(r"^(?P<indent>\s*)__shared__ (?P<type>.+?) (?P<items>\w+\[.*\]);$")
_ITEM = re.compile(r"(?P<name>\w+)(?P<shape>(?:\[[^\]]+\])+)")


@dataclass(frozen=True)
class Part:
    """The work of one launch: a group's statements, which are those of a block."""

    name: str
    group: Group
    lines: tuple[str, ...]
    blocks: int
    workspace: bool
    shared_bytes: int = 0
    """Dynamic shared memory of a block."""
    resident: int = 1
    """Blocks of a multiprocessor that registers must do for."""
    threads: int = 256
    """Threads of a block."""
    maps: tuple[TensorMap, ...] = ()
    """Tensor maps of the first and the second operand of a product, whose launch is its own."""


def segments(parts: Sequence[Part], most: int) -> list[list[Part]]:
    """Return parts in order, in as many launches as are allowed: those of the fewest blocks share one.

    Large ones keep their own, since a cooperative launch fills its card with few threads.
    """
    found, largest = [[part] for part in parts], [part.blocks for part in parts]
    while len(found) > most:
        joined = [max(pair) for pair in pairwise(largest)]
        place = joined.index(min(joined))
        found[place : place + 2] = [found[place] + found[place + 1]]
        largest[place : place + 2] = [joined[place]]
    return found


def merged(parts: Sequence[Part], pointers: Pointers, threads: int) -> tuple[list[str], Launch]:
    """Return the functions and the launch that do these parts one after the other."""
    name = f"{parts[0].name}_to_{parts[-1].name}"
    groups = [part.group for part in parts]
    workspace = any(part.workspace for part in parts)
    functions = [_function(part, pointers) for part in parts]
    body = [
        f"__shared__ __align__(16) unsigned char scratch[{SHARED_BYTES}];",
        "const cooperative_groups::grid_group grid = cooperative_groups::this_grid();",
    ]
    for place, part in enumerate(parts):
        if place:
            body.append("grid.sync();")
        body += [
            f"for (unsigned block = blockIdx.x; block < {part.blocks}u; block += gridDim.x) {{",
            f"    {part.name}({', '.join([*_passed(part, pointers), 'block', 'scratch'])});",
            "    __syncthreads();",
            "}",
        ]
    head = f'extern "C" __global__ void __launch_bounds__({threads}, 2)'
    entry = [f"{head} {name}({pointers.parameters(groups, workspace=workspace)}) {{", *statements(body, 1), "}"]
    arguments = pointers.launch_arguments(groups, workspace=workspace)
    launch = Launch(
        kernel=name,
        args=arguments,
        grid=(BLOCKS,),
        block=(str(threads),),
        shared_bytes=str(max(part.shared_bytes for part in parts)),
        cooperative=True,
    )
    return [*functions, "\n".join(entry)], launch


def _passed(part: Part, pointers: Pointers) -> list[str]:
    names = [f"p_{name}" for name, _, _ in pointers.arguments([part.group])]
    return [*names, *(["arena"] if part.workspace else [])]


def _function(part: Part, pointers: Pointers) -> str:
    given = pointers.parameters([part.group], workspace=part.workspace)
    parameters = ", ".join([*([given] if given else []), "const unsigned block", "unsigned char* scratch"])
    lines = [re.sub(r"\bblockIdx\.x\b", "block", line) for line in _in_scratch(part.lines)]
    head = f"static __device__ __noinline__ void {part.name}({parameters}) {{"
    return "\n".join([head, *statements(lines, 1), "}"])


def _in_scratch(lines: Sequence[str]) -> list[str]:
    """Return statements whose shared arrays lie one behind the other in the block's scratch memory."""
    changed, end = list[str](), "0"
    for line in lines:
        found = _SHARED.match(line)
        if found is None:
            changed.append(line)
            continue
        for item in _ITEM.finditer(found["items"]):
            name = item["name"]
            changed += [
                f"{found['indent']}typedef {found['type']} {name}_type{item['shape']};",
                f"{found['indent']}{name}_type& {name} = *reinterpret_cast<{name}_type*>(scratch + {end});",
                f"{found['indent']}constexpr int {name}_end = {end} + (int)(sizeof({name}_type) + 15) / 16 * 16;",
            ]
            end = f"{name}_end"
    if end != "0":
        changed.append(f'static_assert({end} <= {SHARED_BYTES}, "scratch");')
    return changed
