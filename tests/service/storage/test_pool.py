"""The pool's vector index on a real Chroma server, killed and restarted for real."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest

from cupilot.domain.errors import Unavailable
from cupilot.embedded.servers import Running, start_chroma
from cupilot.storage.pool.index import NEIGHBOURS, StrategyPool
from cupilot.storage.pool.references import Reference, reference_of
from tests.unit.storage.references import entry

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


def described(name: str, scope: str = "blue") -> Reference:
    return reference_of(entry(name, name, team=scope))


def different(name: str, count: int) -> list[Reference]:
    """Of as many teams, so that their vectors are equal."""
    return [described(name, f"team-{place}") for place in range(count)]


def nearest(pool: StrategyPool, name: str = "softmax", *scopes: str) -> dict[str, float]:
    one = described(name)
    place = {"op_class": one.op_class}
    return pool.nearest(one.text, scopes or ["blue"], target=one.target, policies=[one.policy], **place)


def test_an_empty_index_has_nothing_to_offer(pool: StrategyPool) -> None:
    assert pool.count() == 0
    assert nearest(pool) == {}


def test_a_description_is_most_similar_to_itself(pool: StrategyPool) -> None:
    names = ["relu", "leaky_relu", "gelu", "new_gelu", "swish"]
    pool.add([described(name) for name in names])
    found = nearest(pool, "gelu")
    assert found[str(described("gelu").id)] == pytest.approx(1.0, abs=1e-4)
    best = sorted(found, key=lambda key: -found[key])
    assert best[:2] == [str(described(name).id) for name in ("gelu", "new_gelu")]


def test_adding_twice_is_adding_once(pool: StrategyPool) -> None:
    pool.add([described("softmax"), described("softmax")])
    pool.add([described("softmax")])
    assert pool.count() == 1


def test_scopes_and_places_are_kept_apart(pool: StrategyPool) -> None:
    pool.add([described("softmax", "red"), described("softmax", "cluster"), described("matmul", "blue")])
    assert nearest(pool, "softmax", "blue") == {}
    assert set(nearest(pool, "softmax", "blue", "cluster")) == {str(described("softmax", "cluster").id)}
    one = described("softmax", "red")
    assert pool.nearest(one.text, ["red"], target="cpu", policies=["fp32"]) == {}
    assert pool.nearest(one.text, ["red"], target="cuda", policies=["half"]) == {}
    assert len(pool.nearest(one.text, ["red", "blue"], target="cuda", policies=["fp32"], zone="memory")) == 2


def test_many_equal_descriptions_hide_nothing(pool: StrategyPool) -> None:
    """Of hundreds of teams; an index that is careless with equal vectors loses most."""
    pool.add([item for name in ("relu", "gelu") for item in different(name, 600)])
    assert nearest(pool, "relu", "team-599") == {
        str(described("relu", "team-599").id): pytest.approx(1.0, abs=1e-4),
        str(described("gelu", "team-599").id): pytest.approx(0.8, abs=0.2),
    }
    everything = nearest(pool, "relu", *(f"team-{place}" for place in range(600)))
    assert sum(cosine > 0.9999 for cosine in everything.values()) == NEIGHBOURS


def test_two_readers_see_each_others_writes_at_once(pool: StrategyPool, chroma: Running) -> None:
    with closing(StrategyPool(chroma.url)) as other:
        assert other.count() == 0
        pool.add([described("softmax")])
        assert len(nearest(other)) == 1


def test_a_pool_that_another_process_cleared_goes_on_working(pool: StrategyPool, chroma: Running) -> None:
    pool.add([described("softmax")])
    with closing(StrategyPool(chroma.url)) as other:
        other.clear()
    assert nearest(pool) == {}
    pool.add([described("softmax")])
    assert len(nearest(pool)) == 1


def test_threads_may_share_a_pool(pool: StrategyPool) -> None:
    def write(place: int) -> None:
        pool.add([described("softmax", f"team-{place}")])
        assert nearest(pool, "softmax", f"team-{place}")

    with ThreadPoolExecutor(8) as executor:
        list(executor.map(write, range(40)))
    assert pool.count() == 40


def _write_in_child(pool: StrategyPool) -> None:
    pool.add(different("gelu", 20))
    pool.close()


def test_a_forked_process_makes_its_own_connection(pool: StrategyPool) -> None:
    """As Celery's prefork children do with a pool that the parent has used."""
    pool.add([described("softmax")])
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
        nearest(pool)
    second = start_chroma(tmp_path)
    try:
        assert second.url == first.url
        assert pool.count() == len(stored)
        assert len(nearest(pool, "softmax", "team-5")) == 1
    finally:
        pool.close()
        second.stop()


def test_a_pool_without_server_says_so_everywhere(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    pool = StrategyPool(url)
    for call in (pool.ping, pool.count, pool.clear, lambda: pool.add([described("softmax")]), lambda: nearest(pool)):
        with pytest.raises(Unavailable) as caught:
            call()
        assert caught.value.hint
    assert not list(tmp_path.iterdir())


def test_a_server_that_hangs_does_not_hang_the_worker(chroma: Running) -> None:
    """Stopped, not dead: the kernel still accepts connections, and nobody answers."""
    pool, newcomer = (StrategyPool(chroma.url, timeout=0.5) for _ in range(2))
    with closing(pool), closing(newcomer):
        pool.ping()
        os.killpg(chroma.process.pid, signal.SIGSTOP)
        try:
            while psutil.Process(chroma.process.pid).status() != psutil.STATUS_STOPPED:
                time.sleep(0.01)  # a thread may still answer what comes just after the signal
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
    pool.add([described("softmax")])
    handler = type("Handler", (_Proxy,), {"upstream": chroma.url})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with closing(StrategyPool(f"http://127.0.0.1:{server.server_port}")) as proxied:
            assert len(nearest(proxied)) == 1
            handler.down = True
            with pytest.raises(Unavailable, match="no healthy upstream"):
                nearest(proxied)
            handler.down = False
            assert len(nearest(proxied)) == 1
        server.shutdown()


def test_ping_answers_when_chroma_does(pool: StrategyPool) -> None:
    pool.ping()
