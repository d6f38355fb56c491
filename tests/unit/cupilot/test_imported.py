"""Facts that a file's own text shows, and nothing more."""

from __future__ import annotations

import pytest

from cupilot.domain.imported import (
    ImportedKernel,
    InvalidImport,
    check_import,
    file_name,
    is_extension,
    toolkit_of,
    visible_strategy,
    with_function,
)
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.strategy import problems_with
from cupilot.domain.technique import catalogue


@pytest.mark.parametrize(
    ("target", "text", "techniques"),
    [
        (
            Target.CUDA,
            "float4 v = x[i]; v.x = __shfl_down_sync(~0u, v.x, 1);",
            ("vector_loads", "warp_shuffle_reduction"),
        ),
        (Target.CUDA, "wmma::mma_sync(c, a, b, c); asm('cp.async.ca.shared');", ("async_copy", "tensor_cores")),
        (Target.CUDA, "@triton.jit\ndef f(): tl.dot(a, b)", ("tensor_cores",)),
        (Target.CUDA, "torch.compile(f)", ()),
        (Target.CPU, "#pragma omp parallel for simd", ("threads", "simd")),
        (Target.CPU, "float4 v; __shfl_sync()", ()),
    ],
)
def test_techniques_are_those_that_the_text_shows(target: Target, text: str, techniques: tuple[str, ...]) -> None:
    strategy = visible_strategy(ImportedKernel(target=target, source=text))
    assert strategy.ids() == techniques
    assert set(techniques) <= {technique.id for technique in catalogue() if target in technique.targets}
    wrong = problems_with(strategy, catalogue(), target, NumericsPolicy.TF32)
    assert all("requires" in item for item in wrong), "what the text does not show may be there"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@triton.jit\nload_inline()", "triton"),
        ("from torch.utils.cpp_extension import load_inline", "load_inline"),
        ("torch.utils.cpp_extension.load(...)", "cpp_extension"),
        ("x + 1", "torch"),
        ("#include <torch/extension.h>\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}", "extension"),
    ],
)
def test_the_way_to_its_kernels(text: str, expected: str) -> None:
    assert toolkit_of(text) == expected
    assert expected in visible_strategy(ImportedKernel(target=Target.CUDA, source=text)).rationale


CPP = '#include <torch/library.h>\nTORCH_LIBRARY(ours, m) { m.def("run", &run); }\n'
CUDA = f"__global__ void f() {{}}\n{CPP}"
INLINE = f'import torch\nCODE = """\n{CPP}"""\nclass ModelNew: ...\n'


def test_what_a_file_is_shows_in_its_text() -> None:
    texts = (CPP, CUDA, INLINE, CPP.replace("TORCH_", "// TORCH_"))
    assert [is_extension(text) for text in texts] == [True, True, False, False]
    names = [file_name(text, target) for text in (CPP, CUDA, INLINE) for target in (Target.CUDA, Target.CPU)]
    assert names == ["extension.cpp"] * 2 + ["extension.cu", "extension.cpp"] + ["modelnew.py"] * 2
    for text in (CPP, CUDA, INLINE):
        check_import(text)
    with pytest.raises(InvalidImport, match="exports nothing to Python"):
        check_import('#include <torch/extension.h>\nextern "C" int f();')


@pytest.mark.parametrize(
    "text",
    [
        'extern "C" void line(const float* x, float* out) {\n  out[0] = x[0];\n}\n',
        "// one line\n__global__ void f(const float* x, float* out) { out[0] = x[0]; }\n",
        '#include "problem.h"\nvoid line(const float* x, float* out) {}\n',
        "class Line {\n public:\n  void run();\n};\n",
    ],
)
def test_a_plain_kernel_in_c_is_called_what_it_is(text: str) -> None:
    with pytest.raises(InvalidImport, match=r"is C\+\+ or CUDA source that exports nothing to Python") as caught:
        check_import(text)
    assert all(word in (caught.value.hint or "") for word in ("torch/extension.h", "ModelNew", "--plan"))


@pytest.mark.parametrize(
    "text", ["import torch\nx = {\n", "class ModelNew(nn.Module):\n    x = {\n", "def f(:", "a = = 1"]
)
def test_python_with_an_error_is_still_python(text: str) -> None:
    with pytest.raises(InvalidImport, match="not valid Python"):
        check_import(text)


def test_the_choice_of_a_function_is_part_of_the_file() -> None:
    assert with_function(CPP, "run") == f"{CPP}// cupilot: function run\n"
    assert with_function(CPP, None) == CPP
    for text, name in ((INLINE, "run"), (CPP, "run; system")):
        with pytest.raises(InvalidImport):
            with_function(text, name)
