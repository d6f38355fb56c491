"""Write the requests to every agent, for level-1 problems on an H200 and on a CPU, as pages.

``python -m benchmarks.prompt_pages`` writes a page a problem into ``build/prompts``, and one of what the methods that
write code freely ask; ``--examples`` brings the two short examples of ``docs/prompts`` up to date.

Nothing is computed: references are traced with fake tensors, at the size that they have on the device. The device, its
measured peaks, PyTorch's time and the parents with their measurements are those of recorded runs: ``h200_fp32``,
``h200_tf32``, ``cpu_level1``, and ``cpu_conv2d``, two kernels written by hand and judged by ``python -m gpu_worker``,
since the playbook has no template for a convolution.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from agents.interface import Attempt, Briefing, Example, Work, WriteInput
from agents.llm.agent import LlmAgent
from agents.llm.alignment import AligningTranslator
from agents.llm.engineer import LlmEngineer
from agents.llm.gateway import Gateway, Question
from agents.llm.manager import LlmManager
from agents.llm.prophet import LlmProphet
from agents.llm.revisor import LlmRevisor
from agents.llm.translator import LlmTranslator
from agents.playbook import agents as playbook
from benchmarks import evolved
from cupilot.domain.evaluation import Evaluation, Failure, FailureKind, Verdict
from cupilot.domain.evolution.agentic import AgentLimits
from cupilot.domain.evolution.notes import AgentBook
from cupilot.domain.evolution.population import Operator
from cupilot.domain.hardware import Device, Peaks
from cupilot.domain.model_call import Answer
from cupilot.domain.problem import NumericsPolicy, Problem, ProblemFacts, Target
from cupilot.domain.problems import load
from cupilot.domain.roofline import place
from gpu_worker.judge import structure
from gpu_worker.reference import reference, trace
from gpu_worker.reference.reference import Reference

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build/prompts"
SHOWN = ROOT / "docs/prompts"


@dataclass(frozen=True)
class About:
    """The subject of a page."""

    problem: str
    target: Target = Target.CUDA
    policy: NumericsPolicy = NumericsPolicy.FP32


PAGES_OF = {
    "gelu": About("gelu"),
    "softmax": About("softmax"),
    "layer_norm_rows": About("layer_norm_rows"),
    "sum_reduction": About("sum_reduction"),
    "matmul": About("matmul"),
    "matmul_tf32": About("matmul", policy=NumericsPolicy.TF32),
    "softmax_cpu": About("softmax", Target.CPU),
    "conv2d_square_cpu": About("conv2d_square", Target.CPU),
}
"""One of each family: elementwise, softmax, norm, reduction, matrix product, convolution."""
RUNS = {
    (Target.CUDA, NumericsPolicy.FP32): "h200_fp32",
    (Target.CUDA, NumericsPolicy.TF32): "h200_tf32",
    (Target.CPU, NumericsPolicy.FP32): "cpu_level1",
}
BY_HAND = {PAGES_OF["conv2d_square_cpu"]: "cpu_conv2d"}
FREE_PROBLEM = PAGES_OF["layer_norm_rows"]
SEED = 0
EXAMPLES = {
    "strategies": ("layer_norm_rows", "SCE Manager: initial strategies"),
    "alignment_cpu": ("conv2d_square_cpu", "Strategy Translator: alignment"),
}
"""Pages of ``docs/prompts``, each with the request on it."""


class Asked(Exception):
    """The question that a role would have sent."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.purpose)
        self.question = question


class Listener(Gateway):
    """A gateway that makes no call."""

    def __init__(self) -> None:
        """Make a gateway without models and ledger."""

    def ask(self, question: Question, parse: Callable[[str], Any]) -> Any:  # noqa: ARG002
        """Raise with the question."""
        raise Asked(question)

    def turn(self, question: Question) -> Answer:
        """Raise with the question."""
        raise Asked(question)


def facts_of(problem: Problem) -> ProblemFacts:
    """Return the problem's facts as the judge traces them, without its memory or its arithmetic."""
    device = SimpleNamespace(torch_device=torch.device("cpu"), policy=lambda _: nullcontext())
    keep = patch.object(torch.nn.Module, "to", lambda self, *_: self)  # fake parameters cannot be moved
    # And they have no values to count zeros in, or to compare.
    dense, dense_too = (patch.object(module, "zero_share", lambda _: 0.0) for module in (structure, trace))
    unchanged = patch.object(reference, "alike", lambda *_: True)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), keep, dense, dense_too, unchanged:
        return Reference(problem.source, problem.policy, cast(Any, device), SEED).facts(problem.content_hash())


