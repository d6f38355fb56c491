"""Faults of a dependency that may be away are reported, whatever they are: the API serves without it."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace

import pytest

from api import readiness


def test_a_server_that_does_not_speak_http_is_no_error_of_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1_024)
                connection.sendall(b"SSH-2.0-something else\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(readiness, "settings", lambda: SimpleNamespace(chroma_url=url))
        assert readiness._outcome(readiness._chroma) == "does not answer (BadStatusLine)"
        thread.join()


@pytest.mark.parametrize("url", ["chroma:8000", "http://[::1"])
def test_an_address_that_is_none_is_no_error_of_the_probe(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "settings", lambda: SimpleNamespace(chroma_url=url))
    assert readiness._outcome(readiness._chroma).startswith("does not answer")
