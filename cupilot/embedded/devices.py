"""Find the NVIDIA GPUs that this stack may use, without importing torch or loading CUDA in this process.

Asks the driver in a short-lived child, since a broken driver can hang or crash whoever asks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PROBE_SECONDS = 15.0
"""The driver initialises idle cards on the first question: seconds without its persistence mode."""
OLDEST_ARCH = (7, 5)
"""NVRTC 13 no longer builds for older ones."""
OLDEST_CUDA = 13_000
"""A driver of CUDA 12 refuses cubins that NVRTC 13 built (compatibility holds within a major version)."""

_PROBE = """
import json, pynvml as n
n.nvmlInit()
gpus = []
for i in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(i)
    gpus.append({"index": i, "uuid": n.nvmlDeviceGetUUID(h), "name": n.nvmlDeviceGetName(h),
                 "arch": n.nvmlDeviceGetCudaComputeCapability(h)})
print(json.dumps({"driver": n.nvmlSystemGetDriverVersion(), "cuda": n.nvmlSystemGetCudaDriverVersion(), "gpus": gpus}))
"""


@dataclass(frozen=True)
class Gpu:
    """GPU as the driver names it."""

    index: int
    uuid: str
    name: str
    arch: tuple[int, int]
    """Compute capability."""


@dataclass(frozen=True)
class GpuReport:
    """The driver's answer."""

    gpus: Sequence[Gpu] = ()
    """Visible cards, whether usable or not."""
    driver: str | None = None
    problem: str | None = None
    """Why none of them can be used, in one sentence; None when they can."""

    @property
    def usable(self) -> Sequence[Gpu]:
        """Cards that kernels can run on."""
        return [gpu for gpu in self.gpus if gpu.arch >= OLDEST_ARCH] if self.problem is None else ()


def find_gpus() -> GpuReport:
    """Ask the driver for the cards that ``CUDA_VISIBLE_DEVICES`` leaves, and judge whether they can be used."""
    probe = [sys.executable, "-P", "-W", "ignore", "-c", _PROBE]
    try:
        answer = subprocess.run(probe, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return GpuReport(problem=f"the NVIDIA driver did not answer within {PROBE_SECONDS:.0f} s")
    if answer.returncode:
        reason = answer.stderr.strip().splitlines()[-1:] or ["no reason given"]
        return GpuReport(problem=f"no NVIDIA driver that answers ({reason[0].rpartition(':')[2].strip()})")
    report = json.loads(answer.stdout)
    gpus = [Gpu(gpu["index"], gpu["uuid"], gpu["name"], tuple(gpu["arch"])) for gpu in report["gpus"]]
    gpus = [gpu for gpu in gpus if _is_visible(gpu)]
    return GpuReport(gpus, report["driver"], _problem(gpus, report["cuda"]))


def torch_cuda() -> str | None:
    """Return the CUDA version that the installed torch was built for.

    None for a CPU build or no torch. Reads its text only.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version = Path(spec.origin).with_name("version.py").read_text()
    match = re.search(r"^cuda\b[^=]*= *'([\d.]+)'", version, re.MULTILINE)
    return match[1] if match else None


def _problem(gpus: Sequence[Gpu], cuda: int) -> str | None:
    if not gpus:
        return "the driver shows no GPU that CUDA_VISIBLE_DEVICES leaves visible"
    if cuda < OLDEST_CUDA:
        return (
            f"the driver supports CUDA {cuda // 1000}.{cuda % 1000 // 10} only; CUDA 13 is needed (driver 580 or newer)"
        )
    if all(gpu.arch < OLDEST_ARCH for gpu in gpus):
        return "every GPU is older than compute capability 7.5"
    if torch_cuda() is None:
        return "the installed torch is a CPU build, so there is no baseline to time on the GPU"
    return None


def _is_visible(gpu: Gpu) -> bool:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return True
    names = [name.strip() for name in chosen.split(",")]
    return any(name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name)) for name in names)
