"""A scripted OpenAI-compatible HTTP server: the paid model's stand-in, competent, sloppy or hostile as told.

Serves ``POST /v1/chat/completions`` and ``GET /v1/models`` on a free port. Each request takes the next reply of the
script (the last one for ever), or what a function of the request says. Every answered request is remembered as paid.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """The server's reaction to one request."""

    text: str | None = "ok"
    tool_calls: tuple[tuple[str, str], ...] = ()
    """Names of tools and their arguments, as text."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    finish_reason: str = "stop"
    prompt_tokens: int = 100
    completion_tokens: int = 50
    delay: float = 0.0
    """Seconds before the body."""
    drip: float = 0.0
    """Seconds before each byte of the body."""
    raw: bytes | None = None
    """Sent as the whole body instead of a completion."""
    hang_up: bool = False
    """Close the connection after half of the body."""


Script = Sequence[Reply] | Callable[[dict[str, Any]], Reply]


class ScriptedModel:
    """Runs the server in a thread; a context manager."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._lock = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.paid: list[dict[str, Any]] = []
        self.dropped = threading.Event()
        """Set where a client left before it had its answer."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> ScriptedModel:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def api_base(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def _next(self, request: dict[str, Any]) -> Reply:
        with self._lock:
            self.requests.append(request)
            if callable(self._script):
                reply = self._script(request)
            else:
                reply = self._script[min(len(self.requests), len(self._script)) - 1]
            if reply.status == 200 and reply.raw is None and not reply.hang_up:
                self.paid.append(request)
            return reply

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                with suppress(ConnectionResetError):  # of a client that was killed
                    super().handle()

            def do_GET(self) -> None:
                """The list of models."""
                found = self.path == "/v1/models"
                body = json.dumps({"data": [{"id": "scripted"}]} if found else {"detail": "Not Found"}).encode()
                self._send(Reply(raw=body, status=200 if found else 404))

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", 0))
                request = json.loads(self.rfile.read(length))
                if self.path != "/v1/chat/completions":
                    self._send(Reply(raw=b'{"detail": "Not Found"}', status=404))
                    return
                reply = model._next(request)
                time.sleep(reply.delay)
                try:
                    self._send(reply)
                except (BrokenPipeError, ConnectionResetError):
                    model.dropped.set()
                    self.close_connection = True

            def _send(self, reply: Reply) -> None:
                body = reply.raw if reply.raw is not None else _body(reply)
                self.send_response(reply.status)
                for name, value in {"content-type": "application/json", **reply.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self._write(body[: len(body) // 2] if reply.hang_up else body, reply.drip)
                if reply.hang_up:
                    self.close_connection = True

            def _write(self, body: bytes, drip: float) -> None:
                for byte in body if drip else ():
                    time.sleep(drip)
                    self.wfile.write(bytes([byte]))
                if not drip:
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def _tool_calls(reply: Reply) -> dict[str, Any]:
    calls = [
        {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, (name, arguments) in enumerate(reply.tool_calls)
    ]
    return {"tool_calls": calls} if calls else {}


def _body(reply: Reply) -> bytes:
    if reply.status != 200:
        return json.dumps({"error": {"message": f"scripted {reply.status}", "type": "scripted"}}).encode()
    completion = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [
            {
                "index": 0,
                "finish_reason": reply.finish_reason,
                "message": {"role": "assistant", "content": reply.text} | _tool_calls(reply),
            }
        ],
        "usage": {
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        },
    }
    return json.dumps(completion).encode()
