"""Embeddings: offline, unit length, and similar references nearer than others."""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import pytest

from cupilot.storage.pool.embedder import DIMENSIONS, Embedder, describe
from tests.unit.storage.references import REFERENCES, operators_of

EMBEDDER = Embedder()


def text(reference: str) -> str:
    op_class, _, shapes = REFERENCES[reference]
    return describe(reference, op_class, operators_of(reference), "float32", shapes)


def cosine(one: list[float], other: list[float]) -> float:
    return sum(x * y for x, y in zip(one, other, strict=True))


def nearest(reference: str) -> list[str]:
    """The other references, nearest first."""
    names = sorted(REFERENCES)
    vectors = dict(zip(names, EMBEDDER.embed([text(name) for name in names]), strict=True))
    others = [name for name in names if name != reference]
    return sorted(others, key=lambda name: -cosine(vectors[reference], vectors[name]))


def test_vectors_have_length_one_and_are_reproducible() -> None:
    first, second = EMBEDDER.embed(["softmax over rows", "softmax over rows"])
    assert len(first) == DIMENSIONS
    assert cosine(first, first) == pytest.approx(1.0, abs=1e-5)
    assert first == second
    assert EMBEDDER.embed([]) == []


def test_a_text_alone_and_in_a_batch_has_the_same_vector() -> None:
    """Padding to the longest text of a batch must not count as words."""
    alone = EMBEDDER.embed(["relu"])[0]
    together = EMBEDDER.embed(["relu", "a much longer description of another operator " * 5])[0]
    assert cosine(alone, together) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("reference", "near", "far"),
    [
        ("softmax", {"row_softmax", "log_softmax"}, {"matmul", "conv2d", "relu", "layer_norm", "max_pool2d"}),
        ("layer_norm", {"rms_norm", "batch_norm"}, {"matmul", "conv2d", "relu", "softmax", "cumsum"}),
        ("matmul", {"matmul_square", "batched_matmul"}, {"relu", "conv2d", "softmax", "layer_norm", "cumsum"}),
        ("gelu", {"new_gelu", "relu"}, {"matmul", "conv2d", "softmax", "max_pool2d", "cumsum"}),
        ("max_pool2d", {"average_pool2d"}, {"matmul", "relu", "layer_norm", "mse_loss", "cumsum"}),
        ("mse_loss", {"cross_entropy_loss"}, {"matmul", "conv2d", "relu", "layer_norm"}),
    ],
)
def test_similar_operators_come_before_dissimilar_ones(reference: str, near: set[str], far: set[str]) -> None:
    order = nearest(reference)
    assert all(order.index(one) < order.index(other) for one, other in product(near, far))


def test_the_nearest_reference_is_mostly_of_the_same_family() -> None:
    """Families with at least two members; the bar is the share that the vectors reached when they were chosen."""
    families = {name: REFERENCES[name][0] for name in REFERENCES}
    known = [name for name in families if list(families.values()).count(families[name]) > 1]
    hits = [name for name in known if families[nearest(name)[0]] == families[name]]
    assert len(hits) / len(known) >= 0.9, sorted(set(known) - set(hits))


def test_a_description_is_made_of_plain_words() -> None:
    description = describe("Level1/40_LayerNorm", "norm", ["aten.native_layer_norm.default"], "float32", [(64, 4096)])
    assert description == "level layer norm: norm: native layer norm: float32 small wide matrix"


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((), "tiny scalar"),
        ((64,), "tiny vector"),
        ((1 << 20, 8), "large tall matrix"),
        ((0, 4), "tiny matrix"),
        ((64, 1024, 1024, 8), "huge tall tensor"),
    ],
)
def test_shapes_become_words(shape: tuple[int, ...], words: str) -> None:
    assert describe("", "other", [], "float16", [shape]).endswith(words)


def test_loading_leaves_the_root_logger_alone() -> None:
    """The library configures it on import, which would print every HTTP request of a worker."""
    code = (
        "import logging; from cupilot.storage.pool.embedder import Embedder; Embedder().embed(['relu']);"
        "root = logging.getLogger(); print(root.handlers, root.level == logging.WARNING)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("[] True", "")
