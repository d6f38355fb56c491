"""Writes ``docs/coverage.md`` from what a coverage run found: ``python -m benchmarks.coverage_page --write``.

Reads ``benchmarks/results/coverage.json``, which ``benchmarks.coverage`` wrote, and the verdicts of
``judged_coverage.json`` (on ``cpu``) and ``h200_judged_coverage.json``, which ``benchmarks.judged_coverage`` wrote, and
the times of ``h200_strategy_times.json``, which ``benchmarks.strategy_times`` wrote.
Without ``--write`` it prints the page, and ends with status 1 where the file differs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from textwrap import fill
from typing import Any

from agents.playbook.compiler.lowering import supported
from agents.playbook.recognition.values import base_name
from benchmarks import pages, records
from cupilot.domain.evaluation import Verdict
from gpu_worker.reference.complex_numbers import followed
from gpu_worker.reference.decompositions import decomposed
from gpu_worker.reference.fourier import MAX_POINTS

SLOWER = 0.95
PAGE = Path(__file__).parents[1] / "docs/coverage.md"

_HEAD = """# What the playbook covers

With this page you can look up which built-in problems get a kernel without a language model, and how. `pointwise`,
`rows` and `matmul` are families of templates with many techniques; `compiler` cuts any graph of supported calls into
launches over index maps, products tiled; the launches that the table counts are those of its plain kernel.
Each kernel was rendered for both targets under `fp32`, `tf32` and `half`, at
the problem's small size, and compiled for sm_90a ([record](../benchmarks/results/coverage.json),
`python -m benchmarks.coverage`). The first kernel that a job would try was judged besides, once and without a search
(`python -m benchmarks.judged_coverage`, which goes on where it stopped):

- on `cpu` under `fp32` at the small size ([record](../benchmarks/results/judged_coverage.json)): the speedup over eager
  is that of a small size on a shared machine, and says little;
- on an H200 at full size ([record](../benchmarks/results/h200_judged_coverage.json), whose rows name their commits):
  level 1 under `fp32`, `fusion` and `inference` with tensors of bfloat16 under `half`. "Of the bound" is as in
  [results](results.md).

All of these were also timed on an H200 beside PyTorch eager, without a judge
([record](../benchmarks/results/h200_strategy_times.json), `python -m benchmarks.strategy_times`; rows of an earlier
commit name it): the column "timed".

{covered} of {total} problems have kernels for both targets under every policy. {judged} were judged on `cpu`, and the
kernels of {held} were audited or better. In half precision (`softmax_bfloat16`, `softmax_float16`), {half} of
{halves} have such kernels.{refused} Templates take tensors of 16 bits on `cuda`, but for
products of matrices; all else of such problems is the compiler's.

On the H200 the first kernels of {cards} were audited or better.
In these times the geometric mean over eager is {level1}x for level 1 and {suites}x for the others. Slower than eager,
by more than a twentieth, are
{slower}.
A longer search, and models, find faster kernels: see [results](results.md).

