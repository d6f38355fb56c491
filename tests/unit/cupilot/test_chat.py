"""A webhook's message as chat programs take it."""

from __future__ import annotations

import json

import pytest

from cupilot.domain.chat import shaped

BODY = json.dumps(
    {
        "type": "job.failed",
        "timestamp": "now",
        "data": {"job": "j1", "data": {"reason": "no_template", "message": "<!all> & x"}},
    }
)


def test_other_receivers_get_the_message_as_it_is() -> None:
    assert shaped("https://example.org/hooks.slack.com", BODY) is BODY


def test_slack_gets_text_that_mentions_nobody() -> None:
    text = json.loads(shaped("https://hooks.slack.com/services/T/B/x", BODY))["text"]
    assert text == "cuPilot: job.failed of job j1: reason no_template, message &lt;!all&gt; &amp; x"


@pytest.mark.parametrize("host", ["acme.webhook.office.com", "prod-1.westeurope.logic.azure.com"])
def test_teams_gets_a_card(host: str) -> None:
    (attachment,) = json.loads(shaped(f"https://{host}/workflows/1", BODY))["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert "job.failed of job j1" in attachment["content"]["body"][0]["text"]
