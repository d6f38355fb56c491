"""problem.h: the names that plans and kernels may use, as C++ that really compiles."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cupilot.domain.header import constants, render
from cupilot.domain.problem import DType, Role, TensorSpec
from tests.unit.cupilot.factories import facts, tensor


def test_constants_of_a_tensor() -> None:
    names = constants(facts(tensor("x", 3, 4, 5)))
    assert names == {
        "X_NDIM": 3,
        "X_SIZE": 60,
        "X_DIM0": 3,
        "X_DIM1": 4,
        "X_DIM2": 5,
        "X_STRIDE0": 20,
        "X_STRIDE1": 5,
        "X_STRIDE2": 1,
        "X_ROWS": 12,
        "X_COLS": 5,
    }


def test_a_scalar_tensor_is_one_row_of_one() -> None:
    names = constants(facts(tensor("loss", role=Role.OUTPUT)))
    assert names == {"LOSS_NDIM": 0, "LOSS_SIZE": 1, "LOSS_ROWS": 1, "LOSS_COLS": 1}


def test_strides_are_the_tensors_own() -> None:
    spec = TensorSpec(name="a", role=Role.INPUT, dtype=DType.FLOAT32, shape=(4, 5), strides=(1, 4))
    names = constants(facts(spec))
    assert (names["A_STRIDE0"], names["A_STRIDE1"]) == (1, 4)


def test_a_tensors_constant_wins_over_a_scalar() -> None:
    assert constants(facts(tensor("x", 7), scalars={"X_SIZE": 1, "EPS": 1e-5})) | {} == {
        **constants(facts(tensor("x", 7))),
        "EPS": 1e-5,
    }


def test_other_types_than_float32_have_a_macro() -> None:
    half = TensorSpec(name="a", role=Role.INPUT, dtype=DType.FLOAT16, shape=(4,), strides=(1,))
    text = render(facts(half, tensor("x", 4)), {})
    assert "#define A_FLOAT16 1\n" in text
    assert text.count("#define") == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
def test_the_header_compiles_and_says_what_constants_says(tmp_path: Path) -> None:
    scalars = {"EPS": 1e-5, "BIG": 2**40, "KEEP": True, "INFINITE": float("inf"), "NEGATIVE": -0.1}
    problem = facts(tensor("x", 64, 256), scalars=scalars)
    (tmp_path / "problem.h").write_text(render(problem, {"BLOCK": 128}))
    finite = {name: value for name, value in constants(problem).items() if name != "INFINITE"}
    checks = "\n".join(
        f"static_assert({name} == {str(value).lower() if isinstance(value, bool) else repr(value)});"
        for name, value in finite.items()
    )
    (tmp_path / "check.cpp").write_text(
        f'#include "problem.h"\n{checks}\nstatic_assert(BLOCK == 128);\nint rows[X_ROWS];'
    )
    subprocess.run(["g++", "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", "check.cpp"], cwd=tmp_path, check=True)
