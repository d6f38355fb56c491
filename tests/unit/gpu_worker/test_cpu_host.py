"""Options of a judge of the ``cpu`` target."""

from __future__ import annotations

import os
import subprocess
import sys

from gpu_worker.targets.cpu_host import CpuHost


def test_torch_compile_takes_the_widest_vectors_untried() -> None:
    ask = "import torch._inductor.config as config; print(config.cpp.vec_isa_ok)"
    environment = {"PATH": os.environ["PATH"], **CpuHost().judge_access().environment}
    told = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout == "True\n", "what PyTorch itself calls the setting"
