"""OpenID Connect: send a browser to the provider, and learn from its answer who came back.

Authorization code flow with PKCE, ``state`` and ``nonce``; the ID token is checked by Authlib and joserfc against the
provider's published keys. Knows neither users nor keys of this service: :mod:`cupilot.storage.people.identities`.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import OAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from cupilot.domain.errors import CupilotError
from cupilot.domain.people import Identity
from cupilot.settings import Settings

SCOPES = "openid email"
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Signatures that only the holder of a private key can make: neither ``none`` nor one made with the public key."""
PENDING_SECONDS = 600
"""Time to sign in at the provider."""
LEEWAY_SECONDS = 60
"""By which the provider's clock may differ."""
METADATA_SECONDS = 3600.0
TIMEOUT_SECONDS = 5.0


class SignInFailed(CupilotError):
    """The provider's answer does not prove who came back."""

    code = "sign_in_failed"
    status = 401


class ProviderDown(CupilotError):
    """The provider does not answer, or not as OpenID Connect says."""

    code = "sign_in_unavailable"
    status = 503


@dataclass(frozen=True)
class Pending:
    """State that a browser keeps between leaving for the provider and coming back."""

    state: str
    nonce: str
    verifier: str
    redirect: str
    team: str | None = None

    def pack(self) -> str:
        """Return it as text for a cookie."""
        return json.dumps(asdict(self))

    @classmethod
    def unpack(cls, text: str | None) -> Pending:
        """Read it again; raise :class:`SignInFailed` where there is none."""
        try:
            return cls(**json.loads(text or ""))
        except (ValueError, TypeError) as error:
            raise _not_begun_here() from error


