"""Questions to Nsight Compute in each zone, and how its table is read, missing metrics and all."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from cupilot.domain.kernel import ResolvedLaunch, ResolvedPlan
from cupilot.domain.roofline import Zone
from gpu_worker.sandbox.child import Finished
from gpu_worker.targets.base import Access, Counters
from gpu_worker.targets.cuda import counters, replays

ASKED = {
    "dram_throughput_pct": counters.COMMON["dram_throughput_pct"],
    "dram_read_bytes": counters.COMMON["dram_read_bytes"],
}
TABLE = """==PROF== Connected to process 7
"ID","Kernel Name","gpu__time_duration.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed","dram__bytes_read.sum"
"","","ns","%","byte"
"0","parts","3,000","90.0","1,000"
"1","finish","1000","10.0","24"
"""

SOFTMAX_ON_H200 = {
    "dram_throughput_pct": "87.58927",
    "sm_throughput_pct": "44.680511",
    "achieved_occupancy_pct": "95.004032",
    "l2_hit_pct": "35.530745",
    "load_efficiency_pct": "99.909832",
    "shared_bank_conflicts": "11,760,564",
    "dram_read_bytes": "12,885,587,200",
    "dram_write_bytes": "6,424,942,848",
    "stall_long_scoreboard": "30.757287",
    "stall_barrier": "1.065929",
}
"""Of ``benchmarks/results/h200_fp32/softmax``: what Nsight Compute counted, as its table writes it."""

THIRTY = range(28, 36)


def table(cells: Mapping[str, str], asked: Mapping[str, str], absent: Sequence[str] = ()) -> str:
    """Return what ``ncu --csv --page raw`` prints of one launch: quoted cells, units below the names."""
    columns = {asked[name]: cells.get(name, "1.5") for name in asked if name not in absent}
    whole = {"ID": "0", "Kernel Name": "softmax_rows", "gpu__time_duration.sum": "4,581,600", **columns}
    out = io.StringIO()
    writer = csv.DictWriter(out, whole, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writeheader()
    writer.writerow(dict.fromkeys(whole, ""))
    writer.writerow(whole)
    return f"==PROF== Connected to process 7\n==PROF== Disconnected from process 7\n{out.getvalue()}"


@pytest.mark.parametrize("zone", Zone)
def test_each_zone_asks_some_thirty_metrics_each_by_one_name(zone: Zone) -> None:
    asked = counters.of_zone(zone)
    assert len(asked) in THIRTY
    assert len(set(asked.values())) == len(asked)
    assert asked.items() >= counters.COMMON.items()


def test_a_name_means_one_counter_in_every_zone() -> None:
    meanings: dict[str, str] = {}
    for zone in Zone:
        for name, counter in counters.of_zone(zone).items():
            assert meanings.setdefault(name, counter) == counter


def test_zones_ask_what_matters_there() -> None:
    memory, middle, compute = (counters.BY_ZONE[zone] for zone in (Zone.MEMORY, Zone.MIDDLE, Zone.COMPUTE))
    assert "load_sectors_per_request" in memory
    assert "load_sectors_per_request" not in compute
    assert "tensor_active_pct" in compute
    assert "tensor_active_pct" not in memory
    assert {"load_sectors_per_request", "tensor_active_pct"} <= middle.keys()


def test_counters_of_a_sequence_are_summed_or_weighted_by_time() -> None:
    assert counters.read(TABLE, ASKED) == Counters(
        {"kernel_time_us": 4.0, "dram_throughput_pct": pytest.approx(70.0), "dram_read_bytes": 1024.0}
    )


@pytest.mark.parametrize("name", ["load_efficiency_pct", "load_sectors_per_request"])
def test_a_kernel_without_loads_has_no_efficiency_of_loads(name: str) -> None:
    asked = {name: counters.of_zone(Zone.MEMORY)[name]}
    text = f'"ID","gpu__time_duration.sum","{asked[name]}"\n"","ns","%"\n"0","1000","0"\n'
    assert counters.read(text, asked) == Counters({"kernel_time_us": 1.0})
    assert counters.read(f'{text}"1","3000","50"\n', asked).metrics[name] == 50.0


@pytest.mark.parametrize("text", ["", "==ERROR== ERR_NVGPUCTRPERM\n", "\n".join(TABLE.splitlines()[:3])])
def test_without_counters_there_is_no_measured_profile(text: str) -> None:
    assert counters.read(text, counters.COMMON) == Counters()


def test_what_a_profiler_does_not_know_is_missing_and_costs_nothing_else() -> None:
    asked = counters.of_zone(Zone.COMPUTE)
    cells = {**SOFTMAX_ON_H200, "tensor_active_pct": "n/a", "branch_efficiency_pct": "nan"}
    found = counters.read(table(cells, asked, absent=["stall_gmma"]), asked)
    assert found.missing == ("tensor_active_pct", "stall_gmma")
    assert "branch_efficiency_pct" not in found.metrics, "known, and no number"
    assert found.metrics["dram_read_bytes"] == 12_885_587_200
    assert found.metrics["stall_long_scoreboard"] == pytest.approx(30.757287)
    assert len(found.metrics) == len(asked) - 3 + 1


def test_the_profiler_counts_one_sequence_and_leaves_the_clocks_alone() -> None:
    command = counters.command(Path("/ncu"), ["b", "a", "b"], 3, 2, ["python", "replay.py"], asked=ASKED)
    assert command[command.index("--clock-control") + 1] == "none"
    assert command[command.index("--kernel-name") + 1] == "regex:^(a|b)$"
    assert command[command.index("--launch-skip") + 1] == "6"
    assert command[command.index("--launch-count") + 1] == "3"
    assert command[command.index("--metrics") + 1] == ",".join(["gpu__time_duration.sum", *ASKED.values()])
    assert command[-2:] == ("python", "replay.py")


class Profiler:
    """Stands for the sandboxed ``ncu``: notes what it was asked and answers with what it was given."""

    def __init__(self, answers: Sequence[Finished]) -> None:
        self.answers = [*answers]
        self.asked: list[str] = []

    @contextmanager
    def replay(self, *_: object) -> Iterator[Callable[..., Finished]]:
        def run(wrap: Callable[[Sequence[str]], tuple[str, ...]]) -> Finished:
            command = wrap(["python"])
            self.asked.append(command[command.index("--metrics") + 1])
            return self.answers.pop(0)

        yield run


def finished(stdout: str, *, timed_out: bool = False) -> Finished:
    return Finished(code=0, stdout=stdout, stderr="", timed_out=timed_out)


def profiled(monkeypatch: pytest.MonkeyPatch, *answers: Finished) -> tuple[Counters, list[str]]:
    profiler = Profiler(answers)
    monkeypatch.setattr(counters, "profiler", lambda: Path("/ncu"))
    monkeypatch.setattr(replays, "_replay", profiler.replay)
    launch = ResolvedLaunch(kernel="softmax_rows", grid=(1, 1, 1), block=(32, 1, 1), args=("x", "out"))
    watched = replays.ReplayedKernel(Path("/kernel.cubin"), ResolvedPlan(launches=(launch,), workspace={}), ())
    return replays.profile(watched, Access(), Zone.MEMORY), profiler.asked


def test_a_name_that_ends_the_profiler_costs_the_zones_own_metrics_only(monkeypatch: pytest.MonkeyPatch) -> None:
    known = table(SOFTMAX_ON_H200, counters.COMMON)
    found, asked = profiled(monkeypatch, finished("==ERROR== Failed to find metric\n"), finished(known))
    assert [names.count(",") for names in asked] == [len(counters.of_zone(Zone.MEMORY)), len(counters.COMMON)]
    assert found.metrics["dram_throughput_pct"] == pytest.approx(87.58927)
    assert found.missing == tuple(counters.BY_ZONE[Zone.MEMORY])


@pytest.mark.parametrize(
    "answer", [finished("==ERROR== ERR_NVGPUCTRPERM - no permission\n"), finished("", timed_out=True)]
)
def test_a_profiler_that_may_not_or_takes_too_long_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, answer: Finished
) -> None:
    found, asked = profiled(monkeypatch, answer)
    assert found == Counters()
    assert len(asked) == 1
