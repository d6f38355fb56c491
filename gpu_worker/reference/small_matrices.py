"""Rules for linear algebra on small matrices: elimination and substitution, written out for each size.

They say what inverses, solutions and determinants are, in calls that graphs are made of; expected values come from
PyTorch itself (LAPACK, cuSOLVER). Larger matrices stay the calls that they are: the graph would be too long. Factors,
pivots and error codes that calls return besides are not computed: the matrix itself or zeros stand for them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial
from typing import Any

import torch

LARGEST = 8
"""Rows of a matrix that is written out."""

LARGEST_EXPONENT = 128
"""Rows of a matrix whose exponential is: some twenty products."""

_POWERS, _HALVINGS = 18, 10


def _too_large(matrix: torch.Tensor) -> bool:
    return matrix.is_complex() or not 0 < matrix.shape[-1] <= LARGEST


def _eliminated(matrix: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ``inverse(matrix) @ right`` by Gauss and Jordan, with the pivots and the sign of their order.

    Rows with the largest pivots come first, as in LAPACK (Golub and Van Loan, Matrix Computations, 3.4).
    """
    size = matrix.shape[-1]
    work = torch.cat([matrix, right], -1)
    rows = torch.arange(size, device=matrix.device)
    pivots, sign = [], torch.ones_like(matrix[..., 0, 0])
    for step in range(size):
        best = work[..., step:, step].abs().argmax(-1, keepdim=True) + step
        order = torch.where(rows == step, best, torch.where(rows == best, step, rows))
        work = work.gather(-2, order.unsqueeze(-1).expand(work.shape))
        sign = torch.where(best.squeeze(-1) == step, sign, -sign)
        pivot = work[..., step, step]
        pivots.append(pivot)
        top = (work[..., step, :] / pivot.unsqueeze(-1)).unsqueeze(-2)
        rest = work - work[..., :, step].unsqueeze(-1) * top
        work = torch.where((rows == step).unsqueeze(-1), top, rest)
    return work[..., size:], torch.stack(pivots, -1), sign


def _exponential(matrix: torch.Tensor) -> Any:
    """The series to its eighteenth power at a norm of one or less, then as many squarings as halvings.

    Higham, Functions of Matrices, 10.3; powers in groups of three (Paterson and Stockmeyer). Norms above 1,024 are
    beyond the halvings; what they give overflows, but for matrices that turn.
    """
    if matrix.is_complex() or matrix.shape[-1] > LARGEST_EXPONENT:
        return NotImplemented
    norm = matrix.abs().sum(-2).amax(-1)[..., None, None]
    halvings = norm.clamp(min=1.0).log2().ceil()
    small = matrix * torch.exp2(-halvings)
    square, identity = small @ small, torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    cube = small @ square
    result = cube / factorial(_POWERS)
    for power in range(_POWERS - 3, -1, -3):
        result = sum((item / factorial(power + at) for at, item in enumerate((identity, small, square))), result)
        result = cube @ result if power else result
    for step in range(_HALVINGS):
        result = torch.where(halvings > step, result @ result, result)
    return result


def _pivots(matrix: torch.Tensor) -> torch.Tensor:
    return torch.zeros(matrix.shape[:-1], dtype=torch.int32, device=matrix.device)


def _info(matrix: torch.Tensor) -> torch.Tensor:
    return torch.zeros(matrix.shape[:-2], dtype=torch.int32, device=matrix.device)


def _inverse(matrix: torch.Tensor, *, check_errors: bool = False) -> Any:  # noqa: ARG001
    if _too_large(matrix):
        return NotImplemented
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand(matrix.shape)
    return _eliminated(matrix, identity)[0], _info(matrix)


