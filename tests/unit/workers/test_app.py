"""Settings of the application of each kind of process, and what the command line says where it cannot run."""

from __future__ import annotations

import sys

import pytest

from agents.llm.models import Model
from cupilot.domain.errors import Unavailable
from cupilot.domain.states import WorkerKind
from cupilot.settings import Settings
from workers.__main__ import _rebuild_pool
from workers.app import make_app


@pytest.mark.parametrize(("kind", "seconds"), [(WorkerKind.GPU, 600.0), (WorkerKind.AGENT, 3_900.0), (None, 3_900.0)])
def test_a_step_is_killed_only_long_after_its_own_limits(kind: WorkerKind | None, seconds: float) -> None:
    with make_app(Settings(), kind) as app:
        assert app.conf.task_time_limit == seconds
        tries = 3 * Model(name="openai/slow").timeout_seconds
        assert kind is WorkerKind.GPU or tries < seconds < app.conf.broker_transport_options["visibility_timeout"]


def test_the_pool_is_rebuilt_only_where_its_packages_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "workers.indexing", None)
    with pytest.raises(Unavailable, match="not installed here") as error:
        _rebuild_pool(Settings())
    assert "cupilot[agents]" in (error.value.hint or "")
