"""Find the class that serves a target. Imports a target only when needed: a CPU machine has no CUDA packages."""

from __future__ import annotations

from cupilot.domain.problem import Target
from gpu_worker.targets.base import HostTarget, load_factory

_HOSTS = {Target.CPU: "gpu_worker.targets.cpu_host:CpuHost", Target.CUDA: "gpu_worker.targets.cuda.host:CudaHost"}


def open_host(
    target: Target, *, device: str | None = None, threads: int | None = None, builder: str | None = None
) -> HostTarget:
    """Return the supervisor's half of a target; ``device`` is a GPU's UUID or index, ``threads`` is for ``cpu``.

    ``builder`` is ``nvrtc`` or ``nvcc``, for ``cuda``; NVRTC unless given.

    Raises :class:`cupilot.domain.errors.Unavailable` where the machine lacks what the target needs.
    """
    host: HostTarget = load_factory(_HOSTS[target])(device=device, threads=threads, builder=builder)
    return host
