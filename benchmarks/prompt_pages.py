"""Renders what every agent is asked, for six level-1 problems on an H200 and one on a CPU: ``docs/prompts/``.

A page of its own has what the methods that write code freely ask, for one of the problems.

    python -m benchmarks.prompt_pages            writes the pages
    python -m benchmarks.prompt_pages --check    says which of them differ from what the code asks now

Nothing is computed: references are traced with fake tensors, at the size that they have on the card. The device, its
measured peaks, and the parents (winners of a real run) are those of ``benchmarks/results/h200_fp32``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from agents.interface import AgentError, Attempt, Briefing, Commission, Example
from agents.llm.alignment import LlmAligner
from agents.llm.engineer import LlmEngineer
from agents.llm.gateway import Gateway, Question
from agents.llm.manager import LlmManager
from agents.llm.prophet import LlmProphet
from agents.llm.revisor import LlmRevisor
from agents.llm.translator import LlmTranslator
from agents.playbook import agents as playbook
from cupilot.evaluation import Evaluation, Failure, FailureKind, Verdict
from cupilot.evolution.population import Operator
from cupilot.hardware import Device, Peaks
from cupilot.kernel import Kernel, LaunchPlan
from cupilot.problem import NumericsPolicy, Problem, ProblemFacts, Target
from cupilot.problems import load
from cupilot.roofline import place
from cupilot.strategy import Strategy, TechniqueUse
from gpu_worker.judge import laws, trace
from gpu_worker.judge.reference import Reference

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs/prompts"
RESULTS = ROOT / "benchmarks/results"
PROBLEMS = {
    "gelu": NumericsPolicy.FP32,
    "softmax": NumericsPolicy.FP32,
    "layer_norm_rows": NumericsPolicy.FP32,
    "sum_reduction": NumericsPolicy.FP32,
    "matmul": NumericsPolicy.TF32,
    "conv2d_square": NumericsPolicy.TF32,
}
"""One of each family: elementwise, softmax, norm, reduction, matrix product, convolution."""
CPU_PROBLEM = "softmax"
FREE_PROBLEM = "layer_norm_rows"
SEED = 0


class Asked(Exception):
    """Carries the question that a role would have sent."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.purpose)
        self.question = question


class Listener(Gateway):
    """A gateway that makes no call."""

    def __init__(self) -> None:
        """Without models and ledger."""

    def ask(self, question: Question, parse: Callable[[str], Any]) -> Any:  # noqa: ARG002
        """Give the question back."""
        raise Asked(question)


def facts_of(problem: Problem) -> ProblemFacts:
    """The problem's facts as the judge traces them, without its memory or its arithmetic."""
    device = SimpleNamespace(torch_device=torch.device("cpu"), policy=lambda _: nullcontext())
    keep = patch.object(torch.nn.Module, "to", lambda self, *_: self)  # fake parameters cannot be moved
    # And they have no values to count zeros in.
    dense, dense_too = (patch.object(module, "zero_share", lambda _: 0.0) for module in (laws, trace))
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), keep, dense, dense_too:
        return Reference(problem.source, problem.policy, cast(Any, device), SEED).facts(problem.content_hash())


def card() -> tuple[Device, Peaks, dict[str, float]]:
    """The H200 of the recorded run, its measured peaks, and PyTorch's times by problem, in microseconds."""
    jobs = json.loads((RESULTS / "h200_fp32.json").read_text(encoding="utf-8"))["jobs"]
    first = jobs[0]
    times = {job["problem"]: job["baseline_us"]["median"] for job in jobs}
    return Device.model_validate(first["environment"]["device"]), Peaks.model_validate(first["peaks"]), times


CPU = Device(
    target=Target.CPU,
    uid="cpu",
    name="x86-64 server",
    arch="x86-64-avx512",
    units=8,
    memory_bytes=64 * 2**30,
    cache_bytes=32 * 2**20,
)
CPU_PEAKS = Peaks(device_uid="cpu", bandwidth=4e10, scalar_flops=8e11, measured_at="2026-01-01T00:00:00+00:00")
"""Round numbers of a small server; the page shows the form."""


def briefing(name: str, target: Target = Target.CUDA) -> Briefing:
    """What the agents of a job on this problem know."""
    on_card = target is Target.CUDA
    policy = PROBLEMS[name] if on_card else NumericsPolicy.FP32
    problem = load(name, size="full" if on_card else "small", policy=policy)
    facts = facts_of(problem)
    device, peaks, times = card() if on_card else (CPU, CPU_PEAKS, {})
    known = times.get(name) if policy is NumericsPolicy.FP32 else None
    return Briefing(
        problem=problem,
        facts=facts,
        target=target,
        device=device,
        placement=place(facts, peaks),
        peaks=peaks,
        baseline_us=known,
    )


