"""Sending one message: names that change their mind, addresses that may not be called, receivers that never end."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from cupilot.domain.webhooks import networks
from tests.service.receiver import Receiver
from workers.webhooks import sender

pytestmark = pytest.mark.service

LOCAL = networks("127.0.0.0/8")


@pytest.mark.parametrize(
    ("first", "second"), [("127.0.0.1", "8.8.8.8"), ("8.8.8.8", "127.0.0.1"), ("169.254.169.254", "1.1.1.1")]
)
def test_a_name_with_a_private_address_among_others_is_not_called(
    monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443)) for address in (first, second)]
    monkeypatch.setattr(sender.socket, "getaddrinfo", lambda *_, **__: entries)
    monkeypatch.setattr(sender.socket, "create_connection", lambda *_, **__: pytest.fail("connected"))
    assert sender.post("https://evil.example/", b"{}", {}, seconds=2).outcome == "refused_address"


def test_a_name_is_looked_up_once_and_the_checked_address_is_called(
    monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    """DNS rebinding: the second answer would be another one, and nobody asks for it."""
    port = int(receiver.url.split(":")[2].split("/")[0])
    answers = iter(["127.0.0.1", "10.0.0.1"])
    real = socket.getaddrinfo

    def lookup(host: str, *rest: Any, **named: Any) -> Any:
        return real(next(answers) if host == "rebind.example" else host, *rest, **named)

    monkeypatch.setattr(sender.socket, "getaddrinfo", lookup)
    result = sender.post(f"http://rebind.example:{port}/hook", b"{}", {}, seconds=5, allowed=LOCAL)
    assert (result.outcome, result.status) == ("ok", 200)
    assert receiver.got[0][0]["host"] == f"rebind.example:{port}"
    assert next(answers) == "10.0.0.1"


def test_nothing_is_sent_to_this_machine_unless_it_is_allowed(receiver: Receiver) -> None:
    for url in (receiver.url, receiver.url.replace("http:", "https:"), receiver.url.replace("127.0.0.1", "localhost")):
        assert sender.post(url, b"{}", {}, seconds=2).outcome == "refused_address"
    assert not receiver.got


def test_a_receiver_that_trickles_or_says_nothing_or_nonsense_is_cut_off() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    ended = threading.Event()

    def trickle() -> None:
        silent, _ = listener.accept()
        slow, _ = listener.accept()
        slow.recv(1)
        slow.sendall(b"HTTP/1.1 200 OK\r\n")
        while not ended.wait(0.02):
            try:
                slow.sendall(b"X-A: b\r\n")
            except OSError:
                break
        rude, _ = listener.accept()
        rude.sendall(b"nonsense\r\n\r\n")
        for item in (silent, slow, rude):
            item.close()

    thread = threading.Thread(target=trickle)
    thread.start()
    outcomes = [sender.post(url, b"{}", {}, seconds=0.5, allowed=LOCAL).outcome for _ in range(2)]
    ended.set()
    outcomes.append(sender.post(url, b"{}", {}, seconds=5, allowed=LOCAL).outcome)
    thread.join()
    listener.close()
    assert outcomes == ["timeout", "timeout", "connection_error"]
    assert sender.post(url, b"{}", {}, seconds=2, allowed=LOCAL).outcome == "connection_error"
