"""Tensor types of the kernel boundary, by their names and as PyTorch's."""

from __future__ import annotations

import torch

from cupilot.domain.problem import DType

TORCH_DTYPES: dict[DType, torch.dtype] = {item: getattr(torch, item.value) for item in DType}
DTYPES = {torch_dtype: item for item, torch_dtype in TORCH_DTYPES.items()}
