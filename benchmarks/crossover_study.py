"""The crossover-complexity study of cuPilot's Figure 1, as one command: ``python -m benchmarks.crossover_study``.

Parents with one to four techniques are crossed as strategies and as code; a child succeeds when it is correct and has
all techniques of both. Needs what ``benchmarks.evolve_local`` needs. Where a model is configured
(``CUPILOT_LLM_MODEL``) it plays both arms. Without one the playbook does: its strategy arm renders templates, its code
arm splices lines and understands nothing, so it says how fragile code is, not how well a model merges it. How to read
the result: ``docs/experiments.md``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from agents.interface import Agents, Briefing
from agents.llm.models import from_environment
from agents.playbook import agents as playbook
from benchmarks import records
from benchmarks.crossover_pairs import Size, pairs
from benchmarks.crossover_report import draw, head, lines, summary
from benchmarks.crossover_trials import Arm, Study, Trial, rows
from benchmarks.local_report import machine
from benchmarks.plain_judge import plain_judge
from cupilot.domain import problems
from cupilot.domain.errors import CupilotError, InvalidInput
from cupilot.domain.problem import NumericsPolicy, Problem, Target
from cupilot.reports.canvas import Format
from gpu_worker.evaluator import Evaluator

SERIES = ("1x1", "1x2", "1x3", "1x4")
"""The paper's: one technique against one to four."""
TRIES = 20
"""Pairs that are given up for each that is wanted, before a size is given up."""


def main() -> int:
    """Run the study; 0 when at least one trial could be made."""
    options = _options()
    players, who = _players(options.agents, options.cost)
    print(head(who), flush=True)
    run: dict[str, Any] = {**records.stamp(), "players": who}
    trials: list[Trial] = []
    notes: list[str] = []
    target = Target(options.target)
    with plain_judge(target, options.work_dir, device=options.device, threads=options.threads) as judge:
        for name in options.problem:
            problem = problems.load(name, size=options.size, policy=NumericsPolicy(options.policy))
            study = _study(problem, judge, players, target)
            run["machine"] = machine(study.preparation.environment)
            for text in options.sizes:
                done, remarks = _size(study, Size.parse(text), options)
                trials += done
                notes += remarks
                _keep(options.out, run, trials, notes)
    print("\n".join([*lines(summary(trials)), *notes]))
    return 0 if trials else 1


def _study(problem: Problem, judge: Evaluator, players: Agents, target: Target) -> Study:
    result = judge.prepare(problem)
    if result.preparation is None:
        assert result.failure is not None
        raise InvalidInput(f"{problem.name} cannot be used: {result.failure.message}")
    preparation = result.preparation
    briefing = Briefing(
        problem=problem,
        facts=preparation.facts,
        target=target,
        device=preparation.environment.device,
        placement=preparation.placement,
        peaks=preparation.peaks,
        baseline_us=preparation.baseline_us.median,
        compiler=preparation.environment.compiler,
    )
    return Study(problem, preparation, briefing, judge, players, playbook())


def _size(study: Study, size: Size, options: argparse.Namespace) -> tuple[list[Trial], list[str]]:
    """Run the trials of one size, and say why there are fewer than were wanted."""
    trials: list[Trial] = []
    done = unusable = 0
    for number, pair in enumerate(pairs(study.briefing, size, options.seed, believe=options.believe)):
        if done == options.trials or unusable == options.trials * TRIES:
            break
        parents = study.parents(pair)
        if parents is None:
            unusable += 1
            continue
        for arm in Arm:
            trial = study.trial(size, arm, pair, parents, options.seed + number)
            if trial is not None:
                trials.append(trial)
                print(f"{study.problem.name} {size} {arm.value}: {trial.outcome.value}", flush=True)
        done += 1
    where = f"{study.problem.name} on {options.target}, {size}"
    if not done:
        return trials, [f"{where}: there are no such parents{'' if options.believe else ' with checkable techniques'}."]
    notes = [f"{where}: {done} of {options.trials} pairs, there are no more."] if done < options.trials else []
    return trials, notes + (
        [f"{where}: {unusable} pairs had a parent that does not count, or not its own traces."] if unusable else []
    )


def _keep(out: Path, run: dict[str, Any], trials: list[Trial], notes: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    shares = summary(trials)
    data = {**run, "summary": shares, "notes": notes, "pairs": rows(trials)}
    records.write(out / "crossover.json", data, tables=True)
    for form in Format:
        (out / f"crossover.{form.value}").write_bytes(draw(shares, str(run["players"]), form))


def _players(choice: str, budget: float) -> tuple[Agents, str]:
    """Return the agents that cross, and what to call them."""
    models = None if choice == "playbook" else from_environment()
    if models is None:
        if choice == "llm":
            raise InvalidInput("no model is configured", hint="set CUPILOT_LLM_MODEL, or use --agents playbook")
        return playbook(), "playbook"
    from agents.llm.assembly import llm
    from agents.llm.ledger import MemoryLedger

    return llm(models, MemoryLedger(budget)), f"model {', '.join(model.name for model in models.default)}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crossover_study", description=__doc__.splitlines()[0])
    parser.add_argument("--problem", nargs="+", default=["softmax"], help="built-in problems")
    parser.add_argument("--size", choices=["small", "full"], default="small", help="of the problems")
    parser.add_argument("--target", choices=[target.value for target in Target], default=Target.CPU.value)
    parser.add_argument(
        "--policy", choices=[policy.value for policy in NumericsPolicy], default=NumericsPolicy.FP32.value
    )
    parser.add_argument("--sizes", nargs="+", default=SERIES, metavar="AxB", help="techniques of both parents")
    parser.add_argument("--trials", type=int, default=20, help="pairs of parents for each size and problem")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--agents", choices=["auto", "playbook", "llm"], default="auto", help="auto: llm where one is set"
    )
    parser.add_argument("--cost", type=float, default=10.0, help="US dollars that models may cost in all")
    parser.add_argument(
        "--believe",
        action="store_true",
        help="also techniques without a trace; these count as retained, so read with care",
    )
    parser.add_argument("--device", help="GPU UUID or index")
    parser.add_argument("--threads", type=int, help="CPU threads for kernel and baseline alike")
    parser.add_argument("--work-dir", type=Path, default=Path(".cupilot/local"), help="builds, scratch, measured peaks")
    parser.add_argument("--out", type=Path, required=True, help="folder for crossover.json, .svg and .png")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CupilotError as error:
        sys.exit(f"{error.code}: {error}" + (f"\n{error.hint}" if error.hint else ""))