A reference of your own is covered where each of its calls is [supported](#supported-calls). Where one is not, the job
ends with `no_template`, quotes the line of your file and names the calls near it that are supported; `--agents hybrid`
lets a model go on.

{columns}
{rule}
"""


_COLUMNS = ("suite", "problem", "family", "launches on `cuda`", "not covered", "on `cpu`", "over eager (interval)",
            "on an H200", "over eager (interval)", "of the bound", "timed")  # fmt: skip


def page() -> str:
    """Return the text of ``docs/coverage.md``."""
    record = records.read("coverage")
    rows, half = record["problems"], record["half_types"]
    judged = {row["problem"]: row for row in records.read("judged_coverage")["problems"]}
    cards = {row["problem"].removesuffix("_bfloat16"): row for row in records.read("h200_judged_coverage")["problems"]}
    timed = records.read("h200_strategy_times")
    times = {name.removesuffix("_bfloat16"): _times_eager(row) for name, row in timed["problems"].items()}
    head = _HEAD.format(
        covered=sum(not row["refused"] for row in rows),
        total=len(rows),
        judged=len(judged),
        half=half["problems"] - len(half["refused"]),
        halves=half["problems"],
        refused="".join(f" `{name}` has none: {why.partition(' (line')[0]}." for name, why in half["refused"].items()),
        held=sum(row["verdict"] in _COUNTING for row in judged.values()),
        columns=f"| {' | '.join(_COLUMNS)} |",
        rule=f"|{'---|' * len(_COLUMNS)}",
        **_on_cards(list(cards.values())),
        **_timed(times, {row["problem"] for row in rows if row["suite"] == "level1"}),
    )
    table = (
        _row(row, judged.get(row["problem"]), cards.get(row["problem"]), times.get(row["problem"])) for row in rows
    )
    return head + "".join(table) + _calls()


def _on_cards(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return what is said of the kernels judged on a card."""
    held = [row for row in rows if row["verdict"] in _COUNTING]
    unprepared = [row["problem"] for row in rows if row["verdict"] == "not prepared"]
    words = f"{len(held)} of {len(rows)} problems"
    if unprepared:
        names = ", ".join(f"`{name}`" for name in unprepared)
        words += f" (PyTorch's own answers to {names} were no measure of a kernel)"
    return {"cards": words}


def _times_eager(row: dict[str, Any]) -> float:
    """Return eager's time over that of the first strategy."""
    return float(row["eager_us"] / row["strategies"][0][2])


def _timed(times: dict[str, float], level1: set[str]) -> dict[str, str]:
    """Return what is said of the kernels timed on a card."""
    first = geometric_mean([time for name, time in times.items() if name in level1])
    others = geometric_mean([time for name, time in times.items() if name not in level1])
    slower = _listed(sorted(name for name, time in times.items() if time < SLOWER))
    return {"level1": f"{first:.2f}", "suites": f"{others:.2f}", "slower": slower}


def _calls() -> str:
    """Return the section that names what the compiler lowers."""
    names = sorted({base_name(op) for op in supported() if op.startswith("aten.")})
    parts = [f"\n{_CALLS}\n{_listed(names)}", f"{_SIMPLER}\n{_listed(sorted(decomposed()))}"]
    parts.append(f"{_COMPLEX.format(points=MAX_POINTS)}\n{_listed(sorted(followed()))}")
    return "\n\n".join(parts) + "\n"


def _listed(names: Sequence[str]) -> str:
    return fill(", ".join(f"`{name}`" for name in names), 120, break_on_hyphens=False)


_CALLS = """## Supported calls

Names are those of ATen, which a reference's calls become when it is traced: `F.linear` is `addmm`, say. Calls in place
(`add_`) are followed through views. Not every variant of each call is supported; the refusal says which is not.
Rows that a mask selects (`x[mask]`, `masked_select`, `nonzero`, `where(mask)`) are supported in calls that treat rows
apart, in sums, means, extremes, sorts, losses and products over them, and in writes under the same mask. They cannot be
a result, and a number of rows that `forward` asks for (`len(x[mask])`) is a constant: the one of the traced call.
Inverses, solutions, determinants and Cholesky factors are supported of matrices with up to 8 rows. Graphs may be long:
where a plan's 32 launches do not suffice on `cuda`, small groups share cooperative ones.
"""

_SIMPLER = """These are traced as the simpler calls that they stand for, as are layers that PyTorch has one call for, as
`nn.MultiheadAttention`, `nn.TransformerEncoderLayer` and `nn.LSTM`. A call with `out=` is its form without and a copy,
where the tensor has the result's shape and type. Derivatives that `forward` takes (`torch.func.grad`, `torch.func.vjp`,
`torch.autograd.grad`) are the calls that PyTorch makes for them:
"""

_COMPLEX = """Complex tensors within `forward`, as in rotary embeddings, are followed by their real and imaginary parts
through the calls below, also where they write in place; arguments, buffers and results are real
(`torch.view_as_real`). Fourier transforms of up to {points:,} points become products with matrices of cosines and
sines, which are slower than fast transforms:
"""

_COUNTING = frozenset(verdict.value for verdict in Verdict if verdict.counts)


def _row(row: dict[str, Any], judged: dict[str, Any] | None, card: dict[str, Any] | None, timed: float | None) -> str:
    refused = "; ".join(f"`{where}`: {why}" for where, why in row["refused"].items())
    verdict, speed = _judged(judged)
    known = [str(row[key]) for key in ("suite", "problem", "family", "launches")]
    share = "" if card is None or "of_bound" not in card else f"{card['of_bound']:.0%}"
    times = "" if timed is None else f"{timed:.2f}"
    return f"| {' | '.join([*known, refused, verdict, speed, *_judged(card), share, times])} |\n"


def _judged(row: dict[str, Any] | None) -> tuple[str, str]:
    """Return the verdict, with what failed, and the speedup."""
    if row is None:
        return "no", ""
    failure = " ".join(row.get("failure", "").split()).replace("|", "\\|")
    low, median, high = row.get("speedup", (None, None, None))
    speed = "" if median is None else f"{median:.2f} ({low:.2f} to {high:.2f})"
    return row["verdict"] + (f": {failure}" if failure else ""), speed


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 when the page is not what the run found."""
    return pages.main("coverage_page", __doc__, PAGE, page, arguments)


if __name__ == "__main__":
    sys.exit(main())
