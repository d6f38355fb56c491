"""C++ text of tiles that the copy engine (TMA) brings: barriers in shared memory, clusters, and copies by tensor maps.

PTX ISA 9.0, sections 9.7.9.27 (``cp.async.bulk.tensor``) and 9.7.13.15 (``mbarrier``).
"""

from __future__ import annotations

TENSOR_MAP = """
// tma_loads: the copy engine fills tiles, and barriers in shared memory count what has come
struct alignas(128) CUtensorMap { unsigned long long opaque[16]; };  // cuda.h's, which is long to read
"""

BARRIERS = """
using Barrier = unsigned long long;
__device__ __forceinline__ unsigned int at(const void* shared) {
    return (unsigned int)__cvta_generic_to_shared(shared);
}
__device__ __forceinline__ void init(Barrier* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void expect(Barrier* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(Barrier* barrier, int phase) {
    unsigned int done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(at(barrier)), "r"(phase) : "memory");
}
"""

ARRIVE_ALONE = """
__device__ __forceinline__ void arrive(Barrier* barrier, int) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at(barrier)) : "memory");
}
"""

CLUSTER = """
// cluster_multicast: blocks that share an operand's tile ask for a part each, and all of them are given it
__device__ __forceinline__ void arrive(Barrier* barrier, int block) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
        " mbarrier.arrive.shared::cluster.b64 _, [there]; }" :: "r"(at(barrier)), "r"(block) : "memory");
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
"""

_COPY = """
__device__ __forceinline__ void $NAME(void* to, const CUtensorMap& map, $COORDINATES, Barrier* barrier) {
    asm volatile("cp.async.bulk.tensor.${RANK}d.shared::cluster.global.mbarrier::complete_tx::bytes$MULTICAST"
        " [%0], [%1, {$PLACES}], [%$BARRIER]$MASK;"
        :: "r"(at(to)), "l"(&map), $GIVEN, "r"(at(barrier))$BLOCKS : "memory");
}
"""


def copy_function(name: str, rank: int, blocks: int) -> str:
    """Return the device function that asks for a box of a tensor map, for so many blocks of a cluster."""
    names, many = ["x", "y", "z"][:rank], blocks > 1
    parts = {
        "$NAME": name,
        "${RANK}": str(rank),
        "$COORDINATES": ", ".join(f"int {axis}" for axis in names),
        "$PLACES": ", ".join(f"%{2 + axis}" for axis in range(rank)),
        "$BARRIER": str(2 + rank),
        "$GIVEN": ", ".join(f'"r"({axis})' for axis in names),
        "$MULTICAST": ".multicast::cluster" if many else "",
        "$MASK": f", %{3 + rank}" if many else "",
        "$BLOCKS": f', "h"((unsigned short){(1 << blocks) - 1})' if many else "",
    }
    text = _COPY
    for key, value in parts.items():
        text = text.replace(key, value)
    return text
