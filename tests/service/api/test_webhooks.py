"""Webhooks over REST, by the client and by the command line; what they send is tested beside the workers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from cupilot.cli.app import app
from cupilot.client import ApiError, Client, ConflictError, NotFoundError, RejectedError
from cupilot.schemas import WebhookChange
from cupilot.storage.webhooks import deliveries as storage
from tests.service.api.world import Team, World

pytestmark = pytest.mark.service

URL = "https://ci.example.org/hook"


@pytest.fixture
def client(world: World, team: Team) -> Iterator[Client]:
    with Client(world.url, team.key) as client:
        yield client


def test_a_webhook_from_its_making_to_its_end(client: Client) -> None:
    made = client.create_webhook(URL, events=["job.*"], description="ci")
    assert made.secret.startswith("whsec_")
    assert [item.id for item in client.all_webhooks()] == [made.id]
    assert made.secret not in client.webhook(made.id).model_dump_json()
    rotated = client.rotate_webhook_secret(made.id)
    assert rotated.secret != made.secret
    assert rotated.previous_secret_until is not None
    off = client.change_webhook(made.id, WebhookChange(enabled=False))
    assert (off.enabled, off.disabled_reason) == (False, "requested")
    with pytest.raises(ConflictError):
        client.ping_webhook(made.id)
    on = client.change_webhook(made.id, WebhookChange(enabled=True, events=["*"], url=URL + "/2"))
    assert (on.enabled, on.disabled_reason, on.events, on.url) == (True, None, ["*"], URL + "/2")
    ping = client.ping_webhook(made.id)
    assert (ping.kind, ping.state, ping.log) == ("webhook.ping", "pending", [])
    assert [item.id for item in client.all_deliveries(made.id, state="pending")] == [ping.id]
    assert list(client.all_deliveries(made.id, state="failed")) == []
    assert json.loads(client.delivery(made.id, ping.id).body)["type"] == "webhook.ping"
    with pytest.raises(ConflictError):
        client.redeliver(made.id, ping.id)
    client.delete_webhook(made.id)
    with pytest.raises(NotFoundError):
        client.webhook(made.id)


def test_only_admins_see_more_of_a_url_than_its_host(world: World, team: Team, client: Client) -> None:
    made = client.create_webhook("https://hooks.slack.com:443/services/T0/B0/secret?token=secret")
    for scope in ("read", "submit"):
        key = team.http.post("/v1/keys", json={"name": scope, "scope": scope}).json()["secret"]
        with Client(world.url, key) as reader:
            assert reader.webhook(made.id).url == "https://hooks.slack.com:443"
            assert [item.url for item in reader.all_webhooks()] == ["https://hooks.slack.com:443"]
    assert client.webhook(made.id).url == made.url
    assert [item.url for item in client.all_webhooks()] == [made.url]


@pytest.mark.parametrize("url", ["http://example.org/", "https://127.0.0.1/", "https://u:p@example.org/", "nonsense"])
def test_a_url_that_is_never_called_is_refused(client: Client, url: str) -> None:
    with pytest.raises(RejectedError) as caught:
        client.create_webhook(url)
    assert (caught.value.code, caught.value.where) == ("invalid_input", "body.url")


def test_a_team_has_a_bounded_number_and_only_its_own(
    client: Client, stranger: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "MAX_ENDPOINTS", 1)
    made = client.create_webhook(URL)
    ping = client.ping_webhook(made.id)
    with pytest.raises(ApiError) as caught:
        client.create_webhook(URL)
    assert caught.value.code == "too_many_webhooks"
    base = f"/v1/webhooks/{made.id}"
    for method, path in [
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/secret"),
        ("POST", "/ping"),
        ("GET", "/deliveries"),
        ("GET", f"/deliveries/{ping.id}"),
        ("POST", f"/deliveries/{ping.id}/redeliver"),
    ]:
        body = {"enabled": False} if method == "PATCH" else None
        assert stranger.http.request(method, base + path, json=body).status_code == 404, path
    assert stranger.http.get("/v1/webhooks").json()["items"] == []
    with pytest.raises(NotFoundError):
        client.delivery(made.id, uuid.uuid4())


def test_the_command_line_does_it_all(world: World, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPILOT_URL", world.url)
    monkeypatch.setenv("CUPILOT_API_KEY", team.key)

    def run(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["webhooks", *arguments])
        assert done.exit_code == code, done.output
        return done.output

    made = json.loads(run("add", URL, "--event", "job.*", "--json"))
    assert made["secret"].startswith("whsec_")
    assert made["id"] in run("list")
    assert "disabled" in run("set", made["id"], "--disable")
    assert "enabled" in run("set", made["id"], "--enable")
    assert "secret  whsec_" in run("rotate", made["id"])
    ping = json.loads(run("ping", made["id"], "--json"))
    assert ping["id"] in run("log", made["id"])
    assert "webhook.ping" in run("show", made["id"], ping["id"])
    run("redeliver", made["id"], ping["id"], code=1)
    run("set", made["id"], code=2)
    run("add", URL, "--event", "Not A Kind", code=2)
    assert "removed" in run("remove", made["id"])
    run("remove", made["id"], code=4)