@dataclass(frozen=True)
class Record:
    """The measurements of a problem: machine, PyTorch's microseconds, the best kernel, and another one."""

    device: Device
    peaks: Peaks
    baseline_us: float
    compiler: str | None
    first: Attempt
    second: Attempt


def recorded(about: About) -> Record:
    """Return the record of a problem's run."""
    run = BY_HAND.get(about) or RUNS[about.target, about.policy]
    job = evolved.job(run, about.problem)
    return Record(
        device=Device.model_validate(job["environment"]["device"]),
        peaks=Peaks.model_validate(job["peaks"]),
        baseline_us=job["baseline_us"]["median"],
        compiler=job["environment"]["compiler"],
        first=evolved.winner(run, about.problem),
        second=evolved.runner_up(run, about.problem),
    )


def briefing(about: About) -> Briefing:
    """Return what the agents of a job on this problem know."""
    problem = load(about.problem, size="full" if about.target is Target.CUDA else "small", policy=about.policy)
    facts, known = facts_of(problem), recorded(about)
    return Briefing(
        problem=problem,
        facts=facts,
        target=about.target,
        device=known.device,
        placement=place(facts, known.peaks),
        peaks=known.peaks,
        baseline_us=known.baseline_us,
        compiler=known.compiler,
    )


def broken(attempt: Attempt, brief: Briefing) -> Attempt:
    """Return the same kernel as if the judge had found it wrong."""
    assert attempt.kernel is not None
    spec = brief.facts.tensors[-1]
    failure = Failure(
        kind=FailureKind.WRONG_VALUE,
        message=f"0.39 % of {spec.name} is wrong under law 'own'; at [0, 0]: expected 0.731, got 0.0",
        details={"law": "own", "output": spec.name, "wrong_fraction": 0.0039, "pattern": "every 256th element"},
    )
    evaluation = Evaluation(
        kernel_hash=attempt.kernel.content_hash(),
        problem_hash=brief.facts.problem_hash,
        verdict=Verdict.REJECTED,
        failure=failure,
    )
    return attempt.model_copy(update={"evaluation": evaluation})


def too_fast(attempt: Attempt) -> Attempt:
    """Return the same kernel as if the judge had not believed its time."""
    assert attempt.evaluation is not None
    failure = Failure(kind=FailureKind.BELOW_FLOOR, message="faster than the device's physical floor")
    verdict = {"verdict": Verdict.QUARANTINED, "failure": failure}
    return attempt.model_copy(update={"evaluation": attempt.evaluation.model_copy(update=verdict)})


def questions(about: About) -> dict[str, Question]:
    """Return what each role is asked, by a heading."""
    brief, listener, rules = briefing(about), Listener(), playbook()
    runs = recorded(about)
    first, second = runs.first, runs.second
    manager, translator = LlmManager(listener, rules.prophet), LlmTranslator(listener)
    known = [first.strategy, second.strategy]
    calls: dict[str, Callable[[], object]] = {
        "SCE Manager: initial strategies": lambda: manager.initial_strategies(brief, [], 8, SEED),
        "SCE Manager: crossover": lambda: manager.crossover(brief, first, second, known, SEED),
        "Strategy Translator: from scratch": lambda: translator.translate(brief, first.strategy, (), SEED),
        "Strategy Translator: from a parent": lambda: translator.translate(
            brief, first.strategy, [first, second], SEED
        ),
        "Strategy Translator: alignment": lambda: AligningTranslator(listener, rules.translator).align(brief, first),
        "Kernel Revisor": lambda: LlmRevisor(listener).revise(brief, [broken(first, brief)], SEED),
        "Kernel Revisor: performance": lambda: LlmRevisor(listener, rules.prophet).improve(brief, first, [first], SEED),
        "Kernel Revisor: too fast": lambda: LlmRevisor(listener).revise(brief, [too_fast(first)], SEED),
        "Roofline Prophet": lambda: LlmProphet(listener, rules.prophet).diagnose(brief, first),
    }
    return {heading: question for heading, call in calls.items() if (question := _question_of(call)) is not None}


SUMMARY = "The sum of a row leaves out its last 256 elements: the loop ends one step too early. Run it to X_COLS."


class Summarised(Listener):
    """A listener that says what an error means, and raises with the question after that."""

    def ask(self, question: Question, parse: Callable[[str], Any]) -> Any:
        """Return the summary, or raise with the question."""
        return SUMMARY if question.purpose.startswith("summarise") else super().ask(question, parse)


