"""Attention on the ``cuda`` target in one launch: scores are never stored."""

from __future__ import annotations

from agents.playbook.compiler.attention import Attention
from agents.playbook.compiler.cuda.attention_block import Block
from agents.playbook.compiler.cuda.attention_mma import TYPES, Flash
from agents.playbook.compiler.cuda.attention_scalar import Scalar


def block_of(group: Attention, precision: str) -> Block:
    """Return a block's work: on tensor cores for operands of 16 bits, else on the scalar units."""
    return Flash(group, precision) if precision in TYPES else Scalar(group, "")
