"""The doctor's checks of each role: what is not installed, what does not run, what runs and does no work."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cupilot.embedded import doctor
from cupilot.embedded.doctor import ROLES, Level, exit_code
from cupilot.embedded.folder import Folder
from cupilot.embedded.report import NOT_RUNNING, PartState, PartStatus

FOLDER = Folder(Path("/nowhere"))
NAMES = ("api", "scheduler", "agent", "gpu-0", "gpu-1", "webhooks")
RUNNING = replace(NOT_RUNNING, running=True, parts=[PartStatus(name, PartState.READY, 7, 0.0, 0) for name in NAMES])


def checks(status: object = RUNNING, **said: str) -> dict[str, doctor.Check]:
    return {role.part: doctor._role(FOLDER, status, said, role) for role in ROLES}  # type: ignore[arg-type]


def test_every_process_of_the_stack_is_a_role() -> None:
    assert {name.partition("-")[0] for name in NAMES} == {role.part for role in ROLES}
    assert {check.level for check in checks().values()} == {Level.OK}
    assert "gpu-0 runs (process 7), gpu-1 runs (process 7)" in checks()["gpu"].found
    assert {check.level for check in checks(NOT_RUNNING).values()} == {Level.OK}


def test_a_role_whose_packages_are_absent_is_missing_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "litellm" else object())
    found = checks()
    assert {part for part, check in found.items() if check.level is Level.MISSING} == {"agent"}
    assert (found["agent"].found, found["agent"].mend) == ("not installed: litellm", "pip install 'cupilot[agents]'")
    assert exit_code(list(found.values())) == 1


def test_a_process_that_is_down_or_does_no_work_is_named_with_its_log() -> None:
    parts = [replace(part, state=PartState.RESTARTING) if part.name == "gpu-1" else part for part in RUNNING.parts]
    found = checks(replace(RUNNING, parts=parts), webhooks="messages wait for 90 s", scheduler="ok")
    assert {part for part, check in found.items() if check.level is Level.WARNING} == {"gpu", "webhooks"}
    assert (found["gpu"].found, found["gpu"].mend) == ("gpu-1 restarting", "see /nowhere/logs/gpu-1.log")
    assert found["webhooks"].found == "runs, but: messages wait for 90 s"
    absent = replace(RUNNING, parts=[part for part in RUNNING.parts if part.name != "webhooks"])
    assert checks(absent)["webhooks"].found == "the stack has no such process"
    assert exit_code(list(found.values())) == 0


def test_a_user_without_an_entry_is_told_before_postgres_ends_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4_123_456)
    check = doctor._identity()
    assert (check.level, exit_code([check])) == (Level.MISSING, 1)
    assert "user id 4123456 has no entry in /etc/passwd" in check.found
    assert "cupilot:x:4123456:" in (check.mend or "")
