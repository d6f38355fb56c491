"""The prompts that the pages show are those that the code sends, and their examples are real kernels."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agents.llm import prompt
from benchmarks import prompt_pages
from cupilot.domain.kernel import Kernel, resolve
from cupilot.domain.problem import DType, Graph, NumericsPolicy, ProblemFacts, Role, Target, TensorSpec
from tests.unit.agents.playbook.nvrtc import compile_cuda
from tests.unit.agents.playbook.references import build_cpu

FENCE = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module", name="pages")
def _pages() -> dict[str, str]:
    return prompt_pages.pages()


@pytest.mark.parametrize("title", prompt_pages.EXAMPLES)
def test_the_examples_in_the_documentation_are_what_the_code_asks(title: str) -> None:
    shown = (prompt_pages.SHOWN / f"{title}.md").read_text(encoding="utf-8")
    assert prompt_pages.example(title) == shown, "python -m benchmarks.prompt_pages --examples"


def test_only_the_best_kernel_is_shown_with_its_profile_and_none_where_code_alone_is() -> None:
    """As the published prompts have it; the pages show the best kernel as parents, too."""
    asked = prompt_pages.free_questions(prompt_pages.FREE_PROBLEM)
    profiles = {heading: one.messages[1]["content"].count("; profile (") for heading, one in asked.items()}
    told = {heading for heading, count in profiles.items() if count}
    assert set(profiles.values()) == {0, 1}
    assert told == {
        "EvoEngineer-Insight",
        "EvoEngineer-Full: crossover",
        "EvoEngineer-Full: mutation",
        "AI CUDA Engineer: optimise",
        "AI CUDA Engineer: compose",
    }


def test_every_parent_that_a_page_shows_was_measured(pages: dict[str, str]) -> None:
    for title in prompt_pages.PAGES_OF:
        text = pages[f"{title}.md"]
        assert "Not measured" not in text, title
        assert text.count("times as fast as PyTorch eager (95 % interval") >= 2, title


def test_there_is_a_page_for_each_problem_with_every_role(pages: dict[str, str]) -> None:
    for name in prompt_pages.PAGES_OF:
        text = pages[f"{name}.md"]
        for role in (
            "SCE Manager: initial",
            "SCE Manager: crossover",
            "Translator: from scratch",
            "alignment",
            "Revisor",
        ):
            assert role in text, f"{name}: {role}"
        assert not re.search(r"\$[a-z_]+", re.sub(r"<data.*?</data>", "", text, flags=re.S)), "an unfilled placeholder"


def test_no_prompt_file_is_without_a_page_or_outside_of_every_hash(pages: dict[str, str]) -> None:
    """A change of any file changes what a call is recorded with, and is seen in the pages."""
    shown = set(re.findall(r"prompt file hash `(\w+)`", "".join(pages.values())))
    names = {path.stem for path in Path(prompt.__file__).parents[1].joinpath("prompts").glob("*.md")}
    assert names - set(prompt.PARTS) == {name for name in names if prompt.prompt(name).hash[:12] in shown}


def _example(target: Target) -> tuple[Kernel, ProblemFacts]:
    blocks = dict(FENCE.findall(prompt.read(f"example_{target.value}")))
    source = blocks["cuda" if target is Target.CUDA else "cpp"]
    kernel = Kernel.model_validate({"target": target, "source": source, "plan": json.loads(blocks["json"])})

    def tensor(name: str, role: Role, shape: tuple[int, ...]) -> TensorSpec:
        strides = (shape[1], 1) if len(shape) == 2 else (1,)
        return TensorSpec(name=name, role=role, dtype=DType.FLOAT32, shape=shape, strides=strides)

    facts = ProblemFacts(
        problem_hash="0" * 64,
        policy=NumericsPolicy.FP32,
        tensors=(tensor("x", Role.INPUT, (16, 1 << 20)), tensor("out", Role.OUTPUT, (16,))),
        graph=Graph(nodes=(), outputs=("x",)),
        op_class="reduction",
        flops=1.0,
        compulsory_bytes=4,
    )
    return kernel, facts


def test_the_words_of_bulk_copies_in_the_prompt_compile() -> None:
    [words] = [body for language, body in FENCE.findall(prompt.read("idioms_sm_90")) if language == "cuda"]
    kernel, facts = _example(Target.CUDA)
    ring = """
extern "C" __global__ void partial_sums(const float* __restrict__ x, float* __restrict__ partial) {
    __shared__ __align__(128) float piece[256];
    __shared__ __align__(8) unsigned long long bar;
    if (threadIdx.x == 0) {
        bar_init(at(&bar), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
        bar_expect(at(&bar), sizeof piece);
        bulk_load(at(piece), x, sizeof piece, at(&bar));
    }
    __syncthreads();
    bar_wait(at(&bar), 0);
    partial[threadIdx.x] = piece[threadIdx.x % 256];
}
extern "C" __global__ void add_partials(const float* partial, float* out) { out[0] = partial[0]; }
"""
    compile_cuda(kernel.model_copy(update={"source": f'#include "problem.h"\n{words}{ring}'}), facts)


@pytest.mark.parametrize("target", list(Target))
def test_the_example_in_the_prompt_compiles_and_its_plan_fits(target: Target, builds: Path) -> None:
    kernel, facts = _example(target)
    assert len(resolve(kernel, facts).launches) >= 1
    if target is Target.CUDA:
        compile_cuda(kernel, facts)
    else:
        build_cpu(kernel, facts, builds)
