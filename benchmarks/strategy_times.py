"""Time the playbook's strategies on a card, without a judge: ``python -m benchmarks.strategy_times``.

Renders and compiles the first strategies of each problem that the playbook would try, launches each on the problem's
own inputs, and times it beside PyTorch eager, in one process: seconds a problem, where a verdict takes many. Proves
nothing: results are compared with PyTorch's once, and the largest difference is written down. For the cost model, and
for whoever improves a template. Resumable, as a kernel that faults takes its process with it. Needs torch,
cuda-bindings and a card. ``--merge`` puts several runs' records into one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from agents.interface import Briefing, NoTemplate
from agents.playbook import cost
from agents.playbook.cost.rates import rates
from agents.playbook.ladders import parse
from agents.playbook.manager import PlaybookManager
from agents.playbook.translator import NotApplicable, PlaybookTranslator, operator_of
from benchmarks import records
from benchmarks.cost_points import text_of
from benchmarks.coverage import DEVICES
from benchmarks.judge_run import say
from cupilot.domain import problems
from cupilot.domain.hardware import Peaks
from cupilot.domain.header import render
from cupilot.domain.kernel import Kernel, ResolvedPlan, resolve
from cupilot.domain.problem import NumericsPolicy, Problem, Role, Target
from cupilot.domain.roofline import place
from cupilot.domain.strategy import Strategy
from gpu_worker.reference.reference import Reference
from gpu_worker.targets.base import GraphUnavailable
from gpu_worker.targets.cuda import installation
from gpu_worker.targets.cuda.judge import CudaJudge
from gpu_worker.targets.cuda.nvrtc import Program
from gpu_worker.targets.cuda.runner import CudaRunner
from gpu_worker.targets.cuda.toolchain import architecture

SEED = 0
BLOCKS, BLOCK_SECONDS, MOST_LAUNCHES = 5, 4e-3, 200
MOST_SLOTS = 8
DEVICE = DEVICES[Target.CUDA].model_copy(update={"name": "NVIDIA H200"})
PEAKS = Peaks(
    device_uid="card",
    bandwidth=4.45e12,
    scalar_flops=63e12,
    tensor_flops={NumericsPolicy.TF32: 440e12, NumericsPolicy.HALF: 860e12},
    launch_seconds=7e-7,
    measured_at="",
)
"""Rates of an H200 as the judge measures them, to two digits: predictions start from them."""


@dataclass(frozen=True)
class Compiled:
    """A strategy's kernel for one problem; the log stands in for machine code that could not be made."""

    strategy: Strategy
    kernel: Kernel
    plan: ResolvedPlan
    cubin: bytes
    log: str


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 when every chosen problem is in the record."""
    options = _options(argv)
    if options.merge:
        records.write(options.out, _merged(options.merge, options.machine))
        return 0
    if options.device:
        os.environ["CUDA_VISIBLE_DEVICES"] = options.device
    record = _resumed(options.out)
    wanted = _wanted(options)
    end = time.monotonic() + options.seconds
    for name in wanted:
        if name in record["problems"]:
            continue
        if time.monotonic() > end:
            break
        record["problems"][name] = {"failure": "the process ended"}
        records.write(options.out, record)
        try:
            record["problems"][name] = _timed(name, options)
        except torch.AcceleratorError as error:
            record["problems"][name] = {"failure": str(error)[:200]}
            records.write(options.out, record)
            os.execv(sys.executable, [sys.executable, "-m", "benchmarks.strategy_times", *(argv or sys.argv[1:])])
        records.write(options.out, record)
        say(json.dumps({name: record["problems"][name]}))
    return 0 if all(name in record["problems"] for name in wanted) else 1


def _merged(parts: Sequence[Path], machine: str) -> dict[str, Any]:
    """Return one record of all parts' problems, without what each took; rows of other commits than the last name them.

    Of a problem in several parts, the last that was timed is kept.
    """
    found = [json.loads(path.read_text(encoding="utf-8")) for path in parts]
    commit, kept = found[-1]["commit"], dict[str, Any]()
    for part in found:
        for name, row in part["problems"].items():
            if name in kept and "strategies" not in row:
                continue
            kept[name] = {key: value for key, value in row.items() if key != "seconds"}
            if part["commit"] != commit:
                kept[name]["commit"] = row.get("commit", part["commit"])
    return {
        "command": "; ".join(dict.fromkeys(part["command"] for part in found)),
        "commit": commit,
        "machine": machine or found[-1]["machine"],
        "begun": min(part["begun"] for part in found),
        "problems": kept,
    }


def _wanted(options: argparse.Namespace) -> list[str]:
    part, parts = (int(number) for number in options.part.split("/"))
    named = [
        name if name.startswith("half_") else name + options.suffix
        for suite in options.suites
        for name in problems.names(suite)
    ]
    return (options.problems or named)[part - 1 :: parts]


def _resumed(path: Path) -> dict[str, Any]:
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"problems": {}}
    return {**records.stamp(), "problems": before["problems"]}


def _timed(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return eager's microseconds, and a row for each strategy.

    A row holds the strategy as text, predicted and measured microseconds, registers, bytes of local memory, and the
    largest difference from PyTorch's result, or the fault.
    """
    began = time.monotonic()
    problem = _problem(name, options)
    device = CudaJudge()
    reference = Reference(problem.source, problem.policy, device, seed=SEED)
    facts = reference.facts(problem.content_hash())
    brief = Briefing(
        problem=problem, facts=facts, target=DEVICE.target, device=DEVICE, placement=place(facts, PEAKS), peaks=PEAKS
    )
    try:
        with ThreadPoolExecutor(options.compilers) as pool:
            compiled = list(pool.map(_compiled, *zip(*_kernels(brief, options), strict=True)))
    except NoTemplate as error:
        return {"failure": str(error)[:200]}
    tensors = reference.draw(SEED + 1)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    slots = [tensors]
    while len(slots) < MOST_SLOTS and size * len(slots) < 4 * device.cache_bytes:
        slots.append([tensor.clone() for tensor in tensors])
    expected = reference.run(tensors)
    with device.policy(problem.policy):
        eager = _eager_seconds(device, [reference.caller(slot) for slot in slots])
    card = _Card(facts, slots, expected)
    rows = []
    for each in compiled:
        predicted = cost.predicted(operator_of(brief), each.strategy, facts, rates(DEVICE, PEAKS, facts.policy))
        rows.append([text_of(each.strategy), round(predicted.seconds * 1e6, 2), *card.measured(each)])
    return {"eager_us": round(eager * 1e6, 2), "seconds": round(time.monotonic() - began, 1), "strategies": rows}


