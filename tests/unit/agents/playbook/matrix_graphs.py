"""Graphs with inverses, solutions and determinants of small matrices, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.unit.agents.playbook.operators_under_test import Case

linalg = torch.linalg


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _regular(size: int) -> torch.Tensor:
    """Matrices whose rows have to be swapped: the first has a zero in its corner."""
    matrices = _random(7, size, size) + 3 * torch.eye(size).flip(0)
    matrices[0, 0, 0] = 0.0
    return matrices


def _positive(size: int) -> torch.Tensor:
    factors = _random(7, size, size)
    return factors @ factors.mT + size * torch.eye(size)


def _of(function: Callable[..., Any], *inputs: torch.Tensor) -> Case:
    return Case(function, dict(zip("abc", inputs, strict=False)))


def _gaussian(x: torch.Tensor, mean: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    lower = linalg.cholesky(covariance)
    white = linalg.solve_triangular(lower, (x - mean).unsqueeze(-1), upper=False)
    return -0.5 * white.square().sum((-2, -1)) - lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _kalman_gain(spread: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Of a filter that sees two of four states: what a measurement moves each of them by."""
    noise = torch.eye(2) * 0.1
    return linalg.solve(seen @ spread @ seen.mT + noise, seen @ spread).mT


def matrix_graphs() -> dict[str, Case]:
    """All of them."""
    return {
        "inverse_of_3": _of(linalg.inv, _regular(3)),
        "inverse_of_6": _of(torch.inverse, _regular(6)),
        "solution": _of(linalg.solve, _regular(4), _random(7, 4, 2)),
        "solution_of_a_column": _of(linalg.solve, _regular(4), _random(7, 4)),
        "solution_for_many": _of(linalg.solve, _regular(3), _random(3, 5)),
        "solution_from_the_right": _of(lambda a, b: linalg.solve(a, b, left=False), _regular(4), _random(7, 2, 4)),
        "determinant": _of(linalg.det, _regular(4)),
        "logarithm_of_a_determinant": _of(linalg.slogdet, _regular(5)),
        "cholesky": _of(linalg.cholesky, _positive(5)),
        "cholesky_above": _of(lambda a: linalg.cholesky(a, upper=True), _positive(4)),
        "cholesky_solution": _of(
            lambda a, b: torch.cholesky_solve(b, linalg.cholesky(a)), _positive(4), _random(7, 4, 2)
        ),
        "triangle_below": _of(lambda a, b: linalg.solve_triangular(a, b, upper=False), _positive(4), _random(7, 4, 3)),
        "triangle_above": _of(
            lambda a, b: linalg.solve_triangular(a, b, upper=True, left=False), _positive(4), _random(7, 3, 4)
        ),
        "triangle_of_ones": _of(
            lambda a, b: linalg.solve_triangular(a, b, upper=False, unitriangular=True),
            _random(7, 3, 3),
            _random(7, 3, 2),
        ),
        "exponential_of_turns": _of(lambda a: torch.matrix_exp(a - a.mT), _random(7, 4, 4) * 3),
        "exponentials_of_all_sizes": _of(
            torch.matrix_exp, _random(7, 3, 3) * torch.tensor([0, 1e-9, 1e-3, 0.3, 1, 4, 15]).view(7, 1, 1)
        ),
        "gaussian": _of(_gaussian, _random(7, 3), _random(7, 3), _positive(3)),
        "kalman_gain": _of(_kalman_gain, _positive(4), _random(2, 4)),
    }
