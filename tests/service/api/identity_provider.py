"""A small OpenID Connect provider: real HTTP, a real RS256 key, and lies where a test asks for them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "cupilot", "a secret of the client"


@dataclass
class IdentityProvider:
    """Claims of the provider on whoever comes next, and its lies."""

    url: str = ""
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "one"}))
    person: dict[str, Any] = field(default_factory=dict)
    """Claims of the person who signs in."""
    lies: dict[str, Any] = field(default_factory=dict)
    """Claims of the ID token that are not as they should be."""
    algorithm: str = "RS256"
    issuer: str | None = None
    """Another issuer in its metadata."""
    waiting: dict[str, dict[str, str]] = field(default_factory=dict)
    """By code: the request that it was given for."""

    def authorise(self, query: dict[str, str]) -> str:
        """The person says yes: the address that the browser is sent back to."""
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256"
        code = uuid.uuid4().hex
        self.waiting[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state'], 'iss': self.url})}"

    def exchange(self, fields: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """A code for tokens, once, for the client that proves to be the one that began."""
        asked = self.waiting.pop(fields.get("code", ""), None)
        challenge = _encoded(hashlib.sha256(fields["code_verifier"].encode()).digest())
        known = authorization == "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if asked is None or not known or challenge != asked["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        if fields["redirect_uri"] != asked["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        times = {"iat": now, "exp": now + 300}
        claims = {"iss": self.url, "aud": CLIENT, "nonce": asked["nonce"], **times, **self.person, **self.lies}
        return 200, {"access_token": "of no use", "token_type": "Bearer", "id_token": self._signed(claims)}

    def metadata(self) -> dict[str, Any]:
        """Return the addresses of its endpoints."""
        return {
            "issuer": self.issuer or self.url,
            "authorization_endpoint": f"{self.url}/authorise",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
        }

    def _signed(self, claims: dict[str, Any]) -> str:
        if self.algorithm == "RS256":
            return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)
        signed = ".".join(_encoded(json.dumps(part)) for part in ({"alg": self.algorithm, "kid": self.key.kid}, claims))
        if self.algorithm == "none":
            return f"{signed}."
        # With what everybody knows: the public key.
        return f"{signed}.{_encoded(hmac.digest(self.key.as_pem(private=False), signed.encode(), 'sha256'))}"


def _encoded(content: str | bytes) -> str:
    plain = content.encode() if isinstance(content, str) else content
    return base64.urlsafe_b64encode(plain).rstrip(b"=").decode()


@contextmanager
def serving() -> Iterator[IdentityProvider]:
    """The provider on a free port."""
    provider = IdentityProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path)
            if path.path == "/authorise":
                query = {name: values[0] for name, values in parse_qs(path.query).items()}
                self.send_response(302)
                self.send_header("Location", provider.authorise(query))
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif path.path == "/keys":
                self._answer(200, {"keys": [provider.key.as_dict(private=False)]})
            else:
                self._answer(200, provider.metadata())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            fields = {name: values[0] for name, values in parse_qs(body).items()}
            self._answer(*provider.exchange(fields, self.headers.get("Authorization", "")))

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        provider.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()
