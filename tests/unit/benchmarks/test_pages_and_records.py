"""Numbers that the pages state in prose are those of the records that they name."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import evolved, records


def page(name: str) -> str:
    """A page in one line, so that no line break hides a sentence."""
    return " ".join((records.ROOT / name).read_text(encoding="utf-8").split())


def interval(values: dict[str, float]) -> str:
    return f"{values['median']:.2f} ({values['low']:.2f} to {values['high']:.2f})"


def test_the_demo() -> None:
    record, text = records.read("cpu_demo"), page("README.md")
    low, middle, high = record["best"]["over_eager"]
    assert f"{middle:.2f}x as fast as PyTorch eager (95 % interval {low:.2f} to {high:.2f})" in text
    low, middle, high = record["best"]["over_torch_compile"]
    assert f"{middle:.2f}x as fast as torch.compile (95 % interval {low:.2f} to {high:.2f})" in text


def test_the_cost_of_a_page() -> None:
    record = records.read("service/pages")
    most = max(found["api_cpu_ms"] + found["postgres_cpu_ms"] for found in record["pages"].values())
    jobs, candidates = record["size"]["jobs"], record["size"]["candidates"]
    said = (
        f"With {jobs:,} jobs in the team and {candidates:,} candidates in the job, no [page](pages.md) takes more than"
    )
    assert f"{said} {most} ms of processor time" in page("docs/scale.md")


def test_the_rate_of_steps() -> None:
    record, text = records.read("service/steps"), page("docs/scale.md")
    few, many = record["cupilot"]["10000"], record["cupilot"]["100000"]
    price = sum(few["cpu_ms_a_step"].values())
    assert f"| steps a second, 10,000 waiting | {few['steps_a_second']}, for {price:.2f} processor ms a step |" in text
    assert f"| steps a second, 100,000 waiting | {many['steps_a_second']} |" in text
    assert f"| Celery without a database | {record['celery']['tasks_a_second']} tasks a second |" in text
    one, ten = record["procrastinate"]["tasks_a_second_by_tasks_at_a_time"].values()
    assert f"| procrastinate, one task at a time, ten | {one}, {ten} tasks a second |" in text
    first = record["submission_to_first_step"]
    assert f"median {first['median_ms']} ms, worst of {first['jobs']} {first['worst_ms']} ms" in text
    dearer = [each["cpu_ms_a_step"]["postgres"] for each in (many, few)]
    assert f"{dearer[0]} ms a step instead of {dearer[1]}" in text


def test_the_scripted_model() -> None:
    record, text = records.read("stack_scripted_cuda"), page("README.md")
    best = record["generations"][-1]["best_so_far"]
    assert f"came to {best:.2f}x of eager (1.25x of `torch.compile`, 1.23x of max-autotune)" in text
    assert "1.25x as fast as torch.compile (" in record["result"]
    assert "1.23x as fast as torch.compile max-autotune" in record["result"]


def test_what_the_readme_says_of_searches_and_peaks() -> None:
    jobs = [job for run in ("h200_fp32", "h200_fp32_more", "h200_tf32") for job in evolved.jobs(run)]
    single = sum(max(candidate["generation"] for candidate in job["candidates"]) == 0 for job in jobs)
    text = page("README.md")
    assert f"{single} of the {len(jobs)} searches never began a second one" in text
    peaks = [job["peaks"]["bandwidth"] / 1e12 for job in jobs]
    assert f"here {min(peaks):.1f} to {max(peaks):.1f} TB/s" in page("docs/results.md")


@pytest.mark.parametrize(
    ("row", "path"),
    [
        ("similarity against transfer, Spearman", ("spearman",)),
        ("place of the first strategy that jobs are shown", ("places", "shown")),
        ("place of the strategy measured most often", ("places", "popular")),
        ("hit rate, recommended by the pool", ("hit_rates", "similar")),
        ("hit rate, the most used techniques", ("hit_rates", "popular")),
        ("hit rate, at random", ("hit_rates", "random")),
    ],
)
def test_the_pools_retrieval(row: str, path: tuple[str, ...]) -> None:
    cells = []
    for name in ("retrieval_cuda", "retrieval_cpu"):
        value: Any = records.read(name)
        for key in path:
            value = value[key]
        cells.append(interval(value))
    assert f"| {row} | {' | '.join(cells)} |" in page("docs/pool.md")


def test_the_price_of_a_step() -> None:
    text = page("docs/scale.md")
    for cluster in records.read("service/simulation")["clusters"]:
        spent = cluster["cpu_ms_a_step"]
        prices = " | ".join(f"{spent[part]:.2f}" for part in ("scheduler", "postgres", "valkey"))
        cells = f"{cluster['steps_a_second']} | {cluster['cards_busy']:.0%}".replace("%", " %")
        assert f"| {cells} | {prices} | {cluster['transactions_a_step']} | {cluster['leases_lost']} |" in text


def test_faults_of_models_and_calls_of_the_fuzzer_and_attacks_on_the_sandbox() -> None:
    jobs = records.read("service/model_faults")["jobs"]
    kills = sum(job.get("kills", 0) for job in jobs)
    assert f"{len(jobs)} jobs, {kills} killed processes" in page("docs/models.md")
    assert not any(job.get("wrong") for job in jobs)
    operations = records.read("service/fuzz")["operations"]
    calls = sum(operation["calls"] for operation in operations)
    assert f"{calls:,} calls of all {len(operations)} operations" in page("docs/threat-model.md")
    assert not any(operation["failures"] for operation in operations)
    sandbox = records.read("sandbox")
    assert f"{sandbox['attacks']} attacks on each of {len(sandbox['sandboxes'])} kinds" in page("docs/threat-model.md")
    assert sandbox["breaches"] == sandbox["controls_that_fail"] == []


def test_the_crossover_study() -> None:
    text = page("docs/experiments.md")
    said = []
    for name in ("crossover_cpu", "crossover_cuda"):
        code = [(pair["size"], pair["code"]["outcome"]) for pair in records.read(name)["pairs"] if "code" in pair]
        single = [outcome for size, outcome in code if size == "A1xB1"]
        assert not [outcome for size, outcome in code if outcome == "success" and size != "A1xB1"]
        successes = single.count("success")
        said.append((successes, len(single), len(code) - len(single)))
    (first, pairs, more), (second, others, rest) = said
    assert f"succeeded in {first} of {pairs} pairs with one technique each and in none of {more} with more" in text
    assert f"in {second} of {others} and none of {rest} on" in text
