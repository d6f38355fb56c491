"""The strategy pool on a real Chroma server, killed and restarted for real."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from cupilot.embedded.servers import Running, start_chroma
from cupilot.errors import Unavailable
from cupilot.evaluation import FailureKind, Verdict
from cupilot.pool import PoolEntry, PoolMatch
from cupilot.problem import NumericsPolicy, Target
from cupilot.roofline import Zone
from cupilot.storage import pool as pool_module
from cupilot.storage.pool import StrategyPool
from tests.unit.storage.references import entry, facts

pytestmark = pytest.mark.service


@pytest.fixture(scope="module", name="chroma")
def _chroma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start_chroma(tmp_path_factory.mktemp("chroma"))
    yield running
    running.stop()


@pytest.fixture(name="pool")
def _pool(chroma: Running) -> Iterator[StrategyPool]:
    with closing(StrategyPool(chroma.url)) as pool:
        pool.clear()
        yield pool


def retrieve(
    pool: StrategyPool,
    reference: str = "softmax",
    *,
    team: str = "blue",
    policy: NumericsPolicy = NumericsPolicy.FP32,
    target: Target = Target.CUDA,
    zone: Zone = Zone.MEMORY,
    limit: int = 8,
) -> list[PoolMatch]:
    return pool.retrieve(
        team, facts(reference, policy), reference, target=target, zone=zone, device_class="sm_90", limit=limit
    )


def ids(matches: list[PoolMatch]) -> list[str]:
    return [match.entry.id for match in matches]


def different(reference: str, count: int, **fields: object) -> list[PoolEntry]:
    return [
        entry(reference, f"{reference}-{place}", techniques=(f"technique_{place}",), **fields)  # type: ignore[arg-type]
        for place in range(count)
    ]


def test_an_empty_pool_has_nothing_to_offer(pool: StrategyPool) -> None:
    assert pool.count() == 0
    assert retrieve(pool) == []


def test_an_entry_comes_back_whole(pool: StrategyPool) -> None:
    stored = entry("softmax", "e1", techniques=("tiling", "vector_loads"), speedup=3.0)
    pool.add([stored])
    (match,) = retrieve(pool)
    assert match.entry == stored
    assert match.similarity == pytest.approx(1.0, abs=1e-4)
    assert 0 < match.score < 1.1


def test_adding_twice_is_adding_once_and_replaces(pool: StrategyPool) -> None:
    pool.add([entry("softmax", "e1", speedup=2.0), entry("softmax", "e1", speedup=2.5)])
    pool.add([entry("softmax", "e1", speedup=3.0)])
    assert pool.count() == 1
    assert [match.entry.speedup for match in retrieve(pool)] == [3.0]


def test_what_was_not_the_kernels_fault_is_not_remembered(pool: StrategyPool) -> None:
    pool.add([entry("softmax", "e1", failure=FailureKind.INFRASTRUCTURE)])
    assert pool.count() == 0


def test_teams_never_see_each_others_entries(pool: StrategyPool) -> None:
    pool.add([entry("softmax", "theirs", team="red"), entry("softmax", "ours", team="blue")])
    assert ids(retrieve(pool, team="blue")) == ["ours"]
    assert ids(retrieve(pool, team="red")) == ["theirs"]
    assert retrieve(pool, team="green") == []


def test_the_pool_can_be_seen_as_it_was(pool: StrategyPool) -> None:
    earlier = entry("softmax", "earlier", techniques=("tiling",))
    later = earlier.model_copy(update={"id": "later", "created_at": "2026-02-01T00:00:00+00:00"})
    pool.add([earlier, later, later.model_copy(update={"id": "latest", "created_at": "2026-03-01T00:00:00+00:00"})])
    cutoff = datetime(2026, 2, 1, tzinfo=UTC)
    where = {"target": Target.CUDA, "zone": Zone.MEMORY, "device_class": "sm_90"}
    seen = pool.retrieve("blue", facts("softmax"), "softmax", **where, before=cutoff)  # type: ignore[arg-type]
    assert ids(seen) == ["earlier"]


def test_targets_are_kept_apart(pool: StrategyPool) -> None:
    pool.add([entry("softmax", "gpu"), entry("softmax", "cpu", target=Target.CPU, device_class="cpu")])
    assert ids(retrieve(pool, target=Target.CPU)) == ["cpu"]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (NumericsPolicy.FP32, {"fp32"}),
        (NumericsPolicy.TF32, {"fp32", "tf32"}),
        (NumericsPolicy.HALF, {"fp32", "tf32", "half"}),
    ],
)
def test_a_stricter_policy_never_sees_what_a_looser_one_allowed(
    pool: StrategyPool, policy: NumericsPolicy, expected: set[str]
) -> None:
    pool.add([entry("matmul", each.value, policy=each, techniques=(f"t_{each.value}",)) for each in NumericsPolicy])
    assert set(ids(retrieve(pool, "matmul", policy=policy))) == expected


def test_similar_problems_come_before_dissimilar_ones(pool: StrategyPool) -> None:
    """Same family, same gain: only the description tells them apart."""
    names = ["relu", "leaky_relu", "gelu", "new_gelu", "swish"]
    pool.add([entry(name, name, techniques=(f"technique_of_{name}",)) for name in names])
    matches = retrieve(pool, "gelu")
    assert ids(matches)[:2] == ["gelu", "new_gelu"]
    similarities = [match.similarity for match in matches]
    assert similarities == sorted(similarities, reverse=True)


def test_other_families_are_asked_only_when_the_own_one_is_empty(pool: StrategyPool) -> None:
    pool.add(
        [
            entry("layer_norm", "norm", techniques=("a_norm",)),
            entry("matmul", "matmul", techniques=("a_matmul",), zone=Zone.COMPUTE),
        ]
    )
    assert ids(retrieve(pool, "softmax", zone=Zone.MEMORY)) == ["norm"]
    pool.add([entry("softmax", "softmax", techniques=("a_softmax",), speedup=1.1)])
    assert ids(retrieve(pool, "softmax", zone=Zone.MEMORY)) == ["softmax"]


def test_failures_come_back_marked_after_the_gains(pool: StrategyPool) -> None:
    pool.add(
        [
            *different("softmax", 6, speedup=2.0),
            entry("softmax", "wrong", techniques=("bad",), failure=FailureKind.WRONG_VALUE),
            entry(
                "softmax", "magic", techniques=("trick",), failure=FailureKind.BELOW_FLOOR, verdict=Verdict.QUARANTINED
            ),
        ]
    )
    matches = retrieve(pool, limit=4)
    assert [match.entry.verdict.counts for match in matches] == [True, True, True, False]
    assert matches[-1].score < 0 < matches[0].score


def test_many_failures_never_crowd_out_a_gain(pool: StrategyPool) -> None:
    failures = different("softmax", 1_200, failure=FailureKind.COMPILE_ERROR)
    pool.add([*failures, entry("softmax", "gain", techniques=("good",))])
    matches = retrieve(pool, limit=4)
    assert ids(matches)[0] == "gain"
    assert len(matches) == 4


def test_a_large_pool_hides_nothing(pool: StrategyPool) -> None:
    """Thousands of entries have equal descriptions; an index that is careless with them loses most."""
    crowd = [
        entry(name, f"red-{name}-{place}", techniques=(f"technique_{place}",), team="red", speedup=1.5)
        for name in ("relu", "leaky_relu", "gelu", "new_gelu", "swish")
        for place in range(600)
    ]
    ours = [entry("relu", f"blue-{place}", techniques=(f"technique_{place}",)) for place in range(30)]
    pool.add(crowd)
    pool.add([*ours, entry("relu", "best", techniques=("the_best",), team="red", speedup=9.0)])
    assert len(retrieve(pool, "relu", team="blue", limit=100)) == len(ours)
    found = retrieve(pool, "relu", team="red", limit=1_000)
    assert ids(found)[0] == "best"
    assert sum(match.similarity > 0.9999 for match in found) == 601


def test_one_place_for_one_strategy(pool: StrategyPool) -> None:
    pool.add([entry("softmax", f"e{place}", speedup=1.0 + place) for place in range(5)])
    assert ids(retrieve(pool)) == ["e4"]


def test_two_readers_see_each_others_writes_at_once(pool: StrategyPool, chroma: Running) -> None:
    with closing(StrategyPool(chroma.url)) as other:
        assert other.count() == 0
        pool.add([entry("softmax", "new")])
        assert ids(retrieve(other)) == ["new"]


def test_a_pool_that_another_process_cleared_goes_on_working(pool: StrategyPool, chroma: Running) -> None:
    pool.add([entry("softmax", "old")])
    with closing(StrategyPool(chroma.url)) as other:
        other.clear()
    assert retrieve(pool) == []
    pool.add([entry("softmax", "new")])
    assert ids(retrieve(pool)) == ["new"]


def test_threads_may_share_a_pool(pool: StrategyPool) -> None:
    def write(place: int) -> None:
        pool.add([entry("softmax", f"e{place}", techniques=(f"technique_{place}",))])
        assert retrieve(pool)

    with ThreadPoolExecutor(8) as executor:
        list(executor.map(write, range(40)))
    assert pool.count() == 40


def _write_in_child(pool: StrategyPool) -> None:
    pool.add(different("gelu", 20))
    pool.close()


def test_a_forked_process_makes_its_own_connection(pool: StrategyPool) -> None:
    """As Celery's prefork children do with a pool that the parent has used."""
    pool.add([entry("softmax", "parent")])
    children = [multiprocessing.get_context("fork").Process(target=_write_in_child, args=(pool,)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0]
    assert pool.count() == 21


def test_nothing_is_lost_when_chroma_is_killed(tmp_path: Path) -> None:
    first = start_chroma(tmp_path)
    pool = StrategyPool(first.url)
    stored = different("softmax", 300)
    pool.add(stored)
    first.kill()
    with pytest.raises(Unavailable, match="does not answer"):
        retrieve(pool)
    second = start_chroma(tmp_path)
    try:
        assert second.url == first.url
        assert pool.count() == len(stored)
        assert len(retrieve(pool, limit=5)) == 5
    finally:
        pool.close()
        second.stop()


def test_a_lost_index_is_rebuilt_from_rows(tmp_path: Path) -> None:
    """As after a lost volume: same address, empty server; the rows stand in for Postgres."""
    rows = [*different("softmax", 10), *different("gelu", 10)]
    first = start_chroma(tmp_path)
    pool = StrategyPool(first.url)
    pool.add(rows)
    before = retrieve(pool)
    first.kill()
    for path in sorted((tmp_path / "chroma").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    second = start_chroma(tmp_path)
    try:
        assert retrieve(pool) == []
        pool.clear()
        pool.add([PoolEntry.model_validate_json(row.model_dump_json()) for row in rows])
        assert pool.count() == len(rows)
        assert retrieve(pool) == before
    finally:
        pool.close()
        second.stop()


def test_a_pool_without_server_says_so_everywhere(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    pool = StrategyPool(url)
    for call in (pool.ping, pool.count, pool.clear, lambda: pool.add([entry("softmax", "e")]), lambda: retrieve(pool)):
        with pytest.raises(Unavailable) as caught:
            call()
        assert caught.value.hint
    assert not list(tmp_path.iterdir())


def test_a_server_that_hangs_does_not_hang_the_worker(monkeypatch: pytest.MonkeyPatch, chroma: Running) -> None:
    """Stopped, not dead: the kernel still accepts connections, and nobody answers."""
    monkeypatch.setattr(pool_module, "TIMEOUT_SECONDS", 0.5)
    with closing(StrategyPool(chroma.url)) as pool, closing(StrategyPool(chroma.url)) as newcomer:
        pool.ping()
        os.killpg(chroma.process.pid, signal.SIGSTOP)
        try:
            for each in (pool, newcomer):
                with pytest.raises(Unavailable):
                    each.ping()
        finally:
            os.killpg(chroma.process.pid, signal.SIGCONT)
        pool.ping()


class _Proxy(BaseHTTPRequestHandler):
    """In front of Chroma; answers 503, in its own words, while ``down``."""

    upstream = ""
    down = False

    def do_GET(self) -> None:
        self._forward("GET", None)

    def do_POST(self) -> None:
        self._forward("POST", self.rfile.read(int(self.headers["Content-Length"] or 0)))

    def _forward(self, method: str, body: bytes | None) -> None:
        headers = {"Content-Type": "application/json"}
        answer = httpx.request(method, self.upstream + self.path, content=body, headers=headers, timeout=30)
        status, content = (503, b"no healthy upstream") if self.down else (answer.status_code, answer.content)
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def test_an_error_page_of_a_proxy_is_unavailability(pool: StrategyPool, chroma: Running) -> None:
    pool.add([entry("softmax", "e1")])
    handler = type("Handler", (_Proxy,), {"upstream": chroma.url})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with closing(StrategyPool(f"http://127.0.0.1:{server.server_port}")) as proxied:
            assert ids(retrieve(proxied)) == ["e1"]
            handler.down = True
            with pytest.raises(Unavailable, match="no healthy upstream"):
                retrieve(proxied)
            handler.down = False
            assert ids(retrieve(proxied)) == ["e1"]
        server.shutdown()


def test_ping_answers_when_chroma_does(pool: StrategyPool) -> None:
    pool.ping()
