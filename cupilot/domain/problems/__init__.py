"""Built-in problems: references in KernelBench's file format, written for this project.

Each file under a suite's folder is complete as it stands, at the size the operator has in KernelBench (or, where
KernelBench has no such operator, at a size that large models use). A size that is too large for a small machine
carries its smaller value in a comment, ``COLS = 393216  # small: 8192``, which :func:`load` puts in its place. The
files are read as text only: they import torch, and nothing here runs them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Literal, get_args

from cupilot.domain.errors import NotFound
from cupilot.domain.problem import NumericsPolicy, Problem

Size = Literal["small", "full"]
"""``small`` fits two cores and a few GB; ``full`` is meant for a data-centre GPU."""

SUITES = ("level1", "fusion", "inference")
"""``level1``: KernelBench's single operators; ``fusion``: two to eight calls around a product, convolution or row;
``inference``: blocks of language and diffusion models."""

_SIZED_LINE = re.compile(r"^(?P<name>[A-Z]+) = (?P<full>\d+)  # small: (?P<small>\d+)$", re.MULTILINE)


def names(suite: str | None = None) -> list[str]:
    """Return the built-in problems' names, sorted; of one suite where it is given."""
    return sorted(name for name, _ in _entries(suite))


def load(name: str, *, size: Size = "small", policy: NumericsPolicy = NumericsPolicy.FP32) -> Problem:
    """Return the built-in problem of this name, as a user would submit it.

    Raises :class:`cupilot.domain.errors.NotFound` where there is none.
    """
    entry = dict(_entries(None)).get(name)
    if entry is None:
        raise NotFound(f"no built-in problem is called {name!r}", hint=suggestion(name))
    return Problem(name=name, source=_sized(entry.read_text(encoding="utf-8"), size), policy=policy)


@cache
def hashes() -> Mapping[str, str]:
    """Return the name of each problem that this version ships by content hash, for every size and policy."""
    problems = {}
    for name, entry in _entries(None):
        text = entry.read_text(encoding="utf-8")
        for source in {_sized(text, size) for size in get_args(Size)}:
            for policy in NumericsPolicy:
                problems[Problem(name=name, source=source, policy=policy).content_hash()] = name
    return problems


def name_of(problem_hash: str) -> str | None:
    """Return the name of the built-in problem with this content hash; None for any other text, whatever its name."""
    return hashes().get(problem_hash)


def suggestion(name: str) -> str:
    """Return a hint for a misspelt name: the few names that come closest, and where all of them are listed."""
    available = names()
    everything = f"cupilot problems, or GET /v1/problems, lists all {len(available)}"
    near = get_close_matches(name, available, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}? {everything}" if near else everything


def _sized(text: str, size: Size) -> str:
    return _SIZED_LINE.sub(rf"\g<name> = \g<{size}>", text)


def _entries(suite: str | None) -> list[tuple[str, Traversable]]:
    return [
        (entry.name.removesuffix(".py"), entry)
        for folder in ((suite,) if suite else SUITES)
        for entry in files("cupilot.domain.problems").joinpath(folder).iterdir()
        if entry.name.endswith(".py")
    ]