def _problem(name: str, options: argparse.Namespace) -> Problem:
    policy = NumericsPolicy(options.policy)
    if not name.endswith(".py"):
        return problems.load(name, size=options.size, policy=policy)
    return Problem(name=Path(name).stem, source=Path(name).read_text(encoding="utf-8"), policy=policy)


def _kernels(brief: Briefing, options: argparse.Namespace) -> Iterator[tuple[Briefing, Strategy, Kernel]]:
    """Yield different kernels: of the strategies that were named, else of the playbook's first ones."""
    translator = PlaybookTranslator()
    if options.strategies:
        ideas = [parse(text if ": " in text else f"{text}: ") for text in options.strategies]
    else:
        ideas = [idea.strategy for idea in PlaybookManager().initial_strategies(brief, [], options.count, SEED)]
    seen: set[str] = set()
    for strategy in ideas:
        try:
            kernel = translator.translate(brief, strategy, (), SEED)
        except NotApplicable as error:
            say(str(error))
            continue
        for plan in _plans(kernel, options.tunables):
            chosen = kernel.model_copy(update={"plan": plan})
            if chosen.content_hash() not in seen:
                seen.add(chosen.content_hash())
                yield brief, strategy, chosen


def _plans(kernel: Kernel, tunables: bool) -> list[Any]:
    if not tunables:
        return [kernel.plan]
    others = [
        kernel.plan.with_values({name: choice})
        for name, tunable in kernel.plan.tunables.items()
        for choice in tunable.choices
    ]
    return [kernel.plan, *others]


def _compiled(brief: Briefing, strategy: Strategy, kernel: Kernel) -> Compiled:
    includes = [f"-I{folder}" for folder in installation.include_folders()]
    header = render(brief.facts, kernel.plan.values())
    program = Program(installation.nvrtc(), kernel.source, {"problem.h": header})
    arch = f"-arch={architecture(brief.device.arch)}"
    made = program.compile(["--std=c++17", "--device-as-default-execution-space", arch, *includes])
    cubin = program.cubin() if made else b""
    return Compiled(strategy, kernel, resolve(kernel, brief.facts), cubin, program.log())


