"""Candidates, lineage, the winner and its download."""

from __future__ import annotations

import io
import json
import zipfile
from hashlib import sha256
from typing import Any

import pytest

from cupilot.domain.evaluation import FailureKind, Verdict
from cupilot.domain.kernel import LaunchPlan
from cupilot.domain.states import JobState
from cupilot.schemas import CandidatePage, CandidateView, Report
from tests.service.api.world import SOURCE, Story, Team, World, audited, code_of, evolved, rejected

pytestmark = pytest.mark.service


@pytest.fixture
def job(world: World, team: Team) -> str:
    with world.database.transaction() as session:
        return str(evolved(session, team.id).id)


def _get(team: Team, path: str, **parameters: Any) -> bytes:
    response = team.http.get(path, params=parameters)
    assert response.status_code == 200, response.text
    return response.content


def test_candidates_come_by_ordinal_in_pages(team: Team, job: str) -> None:
    seen, after = [], None
    while True:
        parameters = {"limit": 2} | ({} if after is None else {"after": after})
        page = CandidatePage.model_validate_json(_get(team, f"/v1/jobs/{job}/candidates", **parameters))
        seen += page.items
        after = page.next_after
        if after is None:
            break
    assert [candidate.ordinal for candidate in seen] == [0, 1, 2, 3, 4]
    assert [candidate.generation for candidate in seen] == [0, 0, 0, 0, 1]
    assert [candidate.verdict for candidate in seen] == ["audited", "audited", "rejected", None, "reproduced"]
    assert [candidate.failure for candidate in seen] == [None, None, "wrong_value", None, None]
    assert [candidate.state for candidate in seen] == ["evaluated"] * 3 + ["duplicate", "evaluated"]
    assert [candidate.speedup for candidate in seen] == [1.5, 1.2, None, None, 2.0]
    assert seen[4].parents == [seen[0].id, seen[1].id]
    assert seen[4].techniques == ["simd", "threads"]
    assert seen[3].reason == "duplicate_strategy"


def test_candidates_can_be_filtered(team: Team, job: str) -> None:
    def ordinals(**parameters: Any) -> list[int]:
        page = CandidatePage.model_validate_json(_get(team, f"/v1/jobs/{job}/candidates", **parameters))
        return [candidate.ordinal for candidate in page.items]

    assert ordinals(verdict="audited") == [0, 1]
    assert ordinals(generation=1) == [4]
    assert ordinals(generation=1, verdict="audited") == []
    assert ordinals(after=-1) == [0, 1, 2, 3, 4]
    assert ordinals(after=2**31 - 1) == []


def test_candidates_can_come_the_fastest_first(team: Team, job: str) -> None:
    seen, after = [], -1
    for _ in range(3):
        asked = {"order": "speedup", "limit": 2, "after": after}
        page = CandidatePage.model_validate_json(_get(team, f"/v1/jobs/{job}/candidates", **asked))
        seen += [candidate.ordinal for candidate in page.items]
        after = page.next_after if page.next_after is not None else after
    assert seen == [4, 0, 1, 2, 3]
    unknown = team.http.get(f"/v1/jobs/{job}/candidates", params={"order": "speedup", "after": 99})
    assert (unknown.status_code, unknown.json()["error"]["where"]) == (422, "query.after")


@pytest.mark.parametrize(
    "query", ["after=-2", f"after={2**31}", "verdict=good", "generation=-1", "limit=0", "order=best"]
)
def test_a_malformed_question_for_candidates_is_named(team: Team, job: str, query: str) -> None:
    response = team.http.get(f"/v1/jobs/{job}/candidates?{query}")
    assert (response.status_code, response.json()["error"]["code"]) == (422, "invalid_input")


def test_a_candidate_shows_strategy_kernel_evaluation_and_lineage(team: Team, job: str) -> None:
    by_ordinal = CandidateView.model_validate_json(_get(team, f"/v1/jobs/{job}/candidates/4"))
    by_id = CandidateView.model_validate_json(_get(team, f"/v1/jobs/{job}/candidates/{by_ordinal.id}"))
    assert by_id == by_ordinal
    assert by_id.strategy is not None
    assert by_id.strategy.rationale == "because"
    assert by_id.kernel is not None
    assert by_id.kernel.source == "// candidate 4\n"
    assert by_id.kernel.hash == code_of(4).content_hash()
    assert by_id.kernel.plan == code_of(4).plan
    assert by_id.evaluation is not None
    assert by_id.evaluation.verdict is Verdict.REPRODUCED
    assert [(entry.ordinal, entry.operator, entry.speedup) for entry in by_id.lineage] == [
        (4, "crossover", 2.0),
        (1, "initial", 1.2),
        (0, "initial", 1.5),
    ]