def free_questions(about: About) -> dict[str, Question]:
    """Return what agents that write or merge code freely are asked, by a heading."""
    brief, listener = briefing(about), Listener()
    best = recorded(about).first.model_copy(update={"name": "registers", "insight": "A row stays in registers."})
    failed, engineer = broken(best, brief), LlmEngineer(listener)

    work = Work(limits=AgentLimits(), book=AgentBook(note="Rows fit into registers."), parent=best)

    def written(method: str, operator: Operator, **shown: Any) -> Callable[[], object]:
        return lambda: engineer.write(brief, WriteInput(method=method, operator=operator, places=4, **shown), SEED)

    both, thoughts = {"best": best, "parents": (best, best)}, (best.insight,)
    functional = "def module_fn(x):\n    ...  # as it was converted"
    assert best.kernel is not None
    assert best.evaluation is not None
    other = Example(
        problem="softmax",
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
        "EoH: explore": written("eoh", Operator.EXPLORE, parents=(best, best)),
        "EoH: recombine": written("eoh", Operator.RECOMBINE, parents=(best, best)),
        "EoH: mutation": written("eoh", Operator.MUTATION, parents=(best,)),
        "EoH: retune": written("eoh", Operator.RETUNE, parents=(best,)),
        "FunSearch: next version": written("funsearch", Operator.NEXT_VERSION, parents=(best, best)),
        "AI CUDA Engineer: convert": lambda: engineer.convert(brief, (), SEED),
        "AI CUDA Engineer: translate": written("ai-cuda-engineer", Operator.TRANSLATION, functional=functional),
        "AI CUDA Engineer: summarise an error": lambda: engineer.repair(brief, [failed], SEED),
        "AI CUDA Engineer: mend": lambda: LlmEngineer(Summarised()).repair(brief, [failed], SEED),
        "AI CUDA Engineer: optimise": written(
            "ai-cuda-engineer", Operator.OPTIMISATION, parents=(best,), shown=(best,)
        ),
        "AI CUDA Engineer: compose": written(
            "ai-cuda-engineer", Operator.COMPOSITION, parents=(best,), examples=(other,)
        ),
        "agentic: a turn": lambda: LlmAgent(listener, playbook()).act(brief, work, SEED),
        "sce with crossover of code: merge": lambda: LlmTranslator(listener).merge(brief, best, best, SEED),
    }
    return {heading: question for heading, call in calls.items() if (question := _question_of(call)) is not None}


def _question_of(call: Callable[[], object]) -> Question | None:
    try:
        call()
    except Asked as heard:
        return heard.question
    return None


def page(about: About, asked: Mapping[str, Question]) -> str:
    """Return one problem's page."""
    where = "an H200" if about.target is Target.CUDA else "a CPU"
    policy = "" if about.policy is NumericsPolicy.FP32 else f" under {about.policy.value}"
    parts = [
        f"# {about.problem} on {where}{policy}: what the agents are asked",
        "Every conversation begins with the same system message; the rest of each is one user message.",
        _quoted(str(next(iter(asked.values())).messages[0]["content"])),
    ]
    for heading, question in asked.items():
        content = str(question.messages[1]["content"])
        size = f"{len(content):,} characters, prompt file hash `{question.prompt_hash[:12]}`."
        parts += [f"## {heading}", size, _quoted(content)]
    return "\n\n".join(parts) + "\n"


def example(title: str) -> str:
    """Return a page with one request alone, as ``docs/prompts`` shows it."""
    problem, heading = EXAMPLES[title]
    about = PAGES_OF[problem]
    return page(about, {heading: questions(about)[heading]})


def _quoted(text: str) -> str:
    return f"~~~~text\n{text.rstrip()}\n~~~~"


def pages() -> dict[str, str]:
    """Return file names and texts."""
    made = {f"{title}.md": page(about, questions(about)) for title, about in PAGES_OF.items()}
    made[f"{FREE_PROBLEM.problem}_free.md"] = page(FREE_PROBLEM, free_questions(FREE_PROBLEM))
    return made


def main() -> int:
    """Write the pages, or the examples of the documentation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", action="store_true", help="write the examples in docs/prompts instead")
    examples = parser.parse_args().examples
    folder = SHOWN if examples else PAGES
    texts = {f"{title}.md": example(title) for title in EXAMPLES} if examples else pages()
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
        print(folder / name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
