"""Built-in problems: references in KernelBench's file format, written for this project.

Each file under a suite's folder is complete as it stands, at the size the operator has in KernelBench (or, where
KernelBench has no such operator, at a size that large models use). A size that is too large for a small machine
carries its smaller value in a comment, ``COLS = 393216  # small: 8192``, which :func:`load` puts in its place. A name
with a half-precision type at its end, ``softmax_bfloat16``, is the problem of the file ``softmax`` with parameters and
floating-point inputs of that type. The files are read as text only: they import torch, and nothing here runs them.
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

HALF_TYPES = ("bfloat16", "float16")
"""Types that a name may end with."""
_ONE_TYPE = frozenset({"matmul_scalar"})
"""Problems without such names: an input of theirs is a number and no tensor."""

_SIZED_LINE = re.compile(r"^(?P<name>[A-Z]+) = (?P<full>\d+)  # small: (?P<small>\d+)$", re.MULTILINE)
_INIT = re.compile(r"^class Model\(.*?^        super\(\).__init__\(\)\n(?:        [^\n]+\n)+", re.MULTILINE | re.DOTALL)
"""The constructor of a model that has parameters or parts."""
_TYPED_INPUTS = """\
def get_inputs():
    return [x.to(torch.{dtype}) if x.is_floating_point() else x for x in get_float32_inputs()]
"""


def names(suite: str | None = None) -> list[str]:
    """Return the built-in problems' names, sorted; of one suite where it is given."""
    return sorted(name for name, _ in _entries(suite))


def is_name(name: str) -> bool:
    """Return True for a name that :func:`load` knows: one of :func:`names`, perhaps with a type at its end."""
    return _split(name) is not None


def load(name: str, *, size: Size = "small", policy: NumericsPolicy = NumericsPolicy.FP32) -> Problem:
    """Return the built-in problem of this name, as a user would submit it.

    Raises :class:`cupilot.domain.errors.NotFound` where there is none.
    """
    found = _split(name)
    if found is None:
        raise NotFound(f"no built-in problem is called {name!r}", hint=suggestion(name))
    text, dtype = found
    return Problem(name=name, source=_typed(_sized(text, size), dtype), policy=policy)


@cache
def hashes() -> Mapping[str, str]:
    """Return the name of each problem that this version ships by content hash, for every size, policy and type."""
    problems = {}
    for base, text in _texts().items():
        sized = {_sized(text, size) for size in get_args(Size)}
        for dtype in (None, *HALF_TYPES) if _has_types(base) else (None,):
            name = f"{base}_{dtype}" if dtype else base
            for source in (_typed(text, dtype) for text in sized):
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


def _split(name: str) -> tuple[str, str | None] | None:
    """Return the text of the file that a name means, and the type at its end; None where there is none such."""
    text = _texts().get(name)
    if text is not None:
        return text, None
    base, _, dtype = name.rpartition("_")
    text = _texts().get(base)
    return (text, dtype) if text is not None and dtype in HALF_TYPES and _has_types(base) else None


def _has_types(base: str) -> bool:
    """Return True if a problem's name may end with a type: not where it makes such tensors itself."""
    return base not in _ONE_TYPE and not any(dtype in _texts()[base] for dtype in HALF_TYPES)


def _sized(text: str, size: Size) -> str:
    return _SIZED_LINE.sub(rf"\g<name> = \g<{size}>", text)


def _typed(text: str, dtype: str | None) -> str:
    """Return a problem's text with parameters, buffers and floating-point inputs of a type; None leaves them."""
    if dtype is None:
        return text
    text = _INIT.sub(rf"\g<0>        self.to(torch.{dtype})\n", text)
    text = text.replace("def get_inputs():", "def get_float32_inputs():")
    return f"{text}\n\n" + _TYPED_INPUTS.format(dtype=dtype)


@cache
def _texts() -> Mapping[str, str]:
    return {name: entry.read_text(encoding="utf-8") for name, entry in _entries(None)}


def _entries(suite: str | None) -> list[tuple[str, Traversable]]:
    return [
        (entry.name.removesuffix(".py"), entry)
        for folder in ((suite,) if suite else SUITES)
        for entry in files("cupilot.domain.problems").joinpath(folder).iterdir()
        if entry.name.endswith(".py")
    ]
