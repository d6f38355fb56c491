"""The API's image is small and its process starts quickly: what it must not load."""

from __future__ import annotations

import subprocess
import sys


def test_the_api_loads_no_model_library_no_device_library_and_no_vector_database() -> None:
    probe = (
        "import sys, api.app\n"
        "print(sorted(set(sys.modules) & {'torch', 'numpy', 'litellm', 'chromadb', 'celery', 'agents', 'gpu_worker',"
        " 'wordllama', 'cuda'}))"
    )
    assert subprocess.check_output([sys.executable, "-c", probe], text=True).strip() == "[]"
