"""The command line of scripts that write a page of the documentation from records: print it, or ``--write`` it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def main(name: str, doc: str, path: Path, page: Callable[[], str], arguments: list[str] | None) -> int:
    """Print the page, or with ``--write`` write it; exit status 1 when the file at ``path`` differs from it."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=doc)
    parser.add_argument("--write", action="store_true", help=f"write docs/{path.name}")
    text = page()
    if parser.parse_args(arguments).write:
        path.write_text(text, encoding="utf-8")
        return 0
    print(text, end="")
    return 0 if path.exists() and path.read_text(encoding="utf-8") == text else 1
