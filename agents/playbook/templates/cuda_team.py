"""Long rows on the ``cuda`` target: a team of resident blocks shares each row, and a ring of bulk copies feeds them.

Every block keeps its pieces of the row in shared memory from the first pass to the last, while pieces of the next rows
arrive and results leave. Rows of any length: elements before the first whole pack and after the last are the first
block's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agents.playbook.operators import Rows
from agents.playbook.templates.cuda_accumulators import SIZES, WARP, WORDS, accumulator
from agents.playbook.templates.cuda_math import functions
from agents.playbook.templates.cuda_packs import type_of, types_of
from agents.playbook.templates.cuda_ring import CLEAR, HARDWARE, ONLINE, RING, TEAM_REDUCTION
from agents.playbook.templates.cuda_row_body import Body, Sharing, Statistic, body, indented
from agents.playbook.templates.cuda_rows import output_types, row_packs, simplified
from agents.playbook.templates.passes import Pass
from agents.playbook.templates.source import Options, Source, arguments
from cupilot.domain.hardware import Device
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Workspace
from cupilot.domain.problem import Target

BLOCK = 512
"""Threads of a block that calculate; a warp more keeps the ring full."""
PACK = 16
"""Bytes that a thread reads at a time."""
PIECE, LINE = 16 * 1024, 8
"""Bytes that a piece of all inputs together has at most, and packs of a line of memory, of which it has whole ones."""
STATIC_SHARED = 3 * 1024
"""Shared memory left to barriers and statistics."""
MOST_SLOTS, AHEAD = 64, 2
"""Pieces that a block has room for at most, and of the rows to come at least."""
SPARE = 8
"""One in so many blocks may be added to a team."""
CLEARING = 256
"""Threads of the blocks that clear the partial statistics."""


@dataclass(frozen=True)
class Team:
    """A division of rows over blocks and pieces."""

    blocks: int
    teams: int
    vec: int
    """Elements of a pack."""
    piece: int
    """Packs of a piece."""
    pieces: int
    """Pieces of a row."""
    slots: int
    own: int
    """Pieces of a row that one block has at most."""

    @property
    def reads_ahead(self) -> bool:
        """True if a block has room for its part of the next row while it waits for the others to finish this one."""
        return self.blocks > 1 and self.slots >= 2 * self.own + AHEAD


def team_of(operator: Rows, options: Options, device: Device) -> Team:
    """Return how a strategy's teams divide the rows: evenly, in pieces of about the same size."""
    units, inputs = max(device.units, 1), len(operator.elements)
    blocks = _blocks(row_bytes(operator), options.number("team_rows", "share", 96) * 1024, units)
    vec = PACK // operator.itemsize(operator.elements[0])
    packs = -(-operator.length // vec)
    packs += LINE - 1 if operator.length % (LINE * vec) else 0
    most = max(PIECE // inputs // PACK // BLOCK, 1) * BLOCK
    own = -(-packs // (blocks * (most + LINE)))
    piece = -(-packs // (blocks * own * LINE)) * LINE
    room = device.shared_bytes_per_block - STATIC_SHARED
    return Team(
        blocks=blocks,
        teams=max(1, min(units // blocks, operator.rows)),
        vec=vec,
        piece=piece,
        pieces=-(-packs // piece),
        slots=min(MOST_SLOTS, room // (piece * PACK * inputs)),
        own=own,
    )


def row_bytes(operator: Rows) -> int:
    """Return the bytes of a row of all inputs."""
    return operator.length * sum(operator.itemsize(name) for name in operator.elements)


def _blocks(row: int, share: int, units: int) -> int:
    """Return how many blocks share a row: a few more than are needed where that leaves no multiprocessor idle."""
    least = -(-row // share)
    return max(range(least, least + least // SPARE + 1), key=lambda blocks: (units // blocks * blocks, -blocks))


def render(operator: Rows, options: Options, device: Device) -> Kernel:
    """Return the kernels of a row operator whose rows are shared by teams of blocks."""
    operator = simplified(operator, options)
    team = team_of(operator, options, device)
    packed = Options({**options.techniques, "vector_loads": {"width": PACK // 4}})
    chain = team.own * team.piece * team.vec // BLOCK
    made = body(operator, packed, Sharing(True, 1, "ring", "", "K_BLOCK", chain=chain))
    passes = made.statistics()
    lag = len(passes) == 1 and team.reads_ahead
    words = max(sum(SIZES[entry.kind] // 4 for entry in entries) for _, entries in passes)
    partials = team.teams * 4 * words * team.blocks
    source = Source(f"Row operator: {operator.rows} rows of {operator.length}, {team.blocks} blocks a row", options)
    source.constants(rows=operator.rows, length=operator.length)
    source.add(
        """
        constexpr int K_BLOCK = $BLOCK, K_TEAM = $TEAM, K_TEAMS = $TEAMS, K_INPUTS = $INPUTS;
        constexpr int K_LINE = $LINE, K_PIECE = $PIECE;  // packs of a line of memory, and of a piece
        constexpr int K_PIECES = $PIECES, K_ITEMS = $ITEMS, K_SLOTS = $SLOTS;  // of a row, of a thread, of the ring
        constexpr int K_LAG = $LAG, K_WORDS = $WORDS, K_PARTIALS = $PARTIALS;
        """,
        BLOCK=BLOCK,
        TEAM=team.blocks,
        TEAMS=team.teams,
        INPUTS=len(operator.elements),
        LINE=LINE,
        PIECE=team.piece,
        PIECES=team.pieces,
        ITEMS=-(-team.piece // BLOCK),
        SLOTS=team.slots,
        LAG=int(lag),
        WORDS=words,
        PARTIALS=partials,
    )
    source.add(row_packs(operator, packed))
    source.add(functions([expr for _, expr in operator.outputs], options, always=("exp",) if made.single else ()))
    source.add("\n".join(accumulator(kind).strip("\n") for kind in made.accumulators()))
    online = ONLINE if made.single == "Online" else ""
    source.parts.append((WORDS + WARP + online).strip("\n"))
    for number, (_, entries) in enumerate(passes):
        source.add("\n".join(_partial(number, entries)))
    source.parts += [text.strip("\n") for text in (HARDWARE, RING, TEAM_REDUCTION, CLEAR)]
    source.add(
        """
        extern "C" __global__ void __launch_bounds__(K_BLOCK + 32, 1) rows_of_teams($ARGUMENTS) {
            $BODY
        }
        """,
        ARGUMENTS=", ".join(
            [
                arguments(operator.inputs, [], types_of(operator)),
                "unsigned long long* p_partials",
                arguments([], output_types(operator)),
            ]
        ),
        BODY=[*_opening(made), *_rounds(made, passes, lag=lag)],
    )
    return source.kernel(Target.CUDA, _plan(operator, team, partials))


def _plan(operator: Rows, team: Team, partials: int) -> LaunchPlan:
    clear = Launch(
        kernel="clear_partials", args=("partials",), grid=(str(-(-partials // CLEARING)),), block=(str(CLEARING),)
    )
    launch = Launch(
        kernel="rows_of_teams",
        args=(*operator.inputs, "partials", operator.outputs[0][0]),
        grid=(str(team.teams * team.blocks),),
        block=(str(BLOCK + 32),),
        shared_bytes=str(team.slots * team.piece * PACK * len(operator.elements)),
        cooperative=True,
    )
    places = Workspace(name="partials", bytes=str(partials * 8))
    return LaunchPlan(launches=(clear, launch), workspace=(places,))


def _partial(number: int, entries: list[Statistic]) -> list[str]:
    merges = " ".join(f"{entry.name}.merge(other.{entry.name});" for entry in entries)
    reduced = " ".join(f"mine.{entry.name} = reduce_warp(mine.{entry.name});" for entry in entries)
    return [
        f"struct Partial{number} {{",
        *indented([f"{entry.kind} {entry.name};" for entry in entries]),
        f"    __device__ void merge(const Partial{number}& other) {{ {merges} }}",
        "};",
        f"__device__ __forceinline__ Partial{number} reduce_warp(Partial{number} mine) {{ {reduced} return mine; }}",
    ]


def _opening(made: Body) -> list[str]:
    operator = made.operator
    kind = type_of(operator, operator.elements[0])
    inputs = ", ".join(f"p_{name}" for name in operator.elements)
    return [
        "extern __shared__ __align__(128) unsigned char ring_bytes[];",
        "__shared__ __align__(8) Barrier full[K_SLOTS], ready[K_SLOTS];",
        f"{kind}* const ring = reinterpret_cast<{kind}*>(ring_bytes);",
        "const int lane = threadIdx.x, team = blockIdx.x / K_TEAM, rank = blockIdx.x % K_TEAM;",
        "const int first_piece = rank * K_PIECES / K_TEAM, last_piece = (rank + 1) * K_PIECES / K_TEAM;",
        "if (lane == 0) {",
        "    for (int slot = 0; slot < K_SLOTS; ++slot) {",
        "        init(&full[slot], 1);",
        "        init(&ready[slot], K_BLOCK / 32);",
        "    }",
        "    fence_barriers();",
        "}",
        "__syncthreads();",
        "if (lane >= K_BLOCK) {",
        f"    const {kind}* const inputs[K_INPUTS] = {{{inputs}}};",
        f"    if (lane == K_BLOCK) feed<{kind}>(",
        f"        ring, full, ready, inputs, p_{operator.outputs[0][0]}, team, first_piece, last_piece);",
        "    return;",
        "}",
        "Word* const partials = p_partials + team * (4 * K_WORDS * K_TEAM);",
        "const int rounds = (int)(K_ROWS - 1 - team) / K_TEAMS + 1;",
        "int arrived = 0, leaving = 0;  // slots of the next piece to read first, and to write",
        "unsigned int parity = 0;",
        *(f"const float s_{name} = *p_{name};" for name in operator.scalars),
    ]


def _rounds(made: Body, passes: list[tuple[Pass, list[Statistic]]], *, lag: bool) -> list[str]:
    """Return the loop over a team's rows; with a lag, the next row is read before the team has reduced this one."""
    lines: list[str] = []
    for number, (item, entries) in enumerate(passes):
        step = f"step * {len(passes)} + {number}" if len(passes) > 1 else "step"
        reading = _reading(made, passes[:number], item, entries)
        guard = ["if (step < rounds) {", *indented(reading), "}"] if lag else ["{", *indented(reading), "}"]
        fresh, wanted = ("step < rounds", f"{step} - K_LAG") if lag else ("true", step)
        lines += [f"Partial{number} mine_{number};", *guard]
        given = f"mine_{number}, partials, rank, {step}, {fresh}, {wanted}"
        lines.append(f"const Partial{number} all_{number} = reduce_team({given});")
    late = (
        [f"const float edge_{name} = last_{name};" for name in made.operator.elements] if lag and _edges(made) else []
    )
    writing = [*late, *_writing(made, passes)]
    lines += ["if (step >= K_LAG) {", *indented(writing), "}"] if lag else ["{", *indented(writing), "}"]
    names = made.operator.elements if _edges(made) else ()
    edges = [f"float edge_{name} = edge_value(p_{name}, team, rank, 0);" for name in names]
    edges += [f"float last_{name} = 0.0f;" for name in names if lag]
    ahead = [f"const float next_{name} = edge_value(p_{name}, team, rank, step + 1);" for name in names]
    turn = [f"last_{name} = edge_{name};" for name in names if lag]
    turn += [f"edge_{name} = next_{name};" for name in names]
    loop = "for (int step = 0; step < rounds + K_LAG; ++step) {"
    return [*edges, loop, *indented([*ahead, *lines, *turn]), "}"]


def _row(made: Body, known: list[tuple[Pass, list[Statistic]]], step: str) -> list[str]:
    """Return the place of a row, its inputs, and the results of the passes before."""
    operator = made.operator
    lines = [
        f"const long long row = team + (long long)({step}) * K_TEAMS, at = row * K_LENGTH;",
        "const int head = head_of(at), lead = lead_of(at, head);",
        *(f"const float r_{name} = p_{name}[row];" for name in operator.row_inputs),
    ]
    if _edges(made):
        lines += ["const int edge = edge_of(head);", "const bool has_edge = rank == 0 && edge < K_LENGTH;"]
    for number, (item, entries) in enumerate(known):
        lines += made.row_values(item.before)
        for entry in entries:
            lines += made.named(entry, f"all_{number}.{entry.name}")
    return lines


def _edges(made: Body) -> bool:
    return made.operator.length % (PACK // made.operator.itemsize(made.operator.elements[0])) != 0


def _reading(made: Body, known: list[tuple[Pass, list[Statistic]]], item: Pass, entries: list[Statistic]) -> list[str]:
    """Return a reducing pass over a block's pieces; the first one waits for them."""
    first = not known
    adds = [line for entry in entries for line in entry.add]
    lines = [*_row(made, known, "step"), *made.declarations(item, entries)]
    inner = made.pass_body(item, entries)
    slot = "arrived" if first else "slot"
    lines += [] if first else ["int slot = leaving;"]
    wait = ["wait(&full[arrived], parity);"] if first else []
    turn = [f"{slot} = next_slot({slot});", *(["if (arrived == 0) parity ^= 1u;"] if first else [])]
    lines += _pieces(made, slot, [*wait], inner, turn)
    lines += _edge(made, item, adds, values=made.by_packs)
    number = len(known)
    return [*lines, *(f"mine_{number}.{entry.name} = {entry.name};" for entry in entries)]


def _pieces(made: Body, slot: str, before: list[str], inner: list[str], after: list[str]) -> list[str]:
    kind = type_of(made.operator, made.operator.elements[0])
    places = [
        f"{kind}* const piece_{name} = ring + ({slot} * K_INPUTS + {number}) * (K_PIECE * K_VEC);"
        for number, name in enumerate(made.operator.elements)
    ]
    index = ["const int i = head + (piece * K_PIECE + q - lead) * K_VEC;"] if _uses(inner, "i") else []
    return [
        "for (int piece = first_piece; piece < last_piece; ++piece) {",
        *indented(
            [
                *before,
                *places,
                "const int from = first_of(lead, piece), end = end_of(lead, head, piece);",
                "#pragma unroll",
                "for (int item = 0; item < K_ITEMS; ++item) {",
                "    const int q = item * K_BLOCK + lane;",
                "    if (q >= from && q < end) {",
                *indented(indented([*index, *inner])),
                "    }",
                "}",
                *after,
            ]
        ),
        "}",
    ]


def _edge(made: Body, item: Pass, lines: list[str], *, values: bool = False) -> list[str]:
    """Return the same for the elements outside of whole packs."""
    if not _edges(made):
        return []
    inputs = [f"const float v_{name} = {made.single_value(name)};" for name in item.inputs]
    inner = [*inputs, *item.lines, *([f"const float values[1] = {{{item.values[0]}}};"] if values else [])]
    inner += [line.replace("$N", "") for line in lines]
    index = [f"const int {name} = {text};" for name, text in (("i", "edge"), ("k", "0")) if _uses(inner, name)]
    return ["if (has_edge) {", *indented([*index, *inner]), "}"]


def _uses(lines: list[str], name: str) -> bool:
    return any(re.search(rf"\b{name}\b", line) for line in lines)


def _writing(made: Body, passes: list[tuple[Pass, list[Statistic]]]) -> list[str]:
    item = made.layout.passes[-1]
    name = made.operator.outputs[0][0]
    after = [
        "fence_writes();",
        "__syncwarp();",
        "if ((lane & 31) == 0) arrive(&ready[leaving], 0);",
        "leaving = next_slot(leaving);",
    ]
    return [
        *_row(made, passes, "step - K_LAG"),
        *made.skipped(),
        *made.row_values(item.before),
        *_pieces(made, "leaving", [], made.map_body(), after),
        *_edge(made, item, [f"p_{name}[at + edge] = {item.values[0]};"]),
    ]
