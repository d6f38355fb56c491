"""Outputs of null kernels: kernels that do not do the work, each of which some law of a problem has to refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from cupilot.domain.problem import Role, TensorSpec
from gpu_worker.judge.cases import Case
from gpu_worker.judge.deviation import Expected, moments
from gpu_worker.judge.reference_link import ReferenceLink
from gpu_worker.judge.refusal import UnusableReference


def run_on_half(
    reference: ReferenceLink, specs: Sequence[TensorSpec], inputs: Sequence[torch.Tensor], own: Sequence[torch.Tensor]
) -> list[torch.Tensor] | None:
    """Return the outputs where the batch's second half is its first once more; ``own`` are those of the batch as it is.

    A kernel that skips the second half can know no better: of a mean it gives the first half's, of a sum twice it.
    Shapes stay, and with them what indices in one input mean in another. None where that tells nothing: outputs
    have the batch's rows, there is one row, the answer does not change, or there is none.
    """
    batch = inputs[0].shape[0] if inputs[0].dim() > 0 else 1
    half = batch // 2
    if half == 0 or any(tensor.dim() > 0 and tensor.shape[0] == batch for tensor in own):
        return None
    doubled = [
        torch.cat([tensor[:half], tensor[:half], tensor[2 * half :]])
        if spec.role is Role.INPUT and tensor.dim() > 0 and tensor.shape[0] == batch
        else tensor
        for spec, tensor in zip(specs, inputs, strict=False)
    ]
    try:
        outputs = reference.run(doubled)
    except UnusableReference:  # equal rows may have no answer, as no inverse; or memory no room for another batch
        return None
    alike = [tensor.shape for tensor in outputs] == [tensor.shape for tensor in own]
    return outputs if alike and not all(map(torch.equal, outputs, own)) else None


def null_outputs(
    case: Case, own: Sequence[torch.Tensor], previous: Sequence[torch.Tensor]
) -> dict[str, Callable[[], list[torch.Tensor]]]:
    """Return functions that make the outputs of kernels that do not do the work, by name; outputs are large.

    What they know is another draw's output, ``previous``.
    """
    values = [item.values for item in case.expected]
    nulls: dict[str, Callable[[], list[torch.Tensor]]] = {
        "zeros": lambda: [torch.zeros_like(tensor) for tensor in values],
        "constant": lambda: [_constant(known, tensor) for known, tensor in zip(previous, values, strict=True)],
        "previous_output": lambda: list(previous),
    }
    if any(tensor.numel() > 1 for tensor in values):
        nulls["half_of_rows"] = lambda: [_half(mine, other) for mine, other in zip(own, previous, strict=True)]
    alike = [_input_like(case, item) for item in case.expected]
    if all(tensor is not None for tensor in alike):
        nulls["input_copy"] = lambda: [
            tensor.to(item.values.dtype)
            for tensor, item in zip(alike, case.expected, strict=True)
            if tensor is not None
        ]
    return nulls


def _constant(known: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the middle of a known output, everywhere."""
    if not known.is_floating_point():
        return torch.full_like(like, known.reshape(-1).mode().values.item())
    return torch.full_like(like, moments(known)[0])


def _half(own: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    result = own.contiguous().clone().reshape(-1)
    half = result.numel() // 2
    result[half:] = _constant(previous, result[half:])
    return result.reshape(own.shape)


def _input_like(case: Case, expected: Expected) -> torch.Tensor | None:
    for tensor in case.given:
        if tensor.shape == expected.values.shape:
            return tensor
    return None