class _Card:
    """Launches kernels of one problem in this process."""

    def __init__(self, facts: Any, slots: Sequence[Sequence[torch.Tensor]], expected: Sequence[torch.Tensor]) -> None:
        self._given = [spec.name for spec in facts.tensors if spec.role is not Role.OUTPUT]
        self._made = [spec.name for spec in facts.tensors if spec.role is Role.OUTPUT]
        self._slots, self._expected = slots, expected
        self._outputs = [[torch.empty_like(tensor) for tensor in expected] for _ in slots]
        self._runner = CudaRunner()

    def measured(self, each: Compiled) -> list[Any]:
        """Return microseconds, registers, local bytes, and the largest difference from PyTorch's result or a fault."""
        if not each.cubin:
            return [None, 0, 0, each.log[:200]]
        scratch = {
            name: torch.empty(size, dtype=torch.uint8, device="cuda") for name, size in each.plan.workspace.items()
        }
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(each.cubin)
            file.flush()
            try:
                loaded = self._runner.load(file.name, [item.model_dump(mode="json") for item in each.plan.launches])
                self._runner.adopt(0)
                self._runner.bind([self._places(slot, scratch) for slot in range(len(self._slots))])
                for tensor in self._outputs[0]:
                    tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
                torch.cuda.synchronize()
                self._runner.run([0])
            except Exception as error:
                torch.cuda.synchronize()
                return [None, 0, 0, str(error)[:200]]
        difference = max(map(_difference, self._outputs[0], self._expected))
        seconds = _blocks(self._replayed, len(self._slots))
        registers = max(item["registers"] for item in loaded["kernels"])
        spilled = max(item["local_bytes"] for item in loaded["kernels"])
        return [round(seconds * 1e6, 2), registers, spilled, f"{difference:.1e}"]

    def _replayed(self, order: Sequence[int]) -> float:
        if self._runner.capture(order) is not None:
            return self._runner.run(order)
        return self._runner.replay()

    def _places(self, slot: int, scratch: dict[str, torch.Tensor]) -> dict[str, int]:
        given = dict(zip(self._given, self._slots[slot], strict=True))
        made = dict(zip(self._made, self._outputs[slot], strict=True))
        return {name: tensor.data_ptr() for name, tensor in (given | made | scratch).items()}


def _eager_seconds(device: CudaJudge, callers: Sequence[Callable[[], object]]) -> float:
    """Return eager's seconds, replayed as a graph where its calls can be captured."""

    def run(order: Sequence[int]) -> float:
        calls = [callers[slot] for slot in order]
        try:
            return device.baseline_seconds([device.captured(calls)])
        except GraphUnavailable:
            return device.baseline_seconds(calls)

    return _blocks(run, len(callers))


def _difference(made: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference in spreads of the expected values, of a sample; NaN where one is not a number."""
    step = max(1, made.numel() // 10**7)
    first, second = (tensor.reshape(-1)[::step].double() for tensor in (made, expected))
    same = (first == second) | (first.isnan() & second.isnan())
    gap = torch.where(same, 0.0, (first - second).abs())
    finite = second[second.isfinite()]
    spread = float(finite.std()) if finite.numel() > 1 else 1.0
    return float(gap.max()) / (spread or 1.0)


def _blocks(run: Callable[[Sequence[int]], float], slots: int) -> float:
    """Return the median of a launch's seconds in blocks that are long against a clock."""
    once = run(range(slots)) / slots
    count = min(MOST_LAUNCHES, max(slots, round(BLOCK_SECONDS / max(once, 1e-6))))
    order = [place % slots for place in range(count)]
    return median(run(order) / count for _ in range(BLOCKS))


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.strategy_times", description=(__doc__ or "")[:80])
    parser.add_argument("--suites", nargs="+", default=list(problems.SUITES), choices=list(problems.SUITES))
    parser.add_argument("--problems", nargs="+", default=[], help="names, or files, in place of suites")
    parser.add_argument("--suffix", default="", help="_bfloat16 or _float16: problems with tensors of that type")
    parser.add_argument("--size", choices=["small", "full"], default="full")
    parser.add_argument("--policy", choices=[item.value for item in NumericsPolicy], default=NumericsPolicy.FP32.value)
    parser.add_argument("--count", type=int, default=8, help="strategies of each problem")
    parser.add_argument("--strategies", nargs="+", help="strategies as text, in place of the playbook's first ones")
    parser.add_argument("--tunables", action="store_true", help="each tunable's choices too, one at a time")
    parser.add_argument("--part", default="1/1", help="I/N: every N-th problem, from the I-th on")
    parser.add_argument("--device", help="GPU UUID or index")
    parser.add_argument("--compilers", type=int, default=8, help="compilers that run side by side")
    parser.add_argument("--seconds", type=float, default=3_600.0, help="begin no problem after so many")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="records to put into one, timing nothing")
    parser.add_argument("--machine", default="", help="with --merge: the machine, in words")
    parser.add_argument("--out", type=Path, default=Path(".cupilot/strategy_times.json"))
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
