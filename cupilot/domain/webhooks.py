"""Rules of webhooks, without any I/O: which events an endpoint wants, how a message is signed, when it is tried again,
and which addresses may be called.

Signatures follow the Standard Webhooks specification 1.0.0 (https://www.standardwebhooks.com) and are made by its
reference library. A receiver in Python can use :func:`verify`.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from standardwebhooks import Webhook, WebhookVerificationError

from cupilot.domain.errors import InvalidInput

SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32
"""The specification asks for 24 to 64."""
PING = "webhook.ping"
MAX_ATTEMPTS = 10
"""After 5 s, 20 s, 80 s, 5 min, 21 min, 85 min, then up to 6 h: ten attempts over about 20 hours."""
FIRST_RETRY_SECONDS = 5.0
RETRY_FACTOR = 4.0
LONGEST_RETRY_SECONDS = 6 * 3600.0
SPREAD = 1.25
"""Longest wait after an attempt, as a multiple of the wait that its number gives."""
MAX_BODY_BYTES = 65_536

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_UNWANTED: tuple[Network, ...] = (
    ip_network("168.63.129.16/32"),  # Azure's host agent, at a public address
    ip_network("64:ff9b::/96"),  # NAT64: an IPv4 address in disguise
    ip_network("64:ff9b:1::/48"),
    ip_network("2002::/16"),  # 6to4, the same
    ip_network("2001::/32"),  # Teredo, the same
    ip_network("::/96"),  # IPv4-compatible, the same
)


class WrongSignature(ValueError):
    """The message has another sender, was changed on its way, or is more than five minutes old."""


def new_secret() -> str:
    """Return a new secret for an endpoint, as the receiver keeps it."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature, ``v1,<base64>``; ``timestamp`` in Unix seconds."""
    return Webhook(secret).sign(message_id, datetime.fromtimestamp(timestamp, UTC), body.decode())


def signed_headers(keys: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the specification's three headers; while a secret is being replaced there are two signatures."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(sign(key, message_id, timestamp, body) for key in keys),
    }


def verify(secret: str, headers: Mapping[str, str], body: bytes) -> None:
    """Raise :class:`WrongSignature` unless the message is genuine and fresh; for receivers.

    ``body`` as it arrived. Remember ``webhook-id``: a message may come twice.
    """
    try:
        Webhook(secret).verify(body, dict(headers), json_parse=False)
    except (WebhookVerificationError, ValueError) as error:
        raise WrongSignature(str(error)) from error


def wants(patterns: Sequence[str], kind: str) -> bool:
    """Return whether an endpoint with these filters, such as ``job.*``, wants an event of this kind."""
    return any(fnmatchcase(kind, pattern) for pattern in patterns)


def retry_seconds(attempt: int, luck: float) -> float:
    """Return the wait after a failed attempt (from 1).

    ``luck`` in [0, 1) spreads attempts that failed together over half of it.
    """
    whole = min(FIRST_RETRY_SECONDS * RETRY_FACTOR ** (attempt - 1), LONGEST_RETRY_SECONDS)
    return whole * (SPREAD - 0.5 * (1 - luck))


def networks(text: str) -> tuple[Network, ...]:
    """Parse networks separated by commas, e.g. ``10.20.0.0/16, 127.0.0.0/8``; raise ValueError for anything else."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def may_call(address: Address, allowed: Sequence[Network]) -> bool:
    """Return whether a message may be sent there: to the public Internet, or to a network that the operator allows.

    Refuses loopback, private, link-local (where clouds keep their metadata), shared, multicast and reserved addresses,
    and IPv6 forms that stand for an IPv4 address.
    """
    plain = address.ipv4_mapped if isinstance(address, IPv6Address) and address.ipv4_mapped else address
    if any(plain in network for network in allowed if network.version == plain.version):
        return True
    if plain is not address or any(plain in network for network in _UNWANTED if network.version == plain.version):
        return False
    return plain.is_global and not plain.is_multicast and not plain.is_reserved


def check_url(url: str, allowed: Sequence[Network]) -> str:
    """Return the URL if messages could be sent there; raise InvalidInput with what is wrong with it otherwise.

    Names are looked up, and their addresses checked, whenever a message is sent: they may change.
    """
    where = "body.url"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise InvalidInput("this is not a URL", where=where) from error
    if parts.scheme not in ("https", "http") or not host or port == 0 or any(ord(character) < 33 for character in url):
        raise InvalidInput("this is not an http or https URL", where=where)
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(
            "a webhook's URL must not contain a user or password", hint="verify the signature instead", where=where
        )
    if parts.scheme == "http" and not allowed:
        raise InvalidInput("webhooks are sent over https only", where=where)
    try:
        literal = ip_address(host)
    except ValueError:
        return url
    if not may_call(literal, allowed):
        raise InvalidInput(
            "webhooks are not sent to private, local or reserved addresses",
            hint="an operator can allow networks with CUPILOT_WEBHOOK_NETWORKS",
            where=where,
        )
    return url
