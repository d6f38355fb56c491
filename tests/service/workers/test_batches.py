"""Batches from export to settlement, with real Postgres; what happens in between is scripted or goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from cupilot.domain.states import JobState, StepState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from tests.service.box import Batches, id_of, judged
from tests.service.rig import Rig

pytestmark = pytest.mark.service


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


@pytest.fixture
def batches(rig: Rig) -> Batches:
    return Batches.of(rig)


def test_whole_jobs_are_judged_in_batches(rig: Rig, batches: Batches, tmp_path: Path) -> None:
    jobs = [rig.submit(), rig.submit(team="green")]
    visits = 0
    while not all(rig.job(job).state.final for job in jobs):
        batches.run_agents()
        path = batches.export(tmp_path)
        lines = judged(path)
        receipts = batches.hand_in(id_of(path), lines)
        assert {receipt.outcome for receipt in receipts} == {"received"}
        view = batches.view(id_of(path))
        assert view.state == "finished"
        assert view.counts.settled == len(receipts) == view.steps
        visits += 1
        assert visits < 20
    for job in jobs:
        assert rig.job(job).state is JobState.SUCCEEDED
        assert {step.state for step in rig.steps(job)} == {StepState.SUCCEEDED}
