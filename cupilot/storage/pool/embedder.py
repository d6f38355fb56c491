"""Turn a reference's description into a vector, by which the strategy pool finds similar problems.

Vectors are wordllama's static word vectors (256 dimensions, mean over tokens, 16 MB of weights inside the wheel): no
network, no torch, 0.5 s to load and 0.2 ms a query. Nothing is loaded before the first text is embedded.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

NAME = "wordllama-256"
"""Part of the collection's name: vectors of different embedders must never be compared."""

DIMENSIONS = 256

_SIZES = ((10_000, "tiny"), (1_000_000, "small"), (100_000_000, "large"))
"""Upper bounds in elements. What fits a block, a cache, and neither; numbers themselves embed as noise."""

_ASPECT = 8
"""Ratio of the last two dimensions from which a matrix is called wide or tall."""

_SPELLED = {
    "mm": "matrix multiplication",
    "addmm": "matrix multiplication, add",
    "bmm": "batched matrix multiplication",
    "baddbmm": "batched matrix multiplication, add",
    "mv": "matrix vector multiplication",
    "mul": "times",
    "amax": "maximum",
    "amin": "minimum",
}
"""ATen names whose letters mislead a model of English: "mul" embeds next to "matmul"."""


class Embedder:
    """Unit vectors for texts. Safe to share between threads; a forked process may use its copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._model: Any = None

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector of length 1 and :data:`DIMENSIONS` dimensions for each text."""
        if not texts:
            return []
        with self._lock:
            if self._model is None:
                self._model = _load()
            vectors = self._model.embed(list(texts), norm=True)
        return [[float(x) for x in vector] for vector in vectors]


def describe(
    problem_name: str, op_class: str, operators: Sequence[str], dtype: str, shapes: Sequence[Sequence[int]]
) -> str:
    """Return the text that is embedded for a reference: its name, operators, type and the kind of its first shape.

    Only the first shape: words for all tensors outweighed the operators' and made a layer norm look like a convolution.
    """
    parts = [
        _words(problem_name),
        op_class,
        ", ".join(dict.fromkeys(_operator(operator) for operator in operators)),
        " ".join([dtype, *(_shape(shape) for shape in shapes[:1])]),
    ]
    return ": ".join(part for part in parts if part)


def _load() -> Any:
    with _root_logger_kept():
        import wordllama

    # The weights are in the wheel, but the loader looks for the tokenizer in a folder of another name unless the
    # package itself is given as its cache, and would then try to download it.
    package = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(dim=DIMENSIONS, cache_dir=package, disable_download=True)


@contextmanager
def _root_logger_kept() -> Iterator[None]:
    """Undo what wordllama does to the root logger on import: a handler, and every library's INFO lines on it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _words(name: str) -> str:
    """Return ``Level1/23_LayerNorm`` as ``level layer norm``."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return " ".join(re.findall(r"[A-Za-z]{2,}", spaced)).lower()


def _operator(overload: str) -> str:
    """Return ``aten._native_layer_norm.default`` as ``native layer norm``."""
    parts = overload.split(".")
    name = (parts[1] if len(parts) > 1 else parts[0]).strip("_")
    return _SPELLED.get(name, name.replace("_", " "))


def _shape(shape: Sequence[int]) -> str:
    elements = prod(shape)
    size = next((word for bound, word in _SIZES if elements < bound), "huge")
    kind = {0: "scalar", 1: "vector", 2: "matrix"}.get(len(shape), "tensor")
    if len(shape) < 2 or not elements:
        return f"{size} {kind}"
    rows, columns = shape[-2:]
    aspect = "wide " if columns >= _ASPECT * rows else "tall " if rows >= _ASPECT * columns else ""
    return f"{size} {aspect}{kind}"