def test_a_lineage_goes_up_to_the_roots_through_shared_ancestors(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        members = [
            story.candidate(story.generation(0), audited(1.1)),
            story.candidate(story.generation(1), audited(1.2)),
        ]
        for number in range(2, 40):
            members.append(story.candidate(story.generation(number), audited(1.3), members[-1], members[-2]))
        story.candidate(story.generation(40), audited(1.0))
        job = story.end(JobState.SUCCEEDED).id
    lineage = CandidateView.model_validate_json(_get(team, f"/v1/jobs/{job}/candidates/39")).lineage
    assert [entry.ordinal for entry in lineage] == list(range(39, -1, -1))
    position = {entry.candidate: index for index, entry in enumerate(lineage)}
    assert all(position[parent] > position[entry.candidate] for entry in lineage for parent in entry.parents)


@pytest.mark.parametrize(
    "candidate", ["5", "-1", "99999999999", "x", "%00", "\u0661", "00000000-0000-0000-0000-000000000000"]
)
def test_a_candidate_that_is_not_there_is_not_found(team: Team, job: str, candidate: str) -> None:
    response = team.http.get(f"/v1/jobs/{job}/candidates/{candidate}")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


def test_the_report_is_honest_about_both_baselines(team: Team, job: str) -> None:
    report = Report.model_validate_json(_get(team, f"/v1/jobs/{job}/best"))
    assert report.headline == (
        "The best kernel is 2.00x as fast as PyTorch eager (95 % interval 1.80 to 2.20);"
        " slower than torch.compile: 0.50x (95 % interval 0.45 to 0.55) of its speed. Verdict: reproduced."
    )
    assert report.candidate.ordinal == 4
    assert report.problem.source == SOURCE
    assert report.next_steps
    assert report.preparation.admission == {"zeros": True}


def test_while_nothing_is_proven_there_is_no_result(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        story.candidate(story.generation(0), rejected(FailureKind.COMPILE_ERROR))
        running = story.job.id
    with world.database.transaction() as session:
        story = Story(session, team.id)
        failed = story.end(JobState.FAILED, reason="no_template", message="no template fits aten.sort").id
    for job, words in ((running, "yet"), (failed, "no_template")):
        for path in ("best", "best/download"):
            response = team.http.get(f"/v1/jobs/{job}/{path}")
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (404, "no_result")
            assert words in error["message"]
    assert error["hint"] == "no template fits aten.sort"


def test_the_download_stands_on_its_own(team: Team, job: str) -> None:
    response = team.http.get(f"/v1/jobs/{job}/best/download")
    assert response.headers["Content-Type"] == "application/zip"
    assert response.headers["Content-Disposition"] == f'attachment; filename="cupilot-{job}.zip"'
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert archive.testzip() is None
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    sums = files.pop("SHA256SUMS")
    assert set(files) == {"kernel.cpp", "plan.json", "problem.h", "problem.py", "report.json", "REPORT.md"}
    assert sums.splitlines() == [f"{sha256(files[name].encode()).hexdigest()}  {name}" for name in sorted(files)]
    assert files["kernel.cpp"] == "// candidate 4\n"
    assert files["problem.py"] == SOURCE
    plan = LaunchPlan.model_validate(json.loads(files["plan.json"]))
    assert plan.values() == {"BLOCK": 128}, "the measured tunable values, not the plan's first ones"
    assert "constexpr int BLOCK = 128;" in files["problem.h"]
    assert "constexpr long long X_COLS = 256LL;" in files["problem.h"]
    assert Report.model_validate_json(files["report.json"]).candidate.ordinal == 4
    assert "python -m gpu_worker evaluate --problem problem.py --kernel kernel.cpp" in files["REPORT.md"]
    assert response.content == team.http.get(f"/v1/jobs/{job}/best/download").content


def test_measurements_that_are_not_finite_reach_the_client(world: World, team: Team) -> None:
    body = rejected().model_copy(update={"laws": audited(1.0).laws})
    wild = body.model_copy(
        update={"laws": tuple(law.model_copy(update={"passed": False, "error": float("inf")}) for law in body.laws)}
    )
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        story.candidate(story.generation(0), wild)
        job = story.job.id
    view = CandidateView.model_validate_json(_get(team, f"/v1/jobs/{job}/candidates/0"))
    assert view.evaluation is not None
    assert view.evaluation.laws[0].error == float("inf")