def winner(name: str, brief: Briefing) -> Attempt:
    """The best kernel of the recorded run, or, where there is none, the playbook's or a plain one, not measured."""
    folder = RESULTS / "h200_fp32" / name
    if brief.target is Target.CUDA and folder.is_dir() and PROBLEMS[name] is NumericsPolicy.FP32:
        read = {part: (folder / part).read_text(encoding="utf-8") for part in ("kernel.cu", "plan.json")}
        return Attempt(
            strategy=Strategy.model_validate_json((folder / "strategy.json").read_bytes()),
            kernel=Kernel(target=Target.CUDA, source=read["kernel.cu"], plan=json.loads(read["plan.json"])),
            evaluation=Evaluation.model_validate_json((folder / "evaluation.json").read_bytes()),
        )
    return _unmeasured(brief)


def _unmeasured(brief: Briefing) -> Attempt:
    """The playbook's richest first strategy with its kernel; where it has no template, a plan for one."""
    rules = playbook()
    try:
        ideas = [one.strategy for one in rules.manager.initial_strategies(brief, [], 8, SEED)]
        strategy = max(ideas, key=lambda one: len(one.techniques))
        return Attempt(strategy=strategy, kernel=rules.translator.translate(brief, strategy, None, SEED))
    except AgentError:
        uses = tuple(TechniqueUse(id=name) for name in ("tensor_cores", "shared_tiling", "async_copy"))
        strategy = Strategy(
            techniques=uses,
            rationale="Implicit GEMM: a block makes 64 output channels of a tile of pixels; the image tile with its "
            "rim and the weights are staged in shared memory and multiplied by tensor cores.",
        )
    plan = LaunchPlan.model_validate(
        {"launches": [{"kernel": "plain", "args": [spec.name for spec in brief.facts.tensors]}]}
        if brief.target is Target.CPU
        else {
            "launches": [
                {
                    "kernel": "plain",
                    "grid": ["ceil_div(OUT_SIZE, 256)"],
                    "block": ["256"],
                    "args": [spec.name for spec in brief.facts.tensors],
                }
            ]
        }
    )
    source = '#include "problem.h"\n// the plain kernel of this operator stands here\n'
    return Attempt(strategy=strategy, kernel=Kernel(target=brief.target, source=source, plan=plan))


def broken(one: Attempt, brief: Briefing) -> Attempt:
    """The same kernel as if the judge had found it wrong."""
    assert one.kernel is not None
    spec = brief.facts.tensors[-1]
    failure = Failure(
        kind=FailureKind.WRONG_VALUE,
        message=f"0.39 % of {spec.name} is wrong under law 'own'; at [0, 0]: expected 0.731, got 0.0",
        details={"law": "own", "output": spec.name, "wrong_fraction": 0.0039, "pattern": "every 256th element"},
    )
    evaluation = Evaluation(
        kernel_hash=one.kernel.content_hash(),
        problem_hash=brief.facts.problem_hash,
        verdict=Verdict.REJECTED,
        failure=failure,
    )
    return one.model_copy(update={"evaluation": evaluation})


def questions(name: str, target: Target = Target.CUDA) -> dict[str, Question]:
    """What each role is asked, by a heading."""
    brief, listener, rules = briefing(name, target), Listener(), playbook()
    first = winner(name, brief)
    second = Attempt(strategy=Strategy(techniques=first.strategy.techniques[:1], rationale="the simple one"))
    manager, translator = LlmManager(listener, rules.prophet), LlmTranslator(listener)
    known = [first.strategy, second.strategy]
    calls: dict[str, Callable[[], object]] = {
        "SCE Manager: initial strategies": lambda: manager.initial_strategies(brief, [], 8, SEED),
        "SCE Manager: crossover": lambda: manager.crossover(brief, first, second, known, SEED),
        "Strategy Translator: from scratch": lambda: translator.translate(brief, first.strategy, None, SEED),
        "Strategy Translator: from a parent": lambda: translator.translate(brief, first.strategy, first.kernel, SEED),
        "Strategy Translator: alignment": lambda: LlmAligner(listener, rules.translator).align(brief, first),
        "Kernel Revisor": lambda: LlmRevisor(listener).revise(brief, [broken(first, brief)], SEED),
        "Roofline Prophet": lambda: LlmProphet(listener, rules.prophet).diagnose(brief, first),
    }
    return {heading: asked for heading, call in calls.items() if (asked := _heard(call)) is not None}


SUMMARY = "The sum of a row leaves out its last 256 elements: the loop ends one step too early. Run it to X_COLS."


