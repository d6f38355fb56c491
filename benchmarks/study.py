"""Keep an experiment with a language model as the study's record: ``python -m benchmarks.study EXPERIMENT``.

Matrices are ``study.toml``, ``study_parts.toml`` and ``study_agents.toml`` in ``benchmarks``: run one with
``cupilot experiment run`` on a service that has a model. Writes ``benchmarks/results/study_cpu.json`` (or that of the
other matrix), the report as the service gives it, and beside it an archive of the prompts and the answers, which
``--prompts`` holds as files ``asked/KEY`` and ``answered/KEY.txt``.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tarfile
from pathlib import Path

from benchmarks import records
from cupilot.client import Client

MATRICES = ("study", "study_parts", "study_agents")


def main(arguments: list[str] | None = None) -> int:
    """Write the record and the archive; 0 when every job of the experiment is final."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study", description=__doc__.splitlines()[0])
    parser.add_argument("experiment", help="its id")
    parser.add_argument("--matrix", choices=MATRICES, default=MATRICES[0], help="that it ran, in benchmarks")
    parser.add_argument("--server", help="URL of a service; else the data folder's stack")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--prompts", type=Path, required=True, help="folder with asked/KEY and answered/KEY.txt")
    parser.add_argument("--commit", default=records.commit(), help="that the service ran; by default this checkout's")
    options = parser.parse_args(arguments)
    with Client(options.server, data=options.data) as client:
        report = client.experiment_report(options.experiment)
    answers = _archive(options.prompts, archive_of(options.matrix))
    stamp = records.stamp() | {
        "command": f"cupilot experiment run benchmarks/{options.matrix}.toml",
        "commit": options.commit,
        "begun": report.experiment.created_at.isoformat(timespec="seconds"),
        "model": "a large language model behind an OpenAI-compatible endpoint",
    }
    digest = hashlib.sha256(archive_of(options.matrix).read_bytes()).hexdigest()
    records.write(
        records.RESULTS / f"{options.matrix}_cpu.json",
        {
            **stamp,
            "answers": answers,
            "sha256": digest,
            "report": report.model_dump(mode="json", exclude={"convergence"}),
        },
        tables=True,
    )
    return 0 if report.experiment.final else 1


def archive_of(matrix: str) -> Path:
    """Return the archive of a matrix's prompts and answers."""
    return records.RESULTS / f"{matrix}_cpu.tar.xz"


def _archive(prompts: Path, path: Path) -> int:
    """Pack each prompt with its answer; return how many there are."""
    answered = sorted(prompts.glob("answered/*.txt"))
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for answer in answered:
            archive.add(prompts / "asked" / answer.stem, f"{answer.stem}/prompt.txt", filter=_plain)
            archive.add(answer, f"{answer.stem}/answer.txt", filter=_plain)
    return len(answered)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime, member.mode = 0, 0o644
    return member


if __name__ == "__main__":
    sys.exit(main())