class Provider:
    """The provider that the settings name. Safe for threads; asks for its metadata and keys when first needed."""

    def __init__(self, issuer: str, client_id: str, client_secret: str | None) -> None:
        self.issuer = issuer
        self._client_id = client_id
        self._client_secret = client_secret
        self._lock = threading.Lock()
        self._metadata: dict[str, Any] | None = None
        self._keys: KeySet | None = None
        self._asked_at = 0.0

    def begin(self, redirect: str, team: str | None) -> tuple[str, Pending]:
        """Return the provider's address for a browser, and what the browser must bring back."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        pending = Pending(state, nonce, verifier, redirect, team)
        with self._client(redirect) as client:
            url, _ = client.create_authorization_url(
                self._endpoint("authorization_endpoint"),
                state=pending.state,
                nonce=pending.nonce,
                code_verifier=pending.verifier,
            )
        return url, pending

    def finish(self, answer: Mapping[str, str], pending: Pending) -> Identity:
        """Return who the provider says has come back; raise :class:`SignInFailed` where that is not proven."""
        if not hmac.compare_digest(answer.get("state", "").encode(), pending.state.encode()):
            raise _not_begun_here()
        if answer.get("iss", self.issuer) != self.issuer:
            raise _untrusted("it names another issuer")
        if "error" in answer or not answer.get("code"):
            raise SignInFailed("the provider did not let you in", hint="try again, or sign in with an API key")
        claims = self._claims(self._token(answer["code"], pending), pending.nonce)
        email = claims.get("email")
        return Identity(
            issuer=self.issuer,
            subject=claims["sub"],
            email=email if isinstance(email, str) and claims.get("email_verified") is True else None,
        )

    def _token(self, code: str, pending: Pending) -> dict[str, Any]:
        endpoint = self._endpoint("token_endpoint")
        try:
            with self._client(pending.redirect) as client:
                token: dict[str, Any] = client.fetch_token(endpoint, code=code, code_verifier=pending.verifier)
                return token
        except AuthlibBaseError as error:
            raise _untrusted(f"it refused the sign-in code ({error.error})") from error
        except (httpx2.HTTPError, ValueError) as error:
            raise _down(error) from error

    def _claims(self, token: Mapping[str, Any], nonce: str) -> CodeIDToken:
        """Return what a valid ID token says."""
        expected = {
            "iss": {"essential": True, "value": self.issuer},
            "aud": {"essential": True, "value": self._client_id},
            "sub": {"essential": True, "validate": lambda _, subject: isinstance(subject, str) and bool(subject)},
        }
        known = {"nonce": nonce, "client_id": self._client_id, "access_token": token.get("access_token")}
        try:
            decoded = self._decoded(str(token.get("id_token", "")))
            claims = CodeIDToken(decoded.claims, decoded.header, expected, known)
            claims.validate(leeway=LEEWAY_SECONDS)
        except (JoseError, ValueError, TypeError) as error:
            raise _untrusted(f"its ID token is not valid: {error}") from error
        return claims

    def _decoded(self, token: str) -> jwt.Token:
        try:
            return jwt.decode(token, self._key_set(), algorithms=ALGORITHMS)
        except InvalidKeyIdError:  # the provider has changed its keys since they were read
            return jwt.decode(token, self._key_set(again=True), algorithms=ALGORITHMS)

    def _client(self, redirect: str) -> OAuth2Client:
        return OAuth2Client(
            self._client_id,
            self._client_secret,
            token_endpoint_auth_method="client_secret_basic" if self._client_secret else "none",
            scope=SCOPES,
            redirect_uri=redirect,
            code_challenge_method="S256",
            timeout=TIMEOUT_SECONDS,
        )

    def _endpoint(self, name: str) -> str:
        """Return an address from the issuer's metadata (OpenID Connect Discovery 1.0)."""
        with self._lock:
            if self._metadata is None or time.monotonic() - self._asked_at > METADATA_SECONDS:
                metadata = _fetched(f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")
                if metadata.get("issuer") != self.issuer:
                    raise _down(f"its metadata name the issuer {metadata.get('issuer')!r}, not {self.issuer!r}")
                self._metadata, self._keys, self._asked_at = metadata, None, time.monotonic()
            address = self._metadata.get(name)
        if not isinstance(address, str) or not is_acceptable(address):
            raise _down(f"its metadata have no {name} with TLS")
        return address

    def _key_set(self, *, again: bool = False) -> KeySet:
        address = self._endpoint("jwks_uri")
        with self._lock:
            if self._keys is None or again:
                try:
                    self._keys = KeySet.import_key_set(_fetched(address))  # type: ignore[arg-type]
                except (JoseError, ValueError, KeyError, TypeError) as error:
                    raise _down(error) from error
            return self._keys


def provider_of(config: Settings) -> Provider | None:
    """Return the provider that the settings name, or None."""
    if config.oidc_issuer is None or config.oidc_client_id is None:
        return None
    secret = config.oidc_client_secret
    return Provider(config.oidc_issuer, config.oidc_client_id, secret.get_secret_value() if secret else None)


def is_acceptable(url: str) -> bool:
    """Return whether an address may be asked: with TLS, or on this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1"))


def _fetched(url: str) -> dict[str, Any]:
    try:
        answer = httpx2.get(url, timeout=TIMEOUT_SECONDS)
        answer.raise_for_status()
        found = answer.json()
    except (httpx2.HTTPError, ValueError) as error:
        raise _down(error) from error
    if not isinstance(found, dict):
        raise _down(f"{url} is no JSON object")
    return found


def _not_begun_here() -> SignInFailed:
    return SignInFailed(
        "this sign-in did not begin in this browser, or took longer than ten minutes", hint="begin again at /ui/login"
    )


def _untrusted(why: str) -> SignInFailed:
    return SignInFailed(
        f"the provider's answer cannot be trusted: {why}", hint="begin again at /ui/login, or sign in with an API key"
    )


def _down(why: object) -> ProviderDown:
    return ProviderDown(f"the sign-in provider cannot be used now: {why}", hint="sign in with an API key meanwhile")
