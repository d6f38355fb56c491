"""Files and variables that every sandboxed program sees."""

from __future__ import annotations

import sys
from pathlib import Path

from gpu_worker.targets.base import Access

SOURCE_ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds the packages ``gpu_worker`` and ``cupilot``."""

SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/ld.so.conf", "/etc/ld.so.conf.d")


def python_folders() -> tuple[Path, ...]:
    """Return the folders that an interpreter with our packages needs to see: its prefixes and the two packages."""
    prefixes = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), Path(sys.prefix), Path(sys.base_prefix)}
    packages = {SOURCE_ROOT / "gpu_worker", SOURCE_ROOT / "cupilot"}
    return tuple(sorted(path for path in prefixes | packages if not path.is_relative_to("/usr")))


def environment(access: Access) -> dict[str, str]:
    """Return environment variables of a sandboxed program, of which none is ours."""
    return {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "USER": "nobody", **access.environment}
