"""Techniques with a template for pointwise operators, and the conditions under which each applies."""

from __future__ import annotations

from agents.playbook.conditions import Case, Check, always, fast_unit, launch_bounds, polynomial
from agents.playbook.operators import Pointwise
from agents.playbook.templates.cuda_packs import lanes


def _pointwise(case: Case) -> Pointwise:
    assert isinstance(case.operator, Pointwise)
    return case.operator


def _pointwise_vectors(case: Case) -> str | None:
    width = lanes(_pointwise(case), case.options)
    return f"the tensor has fewer than {width} elements" if _pointwise(case).size < width else None


def _coarsening(case: Case) -> str | None:
    operator = _pointwise(case)
    values = case.number("thread_coarsening", "items") * lanes(operator, case.options) * len(operator.full)
    if values > 64:
        return f"{values} values a thread do not fit its registers"
    return "the tensor is too small" if operator.size < 32 * values else None


def _unrolled_grid(case: Case) -> str | None:
    return None if "grid_stride" in case.options else "there is no loop to unroll without grid_stride"


def _nontemporal_pointwise(case: Case) -> str | None:
    small = _pointwise(case).size * 4 <= case.device.cache_bytes
    return "the output fits the cache" if small else None


CUDA: dict[str, Check] = {
    "vector_loads": _pointwise_vectors,
    "thread_coarsening": _coarsening,
    "grid_stride": always,
    "streaming_access": always,
    "read_only_cache": always,
    "loop_unrolling": _unrolled_grid,
    "launch_bounds": launch_bounds,
    "fast_exp": fast_unit,
}

CPU: dict[str, Check] = {
    "threads": always,
    "simd": always,
    "polynomial_exp": polynomial,
    "loop_unrolling": lambda case: None if "simd" in case.options else "the compiler unrolls the plain loop itself",
    "nontemporal_stores": _nontemporal_pointwise,
    "prefetch": always,
}
