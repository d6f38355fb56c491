"""The examples of ``docs/client.md``, run as they stand against the real service."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cupilot.client import Client, ConflictError
from tests.service.api.world import Team, World, evolved

pytestmark = pytest.mark.service

PAGE = (Path(__file__).parents[3] / "docs" / "client.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def cancelled_at_once(world: World, team: Team) -> Iterator[None]:
    """No worker runs here, so that waiting ends because somebody cancels."""
    over = threading.Event()

    def cancel() -> None:
        with Client(world.url, team.key) as client:
            while not over.wait(0.05):
                for job in client.list(state="queued").items:
                    with contextlib.suppress(ConflictError):
                        client.cancel(job.id)

    thread = threading.Thread(target=cancel)
    thread.start()
    yield
    over.set()
    thread.join()


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.usefixtures("cancelled_at_once")
def test_an_example_runs(
    world: World, team: Team, example: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with world.database.transaction() as session:
        evolved(session, team.id).labels = {"model": "llama"}
    monkeypatch.setenv("CUPILOT_URL", world.url)
    monkeypatch.setenv("CUPILOT_API_KEY", team.key)
    exec(compile(example, "docs/client.md", "exec", dont_inherit=True), {"__name__": "example"})
    assert capsys.readouterr().out
