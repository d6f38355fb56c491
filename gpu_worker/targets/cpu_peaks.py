"""Measures what this CPU can do at most: bandwidth by working set, multiply-add rate, cost of an empty call.

Standard library only; run in a sandbox that allows the compiler. Prints the fields of ``MeasuredPeaks`` as JSON. Takes
the best of many repeats: a peak is what the machine can do, not what it usually does.
Start: ``python -I -S cpu_peaks.py LAST_LEVEL_CACHE_BYTES``.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SECONDS_PER_POINT = 0.25
FMA_ROUNDS = 2_000_000

SOURCE = r"""
#include <cstddef>
#ifdef __x86_64__
#include <immintrin.h>
#endif
// The widest registers that there are: of wider vectors twelve chains would not fit into registers.
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define LANES (VECTOR_BYTES / 4)
typedef float vec __attribute__((vector_size(VECTOR_BYTES)));
static float sink;
extern "C" void fill(float* a, size_t n) {
  #pragma omp parallel for schedule(static)
  for (size_t i = 0; i < n; ++i) a[i] = 1.0f;
}
extern "C" void read_all(const float* a, size_t n) {
  float total = 0;
  #pragma omp parallel for simd schedule(static) reduction(+ : total)
  for (size_t i = 0; i < n; ++i) total += a[i];
  sink = total;
}
extern "C" void copy(const float* a, float* b, size_t n) {
  #pragma omp parallel for schedule(static)
  for (size_t block = 0; block < n / LANES; ++block) {
    vec value = *(const vec*)(a + block * LANES);
    #ifdef __clang__
    __builtin_nontemporal_store(value, (vec*)(b + block * LANES));
    #elif defined(__AVX512F__)
    _mm512_stream_ps(b + block * LANES, (__m512)value);
    #elif defined(__AVX__)
    _mm256_stream_ps(b + block * LANES, (__m256)value);
    #else
    *(vec*)(b + block * LANES) = value;
    #endif
  }
}
extern "C" void multiply_add(long rounds) {
  #pragma omp parallel
  {
    vec x[12];
    for (int k = 0; k < 12; ++k) x[k] = vec{} + (1.0f + k);
    vec a = vec{} + 0.999999f, b = vec{} + 1e-6f;
    for (long i = 0; i < rounds; ++i) {
      #pragma GCC unroll 12
      for (int k = 0; k < 12; ++k) x[k] = x[k] * a + b;
    }
    vec total = x[0];
    for (int k = 1; k < 12; ++k) total += x[k];
    #pragma omp critical
    sink += total[0];
  }
}
extern "C" void bf16_dots(long rounds) {
#ifdef __AVX512BF16__
  #pragma omp parallel
  {
    __m512 x[12];
    for (int k = 0; k < 12; ++k) x[k] = _mm512_set1_ps(k);
    __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f80), b = (__m512bh)_mm512_set1_epi16(0x3000);
    for (long i = 0; i < rounds; ++i) {
      #pragma GCC unroll 12
      for (int k = 0; k < 12; ++k) x[k] = _mm512_dpbf16_ps(x[k], a, b);
    }
    __m512 total = x[0];
    for (int k = 1; k < 12; ++k) total = _mm512_add_ps(total, x[k]);
    #pragma omp critical
    sink += ((vec)total)[0];
  }
#endif
}
extern "C" int has_bf16() {
#ifdef __AVX512BF16__
  return 1;
#else
  return 0;
#endif
}
extern "C" int lanes() { return LANES; }
extern "C" int threads() { int n = 0;
  #pragma omp parallel reduction(+ : n)
  n += 1;
  return n; }
extern "C" void empty(float*, float*) {}
"""

MOST_LANES, CHAINS = 16, 12


def compile_loops(folder: Path) -> ctypes.CDLL:
    """Build and load :data:`SOURCE`."""
    (folder / "peaks.cpp").write_text(SOURCE)
    # -mprefer-vector-width=512: gcc would halve the vectors of read_all on some CPUs
    flags = ["-O3", "-march=native", "-mprefer-vector-width=512", "-ffast-math", "-fopenmp", "-shared", "-fPIC", "-w"]
    target = folder / "peaks.so"
    subprocess.run(["g++", *flags, "-o", str(target), str(folder / "peaks.cpp")], check=True)
    return ctypes.CDLL(str(target))


def best_seconds(call: Callable[[], object], seconds: float = SECONDS_PER_POINT) -> float:
    """Return shortest of as many repeats as fit the time, at least five."""
    best = float("inf")
    end = time.perf_counter() + seconds
    repeats = 0
    while repeats < 5 or time.perf_counter() < end:
        started = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - started)
        repeats += 1
    return best


def bandwidth(loops: ctypes.CDLL, working_set: int) -> float:
    """Return best bytes a second of reading, and of copying, with this many bytes in all."""
    count = working_set // 8 // MOST_LANES * MOST_LANES
    size = ctypes.c_size_t
    memory = ctypes.create_string_buffer(8 * count + 128)
    start = (ctypes.addressof(memory) + 63) // 64 * 64
    both, first, second = ctypes.c_void_p(start), ctypes.c_void_p(start), ctypes.c_void_p(start + 4 * count)
    loops.fill(both, size(2 * count))
    reading = best_seconds(lambda: loops.read_all(both, size(2 * count)))
    copying = best_seconds(lambda: loops.copy(first, second, size(count)))
    return 8 * count / min(reading, copying)


def measure(cache_bytes: int) -> dict[str, object]:
    """Return all peaks of this machine, with the threads that OMP_NUM_THREADS gives."""
    with tempfile.TemporaryDirectory() as folder:
        loops = compile_loops(Path(folder))
        threads = loops.threads()
        work = 2 * loops.lanes() * CHAINS * FMA_ROUNDS * threads
        scalar = work / best_seconds(lambda: loops.multiply_add(ctypes.c_long(FMA_ROUNDS)))
        tensor = {}
        if loops.has_bf16():
            tensor["half"] = 2 * work / best_seconds(lambda: loops.bf16_dots(ctypes.c_long(FMA_ROUNDS)))
        pointer = ctypes.c_void_p(0)
        sets = (2**20, cache_bytes // 2, 8 * cache_bytes)
        return {
            "bandwidth": [(size, bandwidth(loops, size)) for size in sorted(sets)],
            "scalar_flops": scalar,
            "tensor_flops": tensor,
            "launch_seconds": best_seconds(lambda: loops.empty(pointer, pointer), 0.02),
        }


def main() -> None:
    """Measure this CPU and print its peaks."""
    sys.stdout.write(json.dumps(measure(int(sys.argv[1]))))


if __name__ == "__main__":
    main()
