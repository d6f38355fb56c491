"""Says in words and numbers how an output is wrong, for a person or an agent that mends the kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from pydantic import JsonValue

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import TensorSpec
from gpu_worker.judge.deviation import Expected, plain, stretches, wrong_mask
from gpu_worker.judge.runner_link import KernelFailed

EXAMPLES = 4
EXAMINED = 2**20
"""Of more wrong elements in one stretch so many, evenly chosen, are looked at: a mask of a billion has no room."""
MOSTLY = 0.999


def wrong_output(
    spec: TensorSpec, expected: Expected, got: torch.Tensor, unwritten: torch.Tensor, *, tolerance: float, law: str
) -> KernelFailed:
    """Return the failure of an output that deviates by more than the tolerance."""
    mask = wrong_mask(expected, got, tolerance)
    wrong = _places(mask)
    details: dict[str, JsonValue] = {
        "law": law,
        "output": spec.name,
        "wrong_fraction": wrong.count / max(mask.numel(), 1),
        "tolerance": tolerance,
    }
    missing = _places(unwritten & mask)
    if missing.count:
        return _unwritten(spec, missing, details, law)
    if not wrong.count:  # the window that was compared in chunks disagrees with this pass only by a race
        message = f"{spec.name} changed while it was being checked"
        return KernelFailed(FailureKind.NON_DETERMINISTIC, message, **details)
    details |= _examples(spec, expected, got, wrong)
    pattern = _pattern(expected, got, wrong)
    if pattern:
        details["pattern"] = pattern
    share = f"{100 * wrong.count / mask.numel():.3g} % of {spec.name} is wrong under law {law!r}"
    example = f"at {details['index']}: expected {details['expected']}, got {details['got']}"
    message = f"{share}; {example}{f'; {pattern}' if pattern else ''}"
    return KernelFailed(FailureKind.WRONG_VALUE, message, **details)


@dataclass(frozen=True)
class _Places:
    """Positions at which a flat mask is true."""

    count: int
    some: torch.Tensor
    """Ascending flat indices, the first and the last among them; all of them where there are few."""
    total: int
    """Length of the mask."""


def _places(mask: torch.Tensor) -> _Places:
    count, start = 0, 0
    sampled = []
    for part in stretches(mask):
        places = part.nonzero().reshape(-1) + start
        start += part.numel()
        count += places.numel()
        step = max(1, places.numel() // EXAMINED)
        sampled += [places[::step], places[-1:]]
    return _Places(count, torch.unique_consecutive(torch.cat(sampled)), mask.numel())


def _unwritten(spec: TensorSpec, missing: _Places, details: dict[str, JsonValue], law: str) -> KernelFailed:
    share = missing.count / missing.total
    details["unwritten_fraction"] = share
    details["index"] = _index(int(missing.some[0]), spec.shape)
    details["last_index"] = _index(int(missing.some[-1]), spec.shape)
    message = (
        f"{100 * share:.3g} % of {spec.name} was never written (law {law!r}), from {details['index']} "
        f"to {details['last_index']}"
    )
    return KernelFailed(FailureKind.UNWRITTEN_OUTPUT, message, **details)


def _examples(spec: TensorSpec, expected: Expected, got: torch.Tensor, wrong: _Places) -> dict[str, JsonValue]:
    wanted, actual, some = plain(expected.values).reshape(-1), plain(got).reshape(-1), wrong.some
    picks = [int(some[0]), *(int(some[i]) for i in _evenly(some.numel(), EXAMPLES)[1:])]
    rows: list[JsonValue] = [
        {"index": _index(place, spec.shape), "expected": _number(wanted[place]), "got": _number(actual[place])}
        for place in dict.fromkeys(picks)
    ]
    return {
        "index": _index(picks[0], spec.shape),
        "expected": _number(wanted[picks[0]]),
        "got": _number(actual[picks[0]]),
        "examples": rows,
    }


def _evenly(total: int, count: int) -> list[int]:
    """Return indices from first to last; in integers, because float32 misses those above 2^24."""
    return [place * (total - 1) // (count - 1) for place in range(count)]


def _pattern(expected: Expected, got: torch.Tensor, wrong: _Places) -> str:
    """Describe in words what the wrong elements have in common; empty where nothing is."""
    wanted, actual = expected.values.reshape(-1)[wrong.some], got.reshape(-1)[wrong.some]
    if actual.is_floating_point() and bool(actual.isnan().all()):
        return "all wrong elements are NaN"
    if bool((actual == 0).all()):
        return "all wrong elements are zero"
    if actual.numel() > 1 and bool((actual == actual[0]).all()):
        return "all wrong elements have one value"
    if actual.is_floating_point() and actual.numel() > 3:
        ratio = actual.double() / wanted.double()
        middle = float(ratio.median())
        if math.isfinite(middle) and float(((ratio - middle).abs() < 1e-3 * abs(middle)).double().mean()) > MOSTLY:
            return f"wrong elements are the expected ones times {middle:.6g}"
    return _place_pattern(wrong)


def _place_pattern(wrong: _Places) -> str:
    first, last = int(wrong.some[0]), int(wrong.some[-1])
    if wrong.count == wrong.total:
        return "every element is wrong"
    if wrong.count == last - first + 1:
        if last == wrong.total - 1:
            return f"everything from flat index {first} on is wrong"
        return f"one contiguous stretch is wrong, flat indices {first} to {last}"
    return ""


def _index(flat: int, shape: tuple[int, ...]) -> list[JsonValue]:
    index: list[JsonValue] = []
    for size in reversed(shape):
        index.insert(0, flat % size)
        flat //= size
    return index


def _number(value: torch.Tensor) -> JsonValue:
    number = value.item()
    if isinstance(number, float) and not math.isfinite(number):
        return str(number)
    return number