class Summarised(Listener):
    """Answers what an error means, and gives back what is asked then."""

    def ask(self, question: Question, parse: Callable[[str], Any]) -> Any:
        """The summary, or the question."""
        return SUMMARY if question.purpose.startswith("summarise") else super().ask(question, parse)


def free_questions(name: str) -> dict[str, Question]:
    """What those are asked who write code freely, and who merge it, by a heading."""
    brief, listener = briefing(name), Listener()
    best = winner(name, brief).model_copy(update={"name": "registers", "insight": "A row stays in registers."})
    failed, engineer = broken(best, brief), LlmEngineer(listener)

    def written(method: str, operator: Operator, **shown: Any) -> Callable[[], object]:
        return lambda: engineer.write(brief, Commission(method=method, operator=operator, places=4, **shown), SEED)

    both, thoughts = {"best": best, "parents": (best, best)}, (best.insight,)
    functional = "def module_fn(x):\n    ...  # as it was converted"
    assert best.kernel is not None
    assert best.evaluation is not None
    other = Example(
        problem=CPU_PROBLEM,
        reference="# the other problem's file stands here",
        kernel=best.kernel,
        speedup=best.evaluation.speedup or 1.0,
        insight=best.insight,
    )
    calls: dict[str, Callable[[], object]] = {
        "EvoEngineer-Free": written("evoengineer-free", Operator.REWRITE, parents=(best,)),
        "EvoEngineer-Insight": written("evoengineer-insight", Operator.REWRITE, parents=(best,), insights=thoughts),
        "EvoEngineer-Full: crossover": written("evoengineer-full", Operator.CODE_CROSSOVER, insights=thoughts, **both),
        "EvoEngineer-Full: mutation": written(
            "evoengineer-full", Operator.MUTATION, insights=thoughts, best=best, parents=(best,)
        ),
        "AI CUDA Engineer: convert": lambda: engineer.convert(brief, (), SEED),
        "AI CUDA Engineer: translate": written("ai-cuda-engineer", Operator.TRANSLATION, functional=functional),
        "AI CUDA Engineer: summarise an error": lambda: engineer.mend(brief, [failed], SEED),
        "AI CUDA Engineer: mend": lambda: LlmEngineer(Summarised()).mend(brief, [failed], SEED),
        "AI CUDA Engineer: optimise": written(
            "ai-cuda-engineer", Operator.OPTIMISATION, parents=(best,), shown=(best,)
        ),
        "AI CUDA Engineer: compose": written(
            "ai-cuda-engineer", Operator.COMPOSITION, parents=(best,), examples=(other,)
        ),
        "sce with crossover of code: merge": lambda: LlmTranslator(listener).merge(brief, best, best, SEED),
    }
    return {heading: asked for heading, call in calls.items() if (asked := _heard(call)) is not None}


def _heard(call: Callable[[], object]) -> Question | None:
    try:
        call()
    except Asked as heard:
        return heard.question
    return None


def page(name: str, target: Target, asked: Mapping[str, Question]) -> str:
    """One problem's page."""
    where = "an H200" if target is Target.CUDA else "a CPU"
    parts = [
        f"# {name} on {where}: what the agents are asked",
        "Made by `python -m benchmarks.prompt_pages`; a test holds it to the code. Every conversation begins with the"
        " same system message; the rest of each is one user message.",
        _quoted(next(iter(asked.values())).messages[0]["content"]),
    ]
    for heading, question in asked.items():
        content = question.messages[1]["content"]
        size = f"{len(content):,} characters, prompt file hash `{question.prompt_hash[:12]}`."
        parts += [f"## {heading}", size, _quoted(content)]
    return "\n\n".join(parts) + "\n"


def _quoted(text: str) -> str:
    return f"~~~~text\n{text.rstrip()}\n~~~~"


def pages() -> dict[str, str]:
    """File names and texts."""
    made = {f"{name}.md": page(name, Target.CUDA, questions(name)) for name in PROBLEMS}
    made[f"{CPU_PROBLEM}_cpu.md"] = page(CPU_PROBLEM, Target.CPU, questions(CPU_PROBLEM, Target.CPU))
    made[f"{FREE_PROBLEM}_free.md"] = page(FREE_PROBLEM, Target.CUDA, free_questions(FREE_PROBLEM))
    return made


def main() -> int:
    """Write or check the pages; how many differed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a page differs")
    check = parser.parse_args().check
    differing = []
    for name, text in pages().items():
        path = PAGES / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            differing.append(name)
            if not check:
                PAGES.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    print(f"{'differ' if check else 'written'}: {', '.join(differing) or 'none'}")
    return int(check and bool(differing))


if __name__ == "__main__":
    raise SystemExit(main())