def _solution(
    matrix: torch.Tensor,
    right: torch.Tensor,
    *,
    left: bool = True,
    check_errors: bool = False,  # noqa: ARG001
) -> Any:
    """The ``X`` of ``matrix @ X = right``, or of ``X @ matrix = right``; ``right`` may be one column."""
    if _too_large(matrix):
        return NotImplemented
    column = right.dim() == 1 or right.shape == matrix.shape[:-1]
    columns = right.unsqueeze(-1) if column else right
    whole = torch.broadcast_shapes(matrix.shape[:-2], columns.shape[:-2])  # type: ignore[no-untyped-call]
    first = matrix if left else matrix.mT
    second = columns if left or column else columns.mT
    solved, _, _ = _eliminated(first.expand(*whole, *first.shape[-2:]), second.expand(*whole, *second.shape[-2:]))
    solved = solved.squeeze(-1) if column else solved if left else solved.mT
    return solved, matrix, _pivots(matrix), _info(matrix)


def _determinant(matrix: torch.Tensor) -> Any:
    if _too_large(matrix):
        return NotImplemented
    _, pivots, sign = _eliminated(matrix, matrix[..., :0])
    return pivots.prod(-1) * sign, matrix, _pivots(matrix)


def _log_determinant(matrix: torch.Tensor) -> Any:
    """Sign, and logarithm of the magnitude."""
    if _too_large(matrix):
        return NotImplemented
    _, pivots, sign = _eliminated(matrix, matrix[..., :0])
    return pivots.sign().prod(-1) * sign, pivots.abs().log().sum(-1), matrix, _pivots(matrix)


def _cholesky(matrix: torch.Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:  # noqa: ARG001
    """The lower triangle ``L`` of ``matrix = L @ L.T``, of which PyTorch reads the lower triangle too."""
    if _too_large(matrix):
        return NotImplemented
    matrix = matrix.mT if upper else matrix
    rows = torch.arange(matrix.shape[-1], device=matrix.device)
    columns: list[torch.Tensor] = []
    for step in range(matrix.shape[-1]):
        column = matrix[..., :, step]
        for earlier in columns:
            column = column - earlier * earlier[..., step].unsqueeze(-1)
        column = column / column[..., step].sqrt().unsqueeze(-1)
        columns.append(torch.where(rows >= step, column, 0.0))
    lower = torch.stack(columns, -1)
    return lower.mT if upper else lower, _info(matrix)


def _old_cholesky(matrix: torch.Tensor, upper: bool = False) -> Any:
    found = _cholesky(matrix, upper=upper)
    return found if found is NotImplemented else found[0]


def _cholesky_solution(right: torch.Tensor, factor: torch.Tensor, upper: bool = False) -> Any:
    """The ``X`` of ``L @ L.T @ X = right``."""
    if _too_large(factor):
        return NotImplemented
    lower = factor.mT if upper else factor
    return _triangular(lower.mT, _triangular(lower, right, upper=False), upper=True)


def _triangular(
    matrix: torch.Tensor, right: torch.Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """The ``X`` of ``matrix @ X = right`` (or ``X @ matrix``), row by row."""
    if _too_large(matrix):
        return NotImplemented
    if not left:
        turned = _triangular(matrix.mT, right.mT, upper=not upper, unitriangular=unitriangular)
        return turned.mT
    size = matrix.shape[-1]
    solved: dict[int, torch.Tensor] = {}
    for row in reversed(range(size)) if upper else range(size):
        value = right[..., row, :]
        for other, known in solved.items():
            value = value - matrix[..., row, other].unsqueeze(-1) * known
        solved[row] = value if unitriangular else value / matrix[..., row, row].unsqueeze(-1)
    return torch.stack([solved[row] for row in range(size)], -2)


def _no_errors(*_: Any, **__: Any) -> None:
    """PyTorch raises for a matrix without an answer, and a kernel cannot."""


SMALL_MATRICES: dict[str, Callable[..., Any]] = {
    "aten._linalg_check_errors.default": _no_errors,
    "aten._linalg_det.default": _determinant,
    "aten._linalg_slogdet.default": _log_determinant,
    "aten._linalg_solve_ex.default": _solution,
    "aten.cholesky.default": _old_cholesky,
    "aten.cholesky_solve.default": _cholesky_solution,
    "aten.linalg_cholesky_ex.default": _cholesky,
    "aten.linalg_inv_ex.default": _inverse,
    "aten.linalg_matrix_exp.default": _exponential,
    "aten.linalg_solve_triangular.default": _triangular,
}
