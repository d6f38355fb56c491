"""Results from champions and records: classes in the README, each kernel and run on ``docs/results.md``.

``python -m benchmarks.readme [--write]``. Measures nothing. A test holds both against this output.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import evolved, records
from benchmarks.local_report import speedup_over
from cupilot.domain import problems
from cupilot.domain.champions import Champion, champions
from cupilot.domain.data_sheets import stated_peaks
from cupilot.domain.evaluation import Baseline, Comparison, Evaluation
from cupilot.domain.problem import NumericsPolicy
from cupilot.reports.job import factor

README = records.ROOT / "README.md"
PAGE = records.ROOT / "docs/results.md"
PAGE_HEAD = """# Results

With this page you can look up how fast each kernel is that ships with the release, and what whole runs of the
playbook came to. Every row is `reproduced`: proved again in fresh processes. Speedups have their 95 % intervals. Made
by `python -m benchmarks.readme` from the champions in `cupilot/domain/shipped` and from
[records](../benchmarks/results). Kernels of a model were written by a large language model behind an
OpenAI-compatible endpoint from the service's own prompts, those of the playbook by its templates, without a model.
Names that end with a type are [problems with tensors of that type](cli.md).

"Of the bound" is the least time that memory, or the operations of the best known algorithm, need by the card's data
sheet, over the kernel's. "Of the peak", in the playbook's runs, counts the reference's own operations (an H200 SXM: 4.8
TB/s; 67 TFLOP/s fp32; 494.5 TFLOP/s tf32 without sparsity), of which a Winograd kernel (`conv_transpose2d_square`)
needs fewer. A job's own report compares with peaks that were measured on its card (here 4.2 to 4.5 TB/s).

"""
RUNS = ("cpu_level1", "h200_fp32", "h200_fp32_more", "h200_tf32")
SLOWER = "h200_model_slower"
"""Record of kernels that were reproduced, and are slower than eager."""
AHEAD = 1.005
"""A kernel that is ahead of a baseline is so by half a percent at least."""
_FAMILIES = {
    "elementwise": "pointwise", "reduction": "reductions", "norm": "norms", "scan": "scans", "softmax": "softmax",
    "loss": "losses", "pool": "pooling", "matmul": "matrix products", "attention": "attention",
}  # fmt: skip
BEGIN, END = "<!-- results -->\n", "<!-- /results -->\n"


@dataclass(frozen=True)
class Row:
    """A job with its winner's last evaluation."""

    job: dict[str, Any]
    winner: Evaluation

    @property
    def device(self) -> str:
        """Name of the device, with the threads that a CPU kernel has."""
        environment = self.job["environment"]
        name, threads = environment["device"]["name"], environment["threads"]
        return f"{name}, {threads} threads" if threads else f"one {name}"

    @property
    def fastest(self) -> Comparison:
        """The comparison with the fastest baseline."""
        return min(self.winner.comparisons, key=lambda comparison: comparison.speedup.median)

    @property
    def ahead(self) -> bool:
        """True if the kernel is faster than every baseline, beyond the interval and by half a percent at least."""
        return self.fastest.speedup.low > 1 and self.fastest.speedup.median > AHEAD

    def share_of_peak(self) -> float | None:
        """Return the time of memory and directly counted operations by the data sheet over the kernel's.

        None for a device without a data sheet.
        """
        sheet = stated_peaks(self.job["environment"]["device"]["name"])
        eager = self.winner.comparison()
        if sheet is None or eager is None:
            return None
        peaks, placement = self.job["peaks"], self.job["placement"]
        if placement.get("stated"):
            return float(placement["stated"]["direct_us"] / eager.kernel_us.median)
        tensor = self.job["policy"] == NumericsPolicy.TF32.value and self.job["op_class"] == "matmul"
        measured, stated = (
            (peaks["tensor_flops"]["tf32"], sheet.tf32) if tensor else (peaks["scalar_flops"], sheet.fp32)
        )
        memory = placement["memory_floor_us"] * peaks["bandwidth"] / sheet.bandwidth
        arithmetic = placement["compute_floor_us"] * measured / stated
        return float(max(memory, arithmetic) / eager.kernel_us.median)


