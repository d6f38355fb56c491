"""Parts of tiled CUDA matrix products: tile sizes, the block's place, tile copies, the second stage."""

from __future__ import annotations

from dataclasses import dataclass

from agents.playbook.operators import Matmul
from agents.playbook.templates.cuda_matmul_copies import contiguous_axis
from agents.playbook.templates.matmul_text import address, finished
from agents.playbook.templates.source import Options, Source, fill
from cupilot.domain.kernel import Launch

LINES_OF_A_WARPGROUP = 64
"""Of the operand that is in registers, in one ``wgmma``."""


def shares_first(operator: Matmul) -> bool:
    """Return whether ``wgmma`` reads the first operand from shared memory.

    It can where that one's depth is contiguous.
    """
    return contiguous_axis(operator.a, depth_is_row=False) == "depth"


@dataclass(frozen=True)
class Tiling:
    """The tile of a block, and how its threads divide it."""

    m: int
    n: int
    k: int
    threads: int
    rows: int
    """Rows of the result a thread (or, on tensor cores, a warp or warpgroup) computes."""
    cols: int
    stages: int
    """Buffers for each operand's tile."""
    pad: int
    parts: int
    group: int
    """Tile rows whose blocks run together; 0 for plain order."""
    cluster_m: int = 1
    """Tiles, one below the other, of the blocks of a cluster."""
    cluster_n: int = 1

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n

    @classmethod
    def of(cls, operator: Matmul, options: Options) -> Tiling:
        """Return the tiling that a strategy asks for."""
        m, n, k = (options.number("shared_tiling", name, size) for name, size in _DEFAULT_TILE)
        if "warpgroup_mma" in options:
            return cls._of_warpgroups(operator, options, m, n, k)
        if "tensor_cores" in options:
            rows, cols = options.number("tensor_cores", "warp_m", 64), options.number("tensor_cores", "warp_n", 32)
            threads = m // rows * (n // cols) * 32
        else:
            rows, cols = (options.number("register_blocking", name, 1) for name in ("rows", "cols"))
            threads = m // rows * (n // cols)
        stages = options.number("async_copy", "stages", 2 if "double_buffering" in options else 1)
        pad = options.number("bank_padding", "words", 0)
        parts = options.number("split_k", "parts", 1)
        return cls(m, n, k, threads, rows, cols, stages, pad, parts, options.number("block_swizzle", "group", 0))

    @classmethod
    def _of_warpgroups(cls, operator: Matmul, options: Options, m: int, n: int, k: int) -> Tiling:
        """Return the tiling for warpgroups.

        One multiplies 64 lines of one operand by all of the other's tile; one more copies.
        """
        first = shares_first(operator)
        lines = n if first else m
        blocks = options.number("cluster_multicast", "blocks", 1)
        return cls(
            m=m,
            n=n,
            k=k,
            threads=(lines // LINES_OF_A_WARPGROUP + 1) * 128,
            rows=m if first else LINES_OF_A_WARPGROUP,
            cols=LINES_OF_A_WARPGROUP if first else n,
            stages=options.number("tma_loads", "stages", 2),
            pad=0,
            parts=options.number("split_k", "parts", 1),
            group=options.number("block_swizzle", "group", 0),
            cluster_m=1 if first else blocks,
            cluster_n=blocks if first else 1,
        )

    def blocks(self, operator: Matmul) -> int:
        """Return the number of blocks of the whole product."""
        tiles = -(-operator.m // (self.m * self.cluster_m)) * -(-operator.n // (self.n * self.cluster_n))
        return tiles * self.cluster * operator.batches * self.parts

    def part(self, operator: Matmul) -> int:
        """Return the depth of one part of a split product: whole tiles."""
        return -(-operator.k // self.parts // self.k) * self.k or self.k


_DEFAULT_TILE = (("tile_m", 128), ("tile_n", 128), ("tile_k", 16))


def add_place(source: Source, operator: Matmul, tiling: Tiling) -> list[str]:
    """Add the constants of the tiling to the source; return statements that say which tile a block computes."""
    source.constants(parts=tiling.parts, part=tiling.part(operator))
    span_m, span_n = _span("TILE_M", tiling.cluster_m), _span("TILE_N", tiling.cluster_n)
    number = "blockIdx.x" if tiling.cluster == 1 else f"(blockIdx.x / {tiling.cluster})"
    source.add(
        """
        constexpr int TILE_M = $M, TILE_N = $N, TILE_K = $K, THREADS = $THREADS, STAGES = $STAGES;
        constexpr long long TILES_M = (K_M + $SPAN_M - 1) / ($SPAN_M), TILES_N = (K_N + $SPAN_N - 1) / ($SPAN_N);
        """,
        M=tiling.m,
        N=tiling.n,
        K=tiling.k,
        THREADS=tiling.threads,
        STAGES=tiling.stages,
        SPAN_M=span_m,
        SPAN_N=span_n,
    )
    source.add(INSIDE)
    lines = [
        f"const long long tile = {number} % (TILES_M * TILES_N), rest = {number} / (TILES_M * TILES_N);",
        "const long long batch = rest % K_BATCHES" + (", part = rest / K_BATCHES;" if tiling.parts > 1 else ";"),
    ]
    order, (down, across) = tile_order(tiling.group)
    lines += order
    if tiling.cluster > 1:
        lines.append(f"const int rank = blockIdx.x % {tiling.cluster};")
    own_m, own_n = _within("TILE_M", tiling.cluster_m), _within("TILE_N", tiling.cluster_n)
    lines += [
        f"const long long i0 = {down} * {span_m}{own_m}, j0 = {across} * {span_n}{own_n};",
        *_depth(operator, tiling),
    ]
    return lines


def _depth(operator: Matmul, tiling: Tiling) -> list[str]:
    """Return statements on the depth of a block's part, whose tiles are a constant where they can be.

    With a variable number, the compiler gives sources of multiply-adds registers of one bank.
    """
    if tiling.parts == 1:
        bounds = "constexpr long long k_first = 0, k_last = K_K;"
    elif tiling.part(operator) * tiling.parts == operator.k:
        bounds = "const long long k_first = part * K_PART, k_last = k_first + K_PART;"
    else:
        end = "k_first + K_PART < K_K ? k_first + K_PART : K_K"
        return [
            f"const long long k_first = part * K_PART, k_last = {end};",
            "const int tiles = k_first < k_last ? (int)((k_last - k_first + TILE_K - 1) / TILE_K) : 0;",
        ]
    return [bounds, "const int tiles = (int)((k_last - k_first + TILE_K - 1) / TILE_K);"]


def tile_order(group: int) -> tuple[list[str], tuple[str, str]]:
    """Return statements that place ``tile`` in the order of blocks, and text of its row and its column of tiles."""
    if not group:
        return [], ("tile / TILES_N", "tile % TILES_N")
    lines = [
        f"// block_swizzle: {group} tile rows at a time, column by column",
        f"const long long first_m = tile / ({group} * TILES_N) * {group};",
        f"const long long in_group = tile % ({group} * TILES_N);",
        f"const long long high = TILES_M - first_m < {group} ? TILES_M - first_m : {group};",
    ]
    return lines, ("(first_m + in_group % high)", "in_group / high")


def _span(tile: str, blocks: int) -> str:
    """Return the number of rows or columns that the blocks of a cluster compute together."""
    return tile if blocks == 1 else f"{tile} * {blocks}"


def _within(tile: str, blocks: int) -> str:
    return "" if blocks == 1 else f" + rank * {tile}"


def operand_pointers(operator: Matmul) -> list[str]:
    """Return statements that point ``a`` and ``b`` at the operands of the block's batch."""
    return [
        f"const float* const a = {address(operator.a, 'batch', '0', '0')};",
        f"const float* const b = {address(operator.b, 'batch', '0', '0')};",
    ]


INSIDE = """
constexpr bool WHOLE_M = K_M % TILE_M == 0, WHOLE_N = K_N % TILE_N == 0;
"""
"""True if every tile lies wholly inside: then no element needs a check."""

COPIED = """
constexpr bool WHOLE_K = K_K % (TILE_K * K_PARTS) == 0;
constexpr int PAD = $PAD;
"""
"""Constants of tiles that threads copy: whether every one is as deep as all, and the padding of their rows."""


def pipeline(stages: int, *, asynchronous: bool, double: bool, late: str = "TILE_K") -> list[str]:
    """Return the loop over tiles along k.

    It calls lambdas: ``fetch`` and ``put``, or ``start_copies``, and ``compute`` for a range of a tile's depth. Of two
    buffers, the next tile is put into its own once this one is multiplied up to the depth ``late``.
    """
    if asynchronous:
        text = f"""
        for (int t = 0; t < STAGES - 1; ++t) {{
            if (t < tiles) start_copies(t, t);
            commit_copies();
        }}
        for (int t = 0; t < tiles; ++t) {{
            wait_for_copies<{stages - 2}>();
            __syncthreads();
            if (t + STAGES - 1 < tiles) start_copies((t + STAGES - 1) % STAGES, t + STAGES - 1);
            commit_copies();
            compute(t % STAGES, 0, TILE_K);
        }}
        wait_for_copies<0>();
        __syncthreads();
        """
    elif double:
        text = f"""
        // double_buffering: the next tile is on its way while this one is multiplied
        constexpr int LATE = {late};
        if (tiles > 0) {{ fetch(0); put(0); }}
        __syncthreads();
        #pragma unroll 1
        for (int t = 0; t + 1 < tiles; ++t) {{
            fetch(t + 1);
            compute(t % 2, 0, LATE);
            put((t + 1) % 2);
            compute(t % 2, LATE, TILE_K);
            __syncthreads();
        }}
        if (tiles > 0) compute((tiles - 1) % 2, 0, TILE_K);
        __syncthreads();
        """
    else:
        text = """
        for (int t = 0; t < tiles; ++t) {
            fetch(t);
            put(0);
            __syncthreads();
            compute(0, 0, TILE_K);
            __syncthreads();
        }
        """
    return fill(text).split("\n")


def second_stage(source: Source, operator: Matmul) -> Launch:
    """Return the kernel that adds the parts of a split product, always in the same order."""
    bias = f"*({address(operator.bias, 'batch', 'i', 'j')})" if operator.bias else ""
    inputs = [f"const float* __restrict__ p_{operator.bias.name}"] if operator.bias else []
    place = "const long long j = item % K_N, i = item / K_N % K_M, batch = item / K_N / K_M;"
    source.add(
        """
        // split_k: the parts of each element are added up
        extern "C" __global__ void __launch_bounds__(256) add_parts($ARGUMENTS) {
            const long long item = (long long)blockIdx.x * 256 + threadIdx.x;
            if (item >= K_BATCHES * K_M * K_N) return;
            $PLACE
            float total = 0.0f;
            for (long long part = 0; part < K_PARTS; ++part) total += p_parts[part * (K_BATCHES * K_M * K_N) + item];
            p_$OUT[item] = $VALUE;
        }
        """,
        ARGUMENTS=", ".join(["const float* __restrict__ p_parts", *inputs, f"float* __restrict__ p_{operator.output}"]),
        PLACE=[place] if operator.bias else [],
        OUT=operator.output,
        VALUE=finished(operator, "total", bias),
    )
    names = ("parts", *((operator.bias.name,) if operator.bias else ()), operator.output)
    blocks = -(-operator.batches * operator.m * operator.n // 256)
    return Launch(kernel="add_parts", args=names, grid=(str(blocks),), block=("256",))


def result_place(operator: Matmul, parts: int) -> str:
    """Return the statement that points ``to`` at the block's result.

    Its batch's matrix, or its part of the workspace.
    """
    if parts == 1:
        return f"float* const to = p_{operator.output} + batch * K_M * K_N;"
    return "float* const to = p_parts + (part * K_BATCHES + batch) * K_M * K_N;"


def result_value(operator: Matmul, value: str, row: str, col: str, parts: int) -> str:
    """Return the text of a finished element; parts of a split product are finished by the second stage."""
    if parts > 1:
        return value
    bias = f"*({address(operator.bias, 'batch', row, col)})" if operator.bias else ""
    return finished(operator, value, bias)
