"""Choose the target of a stack's GPU workers: the NVIDIA GPUs of this machine where usable, else its CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cupilot.domain.problem import Target
from cupilot.embedded.devices import Gpu, find_gpus
from cupilot.embedded.errors import StartFailed


@dataclass(frozen=True)
class TargetChoice:
    """Target, and the reason why it was chosen."""

    target: Target
    gpus: Sequence[Gpu]
    """One GPU worker each; none for the CPU."""
    reason: str


def choose_target(wanted: Target | None) -> TargetChoice:
    """Return the wanted target, or the best one here.

    Raise :class:`StartFailed` when ``cuda`` is wanted and unusable.
    """
    if wanted is Target.CPU:
        return TargetChoice(Target.CPU, (), "asked for")
    report = find_gpus()
    if report.usable:
        return TargetChoice(Target.CUDA, report.usable, ", ".join(gpu.name for gpu in report.usable))
    if wanted is Target.CUDA:
        raise StartFailed(f"no GPU can be used: {report.problem}", hint="cupilot doctor says what is missing")
    return TargetChoice(Target.CPU, (), report.problem or "no usable GPU")
