"""Bulk copies and their barriers in plain C++, and launches whose blocks run side by side, a process each."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from agents.playbook.templates.cuda_ring import HARDWARE

_PLAIN = r"""
#include <cstdlib>
#include <map>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>
typedef unsigned long long Word, Barrier;  // a barrier: the phase, arrivals of a phase, arrivals that are missing
static inline Word value_of(const Word* at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
static inline void store_partial(Word* at, Word word) { __atomic_store_n(at, word, __ATOMIC_SEQ_CST); }
static inline Word load_partial(const Word* at) { sched_yield(); return value_of(at); }
static inline void init(Barrier* barrier, int arrivals) { store_partial(barrier, (Word)arrivals << 16 | arrivals); }
static inline void fence_barriers() {}
static inline void arrive(Barrier* barrier, int) {
    Word old = value_of(barrier), next;
    do next = (old & 0xffff) > 1 ? old - 1 : ((old >> 32) + 1) << 32 | (old & 0xffff0000) | (old >> 16 & 0xffff);
    while (!__atomic_compare_exchange_n(barrier, &old, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
}
static map<Barrier*, int> missing;
static inline void expect(Barrier* barrier, int bytes) {
    missing[barrier] = bytes;
    if (bytes == 0) arrive(barrier, 0);
}
static inline void wait(Barrier* barrier, unsigned parity) {
    while ((value_of(barrier) >> 32 & 1) == parity) sched_yield();
}
static inline void copied(void* to, const void* from, int bytes) {
    if (((size_t)to | (size_t)from | (size_t)bytes) & 15) abort();
    if (((size_t)to ^ (size_t)from) & 127) abort();  // lines of memory would be cut in two
    memcpy(to, from, bytes);
}
static inline void bulk_load(void* to, const void* from, int bytes, Barrier* barrier) {
    copied(to, from, bytes);
    if ((missing[barrier] -= bytes) == 0) arrive(barrier, 0);
}
static inline void bulk_store(void* to, const void* from, int bytes) { copied(to, from, bytes); }
static inline void commit_stores() {}
template <int N> static inline void wait_stores_read() {}
static inline void wait_stores() {}
static inline void fence_writes() {}
static struct BlockBarrier {
    pthread_barrier_t threads;
    BlockBarrier() { pthread_barrier_init(&threads, nullptr, K_BLOCK); }
} block_barrier;
static inline void sync_block() { pthread_barrier_wait(&block_barrier.threads); }
"""

REPLACED = {
    HARDWARE.strip("\n"): _PLAIN,
    "extern __shared__ __align__(128) unsigned char ring_bytes[]": "__shared__ __align__(128) unsigned char "
    "ring_bytes[1 << 18]",
}


def side_by_side(blocks: int, work: str) -> str:
    """Return C++ that runs ``work`` for each ``b`` in a process of its own; one that hangs is ended."""
    return (
        f"    pid_t processes[{blocks}];\n"
        f"    for (unsigned b = 0; b < {blocks}; ++b) if ((processes[b] = fork()) == 0) {{\n"
        f"        alarm(60);\n{work}        _exit(0);\n    }}\n"
        "    for (pid_t process : processes) waitpid(process, nullptr, 0);\n"
    )


def shared_buffer(size: int) -> np.ndarray[Any, Any]:
    """Return bytes that processes share."""
    return np.frombuffer(mmap.mmap(-1, max(size, 1)), dtype=np.uint8)[:size]
