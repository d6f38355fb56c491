"""Does similarity predict transfer? ``python -m benchmarks.retrieval --pool FILE --out FILE``: JSON, and a table.

Reads a pool (lines of ``cupilot pool export`` or of ``benchmarks.make_pool``) into a Postgres and a Chroma of its own,
and leaves one problem out after the other: the retrieval that jobs use answers for a problem whose entries it may not
use, and what the problem really measured then judges the answer. How to read it: ``docs/pool.md``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import uuid
from collections import defaultdict
from contextlib import closing
from math import log
from pathlib import Path
from statistics import mean

from sqlalchemy import select

from benchmarks import records
from benchmarks.retrieval_statistics import Left, Measured, judge, readable
from cupilot.domain.pool import FAILURE_GAIN, PoolEntry, PoolQuestion
from cupilot.embedded.servers import start_chroma, start_postgres
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.pool import PoolRow
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.pool.index import StrategyPool
from cupilot.storage.pool.rows import remember
from cupilot.storage.pool.search import search
from cupilot.storage.pool.similar import similar
from migrations import upgrade
from workers.indexing import index_references

NEVER = 1e9
"""Days: age plays no part here."""


def main() -> int:
    """Judge the retrieval; 0 when there was enough to judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieval", description=__doc__.splitlines()[0])
    parser.add_argument("--pool", type=Path, required=True, help="entries as lines of JSON")
    parser.add_argument("--out", type=Path, required=True, help="the report as JSON")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap")
    options = parser.parse_args()
    lines = options.pool.read_text(encoding="utf-8").splitlines()
    entries = [_entry(line) for line in lines if line.strip()]
    with tempfile.TemporaryDirectory() as folder:
        left, problems = _ask(Path(folder), [entry for entry in entries if entry.informative])
    report = judge(left, problems, options.seed)
    records.write(options.out, {**records.stamp(), **report}, tables=True)
    print(readable(report), end="")
    return 0 if report["spearman"] else 1


def _entry(line: str) -> PoolEntry:
    return PoolEntry.model_validate_json(json.dumps({**json.loads(line)["entry"], "team": ""}))


def _ask(folder: Path, entries: list[PoolEntry]) -> tuple[list[Left], list[Measured]]:
    """Put the entries into a pool, and ask it about each problem as if it were new."""
    problems = _problems(entries)
    postgres, chroma = start_postgres(folder / "postgres"), start_chroma(folder / "chroma")
    try:
        upgrade(postgres.url)
        with closing(Database(postgres.url)) as database, closing(StrategyPool(chroma.url)) as pool:
            with database.transaction() as session:
                team = ensure_team(session, "benchmark").id
                for entry in entries:
                    remember(session, entry.model_copy(update={"team": str(team)}))
            index_references(database, pool)
            return [_leave_one_out(database, pool, team, entries, problem) for problem in problems], problems
    finally:
        chroma.stop()
        postgres.stop()


def _leave_one_out(
    database: Database, pool: StrategyPool, team: uuid.UUID, entries: list[PoolEntry], problem: Measured
) -> Left:
    own = next(entry for entry in entries if entry.problem_hash == problem.key)
    question = PoolQuestion(
        name=own.problem_name,
        op_class=own.op_class,
        operators=own.operators,
        dtype=own.dtype,
        shapes=own.shapes,
        target=own.target,
        policy=own.policy,
        zone=own.zone,
        device_class=own.device_class,
        without_problem=problem.key,
    )
    with database.transaction() as session:
        near = similar(session, pool, team, question, {})
        rows = session.execute(select(PoolRow.problem_hash, PoolRow.reference_id).distinct()).all()
        answer = search(session, pool, team, question, half_life_days=NEVER)
    similarity = {
        key: near.found[reference].value for key, reference in rows if reference in near.found and key != problem.key
    }
    shown = [match.entry.strategy.signature() for match in answer.matches if match.entry.speedup is not None]
    return Left(problem, similarity, shown, [technique.technique for technique in answer.techniques])


def _problems(entries: list[PoolEntry]) -> list[Measured]:
    gains: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    techniques: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
    names = {}
    for entry in entries:
        names[entry.problem_hash] = entry.problem_name
        signature = entry.strategy.signature()
        gain = log(entry.speedup) if entry.speedup else FAILURE_GAIN
        gains[entry.problem_hash][signature].append(gain)
        techniques[entry.problem_hash][signature] = entry.strategy.ids()
    return [
        Measured(key, names[key], {strategy: mean(values) for strategy, values in values_of.items()}, techniques[key])
        for key, values_of in gains.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
