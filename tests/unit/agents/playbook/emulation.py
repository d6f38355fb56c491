"""Plain CUDA kernels run on the CPU: threads of a block as threads of the machine, one block after the other.

Enough for kernels that use nothing but shared memory, ``__syncthreads`` and shuffles in which all threads of a warp
take part; says nothing about races between blocks.
A cooperative launch has one block, which its kernel must be content with; blocks of a team run side by side.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents.playbook.templates.cuda_matmul_copies import ASYNC
from cupilot.domain.header import render
from cupilot.domain.kernel import Kernel, ResolvedLaunch, resolve
from cupilot.domain.problem import ProblemFacts, Role
from cupilot.domain.tensor_map import ResolvedTensorMap
from tests.unit.agents.playbook.emulated_rings import REPLACED, shared_buffer, side_by_side
from tests.unit.agents.playbook.emulated_tensor_cores import emulated
from tests.unit.agents.playbook.references import as_tensor, outputs_of

_SHIM = r"""
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <vector>
using namespace std;
struct Place { unsigned x, y, z; };
struct alignas(8) float2 { float x, y; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static thread_local Place threadIdx, blockIdx;
static const Place gridDim = {1, 1, 1};
static pthread_barrier_t blocks_end, warps[32];
struct BarrierOfThreads {  // of a block's threads that have not returned
    mutex own;
    condition_variable all;
    int threads, left, there = 0;
    unsigned round = 0;
    void start(int count) { threads = left = count; }
    void open() { there = 0, ++round; all.notify_all(); }
    void wait() {
        unique_lock<mutex> held(own);
        const unsigned now = round;
        if (++there == left) open();
        else all.wait(held, [&] { return round != now; });
    }
    void leave() {
        lock_guard<mutex> held(own);
        if (--left == 0) left = threads;
        else if (there == left) open();
    }
};
static BarrierOfThreads barrier;
#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
#define __syncthreads() barrier.wait()
#define __builtin_assume(condition)
static int __syncthreads_or(int value) {
    static bool some;
    __syncthreads();
    some = false;
    __syncthreads();
    if (value) some = true;
    __syncthreads();
    return some;
}
#define __syncwarp() pthread_barrier_wait(&warps[threadIdx.x / 32])
static unsigned char shuffled[1024][8];
template <class T> T of_thread(unsigned thread, T value) {
    const unsigned own = threadIdx.x, warp = own / 32;
    memcpy(shuffled[own], &value, sizeof(T));
    pthread_barrier_wait(&warps[warp]);
    T other;
    memcpy(&other, shuffled[thread], sizeof(T));
    pthread_barrier_wait(&warps[warp]);
    return other;
}
template <class T> T __shfl_xor_sync(unsigned, T value, int by) { return of_thread(threadIdx.x ^ by, value); }
template <class T> T __shfl_sync(unsigned, T value, int lane) { return of_thread(threadIdx.x / 32 * 32 + lane, value); }
template <class T> T __shfl_up_sync(unsigned, T value, int by) {
    return of_thread(threadIdx.x % 32 < by ? threadIdx.x : threadIdx.x - by, value);
}
namespace cooperative_groups {
struct grid_group { void sync() const { __syncthreads(); } };
static inline grid_group this_grid() { return {}; }
}
static inline float __int_as_float(int bits) { float value; memcpy(&value, &bits, 4); return value; }
static inline float __uint_as_float(unsigned bits) { return __int_as_float((int)bits); }
static inline unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
static inline double __longlong_as_double(long long bits) { double value; memcpy(&value, &bits, 8); return value; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T __ldcs(const T* p) { return *p; }
template <class T> static inline void __stcs(T* p, T value) { *p = value; }
#define __expf expf
static inline float __fdividef(float a, float b) { return a / b; }
static inline float from_half(unsigned short bits) { _Float16 half; memcpy(&half, &bits, 2); return (float)half; }
static inline unsigned short to_half(float value) {
    const _Float16 half = (_Float16)value;
    unsigned short bits;
    memcpy(&bits, &half, 2);
    return bits;
}
using wide = unsigned long long;
static inline void atomicAdd(wide* p, wide v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
static inline void atomicMax(long long* p, long long v) {
    for (long long now = *p; v > now && !__atomic_compare_exchange_n(p, &now, v, 1, 0, 0);) {}
}
static inline void atomicMin(long long* p, long long v) {
    for (long long now = *p; v < now && !__atomic_compare_exchange_n(p, &now, v, 1, 0, 0);) {}
}
"""

_REPLACED = {
    "#include <cooperative_groups.h>": "",
    "extern __shared__ __align__(16) float staged[]": "__shared__ __align__(16) float staged[65536]",
    "extern __shared__ __align__(16) float tiles_a[]": "__shared__ __align__(16) float tiles_a[65536]",
    ASYNC.strip("\n"): """
template <int BYTES> static inline void copy_async(void* to, const void* from, bool inside) {
    if (inside) memcpy(to, from, BYTES);
    else memset(to, 0, BYTES);
}
static inline void commit_copies() {}
template <int PENDING> static inline void wait_for_copies() {}
""",
    'asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits))': "v = from_half(bits)",
    'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v))': "bits = to_half(v)",
    **REPLACED,
}

_MEETING = r"__syncthreads|__syncwarp|\breduce_|\b(combine|across|earlier)\("
"""Signs that the threads of a block wait for each other."""


def run_cuda(kernel: Kernel, facts: ProblemFacts, tensors: dict[str, torch.Tensor], builds: Path) -> list[torch.Tensor]:
    """Run a CUDA kernel over poisoned outputs and workspace; its outputs."""
    plan = resolve(kernel, facts)
    buffers: dict[str, np.ndarray[Any, Any]] = {}
    for spec in facts.tensors:
        buffers[spec.name] = shared_buffer(spec.storage_elements * spec.dtype.itemsize)
        buffers[spec.name].fill(0xCB)
        if spec.role is not Role.OUTPUT:
            flat = torch.as_strided(tensors[spec.name].detach(), (spec.storage_elements,), (1,))
            buffers[spec.name][:] = flat.contiguous().view(torch.uint8).numpy()
    for name, size in plan.workspace.items():
        buffers[name] = shared_buffer(size)
        buffers[name].fill(0xCB)
    library = ctypes.CDLL(str(_built(kernel, facts, plan.launches, builds)))
    for place, launch in enumerate(plan.launches):
        maps = {name: _described(item, buffers) for name, item in launch.tensor_maps.items()}
        places = [maps[name].ctypes.data if name in maps else buffers[name].ctypes.data for name in launch.args]
        pointers = (ctypes.c_void_p * len(places))(*places)
        getattr(library, f"launch{place}")(pointers)
    return [as_tensor(buffers[spec.name], spec) for spec in outputs_of(facts)]


def _described(item: ResolvedTensorMap, buffers: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Return a tensor map of two dimensions as the emulation reads it."""
    return np.array([buffers[item.tensor].ctypes.data, *item.dims, *item.strides, *item.box], dtype=np.int64)


_CONVERSIONS = {
    r"FN float widened\(.*": "FN float widened(unsigned short h) { _Float16 x; memcpy(&x, &h, 2); return (float)x; }",
    r"FN unsigned short halved\(.*": "FN unsigned short halved(float x) "
    "{ const _Float16 half = (_Float16)x; unsigned short h; memcpy(&h, &half, 2); return h; }",
}
"""Conversions to and from float16, which kernels have in PTX."""


def _built(kernel: Kernel, facts: ProblemFacts, launches: tuple[ResolvedLaunch, ...], builds: Path) -> Path:
    source = kernel.source.replace(
        '#include "problem.h"', render(facts, kernel.plan.values()).replace("#pragma once", "")
    )
    for old, new in _REPLACED.items():
        source = source.replace(old, new)
    source = emulated(source)
    for line, text in _CONVERSIONS.items():
        source = re.sub(line, text, source)
    text = "\n".join([source, *(_entry(place, launch, source) for place, launch in enumerate(launches))])
    shim = _compiled(builds, ".h", _SHIM, ".h.gch", "-x", "c++-header")
    return _compiled(builds, ".cpp", text, ".so", "-shared", "-include", str(shim.with_suffix("")))


def _compiled(builds: Path, kind: str, text: str, product: str, *flags: str) -> Path:
    """Return what the compiler made of a file with this text, in this run or an earlier one."""
    # unique symbols would give the shared memory of a template function to the first library that has one of its name
    always = ["-std=c++17", "-O1", "-w", "-fPIC", "-pthread", "-fno-gnu-unique"]
    checked = ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
    command = ["g++", *always, *checked, *flags]
    key = hashlib.sha256("\0".join([_compiler(), *command, text]).encode()).hexdigest()[:16]
    made = builds / f"emulated_{key}{product}"
    if not made.exists():
        builds.mkdir(parents=True, exist_ok=True)
        # under names of this process's own until both are whole: another may make the same
        source, scratch = (builds / f"{os.getpid()}_{key}{suffix}" for suffix in (kind, product))
        source.write_text(text)
        done = subprocess.run([*command, "-o", scratch, source], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:3000]
        source.replace(builds / f"emulated_{key}{kind}")
        scratch.replace(made)
    return made


@cache
def _compiler() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout


def _entry(place: int, launch: ResolvedLaunch, source: str) -> str:
    body = source[source.index(f" {launch.kernel}(") :]
    body = body[: body.index("\n}")]
    types = [item.rsplit(" ", 1)[0] for item in body[body.index("(") + 1 : body.index(") {")].split(", ")]
    types = [item.replace("p_", "") for item in types]
    given = [
        f"*(const CUtensorMap*)pointers[{n}]" if kind.endswith("CUtensorMap") else f"({kind})pointers[{n}]"
        for n, kind in enumerate(types)
    ]
    call = f"{launch.kernel}({', '.join(given)});"
    blocks, threads = 1 if launch.cooperative else launch.grid[0], launch.block[0]
    if not re.search(_MEETING, body):
        loops = f"for (unsigned b = 0; b < {blocks}; ++b) for (unsigned t = 0; t < {threads}; ++t)"
        return (
            f'extern "C" void launch{place}(void** pointers) {{\n'
            f"    {loops} {{ blockIdx = {{b, 0, 0}}; threadIdx = {{t, 0, 0}}; {call} }}\n}}"
        )
    ended = "barrier.leave(); pthread_barrier_wait(&blocks_end);"
    if "sync_block" in source and launch.cooperative:
        work = side_by_side(launch.grid[0], _threads(threads, f"blockIdx = {{b, 0, 0}}; {call} {ended}"))
    else:
        each = f"{{ blockIdx = {{b, 0, 0}}; {call} {ended} }}"
        work = _threads(threads, f"for (unsigned b = 0; b < {blocks}; ++b) {each}")
    return f'extern "C" void launch{place}(void** pointers) {{\n{work}}}'


def _threads(count: int, work: str) -> str:
    """Return C++ that runs ``work`` on each thread of a block."""
    return (
        f"    barrier.start({count});\n    pthread_barrier_init(&blocks_end, nullptr, {count});\n"
        "    vector<thread> threads;\n"
        "    for (auto& warp : warps) pthread_barrier_init(&warp, nullptr, 32);\n"
        f"    for (unsigned t = 0; t < {count}; ++t)\n"
        f"        threads.emplace_back([=] {{ threadIdx = {{t, 0, 0}}; {work} }});\n"
        "    for (auto& one : threads) one.join();\n"
    )
