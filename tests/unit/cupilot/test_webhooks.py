"""Signatures as the Standard Webhooks specification has them; which addresses are never called."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, tzinfo
from ipaddress import ip_address

import pytest
import standardwebhooks.webhooks

from cupilot.domain import webhooks
from cupilot.domain.errors import InvalidInput
from cupilot.domain.webhooks import (
    WrongSignature,
    check_url,
    may_call,
    networks,
    retry_seconds,
    sign,
    signed_headers,
    verify,
)

# The example of the specification's reference libraries.
SECRET, ID, STAMP = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
BODY = b'{"test": 2432232314}'


def test_a_signature_is_that_of_the_reference_libraries() -> None:
    assert sign(SECRET, ID, STAMP, BODY) == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time that the library takes for now, in Unix seconds."""

    def set_now(seconds: float) -> None:
        class Frozen(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
                return datetime.fromtimestamp(seconds, tz)

        monkeypatch.setattr(standardwebhooks.webhooks, "datetime", Frozen)

    return set_now


def test_a_receiver_accepts_either_secret_while_one_is_replaced_and_nothing_that_was_changed(
    clock: Callable[[float], None],
) -> None:
    new = webhooks.new_secret()
    headers = signed_headers([new, SECRET], ID, STAMP, BODY)
    clock(STAMP + 200)
    for secret in (new, SECRET):
        verify(secret, headers, BODY)
    for broken, body, now in (
        (headers, BODY + b" ", STAMP),
        ({**headers, "webhook-id": "other"}, BODY, STAMP),
        (headers, BODY, STAMP + 301),
        ({**headers, "webhook-timestamp": "x"}, BODY, STAMP),
        ({"webhook-id": ID}, BODY, STAMP),
    ):
        clock(now)
        with pytest.raises(WrongSignature):
            verify(SECRET, broken, body)
    clock(STAMP)
    with pytest.raises(WrongSignature):
        verify(webhooks.new_secret(), headers, BODY)
    with pytest.raises(WrongSignature):
        verify(SECRET, {**headers, "webhook-signature": "v2"}, BODY)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
        "2001:db8::1",
    ],
)
def test_no_message_goes_to_an_address_that_is_not_public(address: str) -> None:
    assert not may_call(ip_address(address), ())


def test_public_addresses_and_those_that_an_operator_lists_are_called() -> None:
    assert may_call(ip_address("8.8.8.8"), ())
    assert may_call(ip_address("2606:4700::1111"), ())
    allowed = networks("10.20.0.0/16, 127.0.0.0/8")
    assert may_call(ip_address("10.20.9.9"), allowed)
    assert may_call(ip_address("::ffff:127.0.0.1"), allowed)
    assert not may_call(ip_address("10.21.0.1"), allowed)
    with pytest.raises(ValueError, match="does not appear"):
        networks("somewhere")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org",
        "https://",
        "https://user:pw@example.org/x",
        "http://example.org/x",
        "https://127.0.0.1/x",
        "https://[::1]/x",
        "https://169.254.169.254/latest/meta-data",
        "https://example.org:0/",
        "https://example.org/a\nHost: evil",
        "https://example.org:99999/",
        "javascript:alert(1)",
    ],
)
def test_urls_that_could_never_be_called_are_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidInput):
        check_url(url, ())


def test_retries_spread_over_hours() -> None:
    waits = [retry_seconds(attempt, 0.5) for attempt in range(1, webhooks.MAX_ATTEMPTS)]
    assert waits == sorted(waits)
    assert waits[0] == 5.0
    assert 12 * 3600 < sum(waits) < 48 * 3600
    assert 0.75 <= retry_seconds(3, 0.0) / 80 < retry_seconds(3, 0.999) / 80 < 1.25


def test_filters_are_patterns() -> None:
    assert webhooks.wants(["job.*"], "job.failed")
    assert webhooks.wants(["*"], "step.queued")
    assert not webhooks.wants(["job.succeeded", "candidate.*"], "job.failed")