def section() -> str:
    """Return what stands between the README's two marks: champions by class."""
    return "\n".join(_classes_table())


def page(runs: tuple[str, ...] = RUNS) -> str:
    """Return the page of results: champions, then a table for each device's records."""
    tables: dict[str, list[Row]] = {}
    for row in _rows(runs):
        tables.setdefault(row.device, []).append(row)
    records_of = ["\n".join(_table(heading, tables[heading])) for heading in sorted(tables)]
    return PAGE_HEAD + "\n".join(["\n".join(_champions_table()), *records_of]).rstrip("\n") + "\n"


def updated(readme: str) -> str:
    """Return the README with the present results."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{section()}{END}{after}"


def _rows(runs: tuple[str, ...]) -> Iterator[Row]:
    for run in runs:
        for job in evolved.jobs(run):
            if "winner" in job:
                winner = Evaluation.model_validate(job["winner"]["evaluation"])
                if winner.verdict.counts and winner.comparison():
                    yield Row(job, winner)


def _classes_table() -> Iterator[str]:
    classes: dict[str, list[Champion]] = {}
    for champion in champions():
        classes.setdefault(_class(champion), []).append(champion)
    yield "Kernels that ship with the release, each measured on one H100 or H200; speedups are geometric means:\n"
    yield "| class | kernels | over PyTorch eager | over the fastest of three baselines | of these ahead of it |"
    yield "|---|---|---|---|---|"
    for name, members in sorted(classes.items()):
        eager, fastest, ahead = _speedups(members)
        yield f"| {name} | {len(members)} | {eager:.2f}x | {fastest:.2f}x | {ahead} |"
    yield f"\n{_champions_summary(champions())}\n"


def _class(champion: Champion) -> str:
    """Return the class that a champion is counted in: of single operators the family, of blocks their suite."""
    base, _, dtype = champion.problem.rpartition("_")
    name = base if dtype in problems.HALF_TYPES else champion.problem
    suite = next(suite for suite in problems.SUITES if name in problems.names(suite))
    if suite != "level1":
        return f"`{suite}` in half precision" if champion.policy is NumericsPolicy.HALF else f"`{suite}`"
    if name.startswith("conv"):
        kind = "transposed" if "transpose" in name else "depthwise" if "depthwise" in name else "other"
        return f"level 1, {champion.policy.value}: {kind} convolutions"
    return f"level 1, {champion.policy.value}: {_FAMILIES[champion.preparation.facts.op_class]}"


def _champions_table() -> Iterator[str]:
    shown = sorted(champions(), key=lambda champion: (champion.author, champion.policy.value, champion.problem))
    yield "## Kernels that ship\n"
    yield "`cupilot best PROBLEM` writes one with its evidence. Each was measured on one card:\n"
    heads = ["problem", "policy", "card", "written by", "over PyTorch eager", "fastest baseline", "over it"]
    heads += ["of the bound", "generation"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for champion in shown:
        fastest, eager = _fastest(champion), champion.evaluation.comparison()
        assert eager is not None
        placement = champion.evaluation.placement or champion.preparation.placement  # on the card that measured it
        share = placement.floor_share(eager.kernel_us.median)
        card = champion.device.removeprefix("NVIDIA ")
        cells = [champion.problem, champion.policy.value, card, champion.author, factor(eager.speedup)]
        cells += [_name(fastest.baseline), f"{fastest.speedup.median:.2f}x", f"{share:.0%}", str(champion.generation)]
        yield f"| {' | '.join(cells)} |"
    yield f"\n{_champions_summary(shown)}\n"
    yield f"{_without_champion(shown)}\n"


def _without_champion(shown: Sequence[Champion]) -> str:
    """Name the problems of level 1 that no kernel ships for, and what was reproduced for them."""
    known = {champion.problem for champion in shown if champion.policy is NumericsPolicy.FP32}
    slower = {row.job["problem"]: row.fastest.speedup.median for row in _rows((SLOWER,))}
    missing = [name for name in problems.names("level1") if name not in known]
    words = [f"{name} ({slower[name]:.2f}x)" if name in slower else name for name in missing]
    return (
        f"Of the {len(problems.names('level1'))} problems of level 1 under `fp32`, {len(missing)} have no kernel that"
        f" ships: {', '.join(words)}. In brackets, what was reproduced for them, over the fastest baseline"
        f" ([record](../benchmarks/results/{SLOWER}.json)): no kernel ships that is slower than eager."
    )


def _champions_summary(shown: Sequence[Champion]) -> str:
    sentences = []
    for author in sorted({champion.author for champion in shown}):
        mine = [champion for champion in shown if champion.author == author]
        eager, fastest, ahead = _speedups(mine)
        sentences.append(
            f"By the {author}: {len(mine)} kernels, geometric mean {eager:.2f}x over eager and "
            f"{fastest:.2f}x over the fastest of the three baselines; {ahead} are ahead of it."
        )
    return " ".join(sentences)


def _speedups(members: Sequence[Champion]) -> tuple[float, float, int]:
    """Return geometric means over eager and over the fastest baseline, and how many are ahead of the latter."""
    fastest = [_fastest(champion).speedup.median for champion in members]
    eager = [_over_eager(champion) for champion in members]
    return _mean(eager), _mean(fastest), sum(speedup > AHEAD for speedup in fastest)


def _over_eager(champion: Champion) -> float:
    comparison = champion.evaluation.comparison()
    assert comparison is not None
    return comparison.speedup.median


def _fastest(champion: Champion) -> Comparison:
    return min(champion.evaluation.comparisons, key=lambda comparison: comparison.speedup.median)


def _mean(speedups: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, speedups)) / len(speedups))


def _table(heading: str, rows: list[Row]) -> Iterator[str]:
    autotuned = any(row.winner.comparison(Baseline.MAX_AUTOTUNE) for row in rows)
    baselines = [Baseline.EAGER, Baseline.COMPILE, *([Baseline.MAX_AUTOTUNE] if autotuned else [])]
    heads = [*(f"over {_name(baseline)}" for baseline in baselines), "over the fastest of them"]
    shares = [row.share_of_peak() for row in rows]
    heads += ["of the peak"] if any(shares) else []
    yield f"## Runs of the playbook on {heading}\n"
    yield f"| problem | policy | {' | '.join(heads)} | found in, ended by |"
    yield "|---|---|" + "---|" * (len(heads) + 1)
    for row, share in zip(rows, shares, strict=True):
        cells = [row.job["problem"], row.job["policy"], *(speedup_over(row.winner, baseline) for baseline in baselines)]
        cells += [f"{row.fastest.speedup.median:.2f}x", *([f"{share:.0%}"] if share else []), _search(row.job)]
        yield f"| {' | '.join(cells)} |"
    yield f"\n{_summary(rows)}\n"


def _name(baseline: Baseline) -> str:
    return {Baseline.EAGER: "PyTorch eager", Baseline.COMPILE: "`torch.compile`"}.get(baseline, "max-autotune")


def _search(job: dict[str, Any]) -> str:
    generation = {candidate["id"]: candidate["generation"] for candidate in job["candidates"]}[job["best"]] + 1
    ended = {"wall_seconds": "time", "near_floor": "near the bound", "generations": "generations"}
    return f"generation {generation}, {ended.get(job['stop'], job['stop'])}"


def _summary(rows: list[Row]) -> str:
    mean = _mean([row.fastest.speedup.median for row in rows])
    ahead = sum(row.ahead for row in rows)
    first = sum("generation 1," in _search(row.job) for row in rows)
    late = sum(row.job["stop"] == "wall_seconds" for row in rows)
    cut = f"; {late} searches were cut by their time limit" if late else ""
    return (
        f"Against the fastest baseline of each row, {ahead} of {len(rows)} are ahead, geometric mean {mean:.2f}x. "
        f"{first} of {len(rows)} winners are of the first generation{cut}."
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        README.write_text(updated(README.read_text(encoding="utf-8")), encoding="utf-8")
        PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(section())
