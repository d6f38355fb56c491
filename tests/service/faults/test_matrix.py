"""The short form of the fault matrix: several faults at once; ``python -m benchmarks.faults`` does them all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.faults.matrix.audit import breaches, model_calls
from tests.service.faults.matrix.points import Act, Point
from tests.service.faults.matrix.service import Service, wait_until
from tests.service.faults.stack import adopt_orphans

pytestmark = [
    pytest.mark.service,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::DeprecationWarning"),
]

AT_ONCE = [
    ("api", Point.BEFORE_ANSWER, Act.CHILD),
    ("scheduler", Point.AFTER_PUBLISH, Act.CHILD),
    ("webhooks", Point.MESSAGE_CLAIMED, Act.CHILD),
    ("webhooks", Point.MESSAGE_SENT, Act.CHILD),
    ("agent", Point.CALL_STORED, Act.CHILD),
    ("agent", Point.DURING_WORK, Act.STARVE),
    ("gpu", Point.DURING_WORK, Act.WORKER),
    ("gpu", Point.IN_STORE, Act.CHILD),
    ("gpu", Point.BEFORE_STORE, Act.STOP),
]

REAPED = "SELECT 1 FROM events WHERE kind = 'step.reaped' AND data->>'message' LIKE '%gpu%'"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    adopt_orphans()
    folder: Path = tmp_path_factory.mktemp("matrix")
    running = Service(folder)
    yield running
    assert running.stop() == [], "no process outlives the service"


def test_whatever_is_killed_and_wherever_everything_ends_once(service: Service) -> None:
    for role, point, act in AT_ONCE:
        service.arms.arm(role, point, act)
    jobs = [service.submit(number) for number in range(2)]
    for role, point, act in AT_ONCE:
        struck = service.wait_struck(role, point, reviving=True)
        if act is Act.STOP:
            wait_until(lambda: service.revive() or service.rows(REAPED), "the paused step is reaped")
            service.awake(struck)
    states = {service.wait_final(job).state for job in jobs}
    assert states == {"succeeded"}
    service.wait_told(jobs)
    assert breaches(service, jobs) == []
    assert service.inbox.account().repeated >= 1, "what was sent and not recorded is sent again, under its id"
    assert model_calls(service).unrecorded == 0
    assert service.orphans() == []
