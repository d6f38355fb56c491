"""The README's tables of results, from champions and records: ``python -m benchmarks.readme [--write]``.

Measures nothing. A test holds the README against this output.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import records
from benchmarks.local_report import speedup_over
from cupilot.domain.champions import Champion, champions
from cupilot.domain.data_sheets import stated_peaks
from cupilot.domain.evaluation import Baseline, Comparison, Evaluation
from cupilot.domain.problem import NumericsPolicy
from cupilot.reports.job import factor

README = records.ROOT / "README.md"
RUNS = ("cpu_level1", "h200_fp32", "h200_fp32_more", "h200_tf32")
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
        return self.fastest.speedup.low > 1 and self.fastest.speedup.median > 1.005

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


def section(runs: tuple[str, ...] = RUNS) -> str:
    """Return what stands between the README's two marks: champions, then a table for each device's records."""
    tables: dict[str, list[Row]] = {}
    for row in _rows(runs):
        tables.setdefault(row.device, []).append(row)
    records_of = ["\n".join(_table(heading, tables[heading])) for heading in sorted(tables)]
    return "\n".join(["\n".join(_champions_table()), *records_of])


def updated(readme: str) -> str:
    """Return the README with the present results."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{section()}{END}{after}"


def _rows(runs: tuple[str, ...]) -> Iterator[Row]:
    for run in runs:
        for job in records.read(run)["jobs"]:
            if "winner" in job:
                winner = Evaluation.model_validate(job["winner"]["evaluation"])
                if winner.verdict.counts and winner.comparison():
                    yield Row(job, winner)


def _champions_table() -> Iterator[str]:
    shown = sorted(champions(), key=lambda champion: (champion.author, champion.policy.value, champion.problem))
    yield "Kernels that ship with the release (`cupilot best PROBLEM`), each measured on one card:\n"
    heads = ["problem", "policy", "card", "written by", "over PyTorch eager", "fastest baseline", "over it"]
    heads += ["of the bound", "generation"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for champion in shown:
        fastest, eager = _fastest(champion), champion.evaluation.comparison()
        assert eager is not None
        share = champion.preparation.placement.floor_share(eager.kernel_us.median)
        card = champion.device.removeprefix("NVIDIA ")
        cells = [champion.problem, champion.policy.value, card, champion.author, factor(eager.speedup)]
        cells += [_name(fastest.baseline), f"{fastest.speedup.median:.2f}x", f"{share:.0%}", str(champion.generation)]
        yield f"| {' | '.join(cells)} |"
    yield f"\n{_champions_summary(shown)}\n"


def _champions_summary(shown: Sequence[Champion]) -> str:
    sentences = []
    for author in sorted({champion.author for champion in shown}):
        mine = [champion for champion in shown if champion.author == author]
        eager = [_over_eager(champion) for champion in mine]
        fastest = [_fastest(champion).speedup.median for champion in mine]
        ahead = sum(speedup > 1.005 for speedup in fastest)
        sentences.append(
            f"By the {author}: {len(mine)} kernels, geometric mean {_mean(eager):.2f}x over eager and "
            f"{_mean(fastest):.2f}x over the fastest of the three baselines; {ahead} are ahead of it."
        )
    return " ".join(sentences)


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
    yield f"On {heading}:\n"
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
    sys.stdout.write(section())
