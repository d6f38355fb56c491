"""A person at the pages, in a real browser: real HTTP, real Postgres, real Chromium; judge and agents are scripted.

One stack and one browser for the whole file. A picture of every page is kept in ``build/pages``.
"""

from __future__ import annotations

import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from api.app import create_app
from api.pages.visits import COOKIE
from cupilot.domain.evaluation import FailureKind
from cupilot.domain.people import Role
from cupilot.domain.states import JobState
from cupilot.embedded.servers import Running
from cupilot.settings import Settings
from cupilot.storage.db.tables.people import Team as TeamRow
from cupilot.storage.people.teams import create_api_key, ensure_user, set_role
from tests.service.api.identity_provider import CLIENT, SECRET, IdentityProvider, serving
from tests.service.api.world import Story, Team, World, audited, evolved, live, rejected
from tests.service.browser import chromium as browsers
from tests.service.browser.chromium import Browser
from tests.service.doubles import SOURCE, strategy
from tests.service.rig import Rig

pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(browsers.missing() is not None, reason=f"browser tests: {browsers.missing()}"),
]

PAUSE_SECONDS = 0.15
"""Between a worker's steps, so that a page has something to follow."""


class Workers:
    """The rig's workers in a thread: what a cluster would do, at a pace that an eye can follow."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.stopped.wait(PAUSE_SECONDS):
            for message in self.rig.publish():
                self.rig.do(message)
                time.sleep(PAUSE_SECONDS)

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join(10)


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with serving() as provider:
        yield provider


@pytest.fixture(scope="module")
def world(database_url: str, valkey: Running, provider: IdentityProvider) -> Iterator[World]:
    settings = Settings(
        database_url=SecretStr(database_url),
        redis_url=SecretStr(valkey.url),
        oidc_issuer=provider.url,
        oidc_client_id=CLIENT,
        oidc_client_secret=SecretStr(SECRET),
        oidc_name="Example",
    )
    app = create_app(settings)
    with live(app, lifespan="on") as url:
        world = World(app.state.database, url)
        names = [*(f"t{number}" for number in range(1, 6)), "broken", "cheat", "t9"]
        workers = Workers(Rig(app.state.database, settings, [strategy(name) for name in names]))
        yield world
        workers.stop()
        world.close()
    world.database.close()


@pytest.fixture(scope="module")
def browser(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsers.chromium(world.url, tmp_path_factory.mktemp("downloads")) as browser:
        yield browser


@pytest.fixture(scope="module")
def team(world: World) -> Team:
    """An admin who runs the service, so that every page is theirs to see."""
    team = world.team()
    with world.database.transaction() as session:
        row = session.get_one(TeamRow, team.id)
        user = ensure_user(session, "ada")
        user.cluster_admin = True
        set_role(session, row, user, Role.ADMIN)
        key = create_api_key(session, row, "browser", user=user)[1]
    return Team(team.id, key, world.http(key))


def test_a_job_is_submitted_watched_to_its_end_steered_and_taken_away(
    world: World, browser: Browser, team: Team, tmp_path: Path
) -> None:
    browser.sign_in(team.key)
    browser.press("New job")
    browser.find("#source").send_keys("def forward(")
    browser.find("#target option[value=cpu], #target option:last-child").click()
    browser.press("Submit")
    browser.wait_for("[role=alert] h2", "is not valid Python")
    assert [line for line in browser.complaints() if "/ui/submit" not in line] == []  # the page that says what is wrong
    source = browser.find("#source")
    source.clear()
    for name, value in (("population", 4), ("generations", 2)):
        browser.driver.execute_script("arguments[0].value = arguments[1]", browser.find(f"#{name}"), value)
    browser.driver.execute_script("arguments[0].value = arguments[1]", source, SOURCE)
    browser.find("#problem-name").send_keys("rows")
    browser.press("Plan only")
    browser.wait_for("#plan", "at most")
    browser.picture("submit")
    browser.press("Submit")
    browser.wait_for("h1", "rows")
    # No reload from here on: what changes, the page's own script has fetched.
    browser.driver.execute_script("window.kept = true")
    browser.wait_for("#lineage", "generation 1")
    browser.press("Steer: pin, ban, inject")
    browser.wait_for("#candidates", "audited")
    browser.picture("job-live")
    browser.wait_for("#head .badge", "succeeded")
    browser.wait_for("#tiles", "roofline bound")
    browser.wait_for("#funnel", "reproduced")
    assert browser.driver.execute_script("return window.kept") is True
    browser.picture("job")
    _edges_touch_their_nodes(browser)
    _a_node_opens_its_panel(browser)
    _a_winner_is_exported(browser, team, tmp_path)
    assert browser.complaints() == []
    assert browser.hosts() == {world.url.removeprefix("http://")}


def _edges_touch_their_nodes(browser: Browser) -> None:
    ends = browser.driver.execute_script(
        """const boxes = [...document.querySelectorAll('.tree .leaf')].map(leaf => leaf.getBBox());
        return [...document.querySelectorAll('.tree .edge')].map(edge => {
          const [start, end] = [edge.getPointAtLength(0), edge.getPointAtLength(edge.getTotalLength())];
          const near = (point) => boxes.some(box => Math.abs(point.y - box.y - box.height / 2) < 1
            && Math.min(Math.abs(point.x - box.x), Math.abs(point.x - box.x - box.width)) < 1);
          return near(start) && near(end); });"""
    )
    assert ends
    assert all(ends)


def _a_node_opens_its_panel(browser: Browser) -> None:
    node = browser.find(".tree a")
    browser.driver.execute_script(
        "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))", node
    )
    browser.wait_for("#panel .body", "made by")
    browser.picture("panel")
    browser.driver.execute_script("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
    assert not browser.find("#panel").is_displayed()


def _a_winner_is_exported(browser: Browser, team: Team, folder: Path) -> None:
    address = browser.find("#exports a[href$=bundle]").get_attribute("href")
    assert address
    answer = team.http.get(address, headers={"Cookie": f"{COOKIE}={team.key}"})
    (folder / "bundle.zip").write_bytes(answer.content)
    with zipfile.ZipFile(folder / "bundle.zip") as bundle:
        assert any(name.endswith("reproduce.py") for name in bundle.namelist())


def test_a_running_job_is_paused_resumed_pinned_and_cancelled(world: World, browser: Browser, team: Team) -> None:
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        story.candidate(story.generation(0), audited(1.5), best=True)
        job = story.leave_no_steps().id
    browser.open(f"/ui/jobs/{job}")
    browser.press("Pause")
    browser.wait_for("#head .badge", "paused")
    browser.press("Resume")
    browser.wait_for("#head .badge", "evolving")
    browser.press("Steer: pin, ban, inject")
    browser.find("#pin-candidate").send_keys("0")
    browser.press("Pin")
    browser.wait_for("#directives", "in force")
    browser.press("Cancel")
    browser.driver.switch_to.alert.accept()
    browser.wait_for("#head .badge", "cancel")
    assert browser.complaints() == []


def test_many_tabs_of_open_jobs_stay_live(world: World, browser: Browser, team: Team) -> None:
    """A browser opens six connections to a host, and does not connect again by itself where a stream is refused."""
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        story.candidate(story.generation(0), audited(1.5), best=True)
        job = story.leave_no_steps().id
    driver = browser.driver
    first = driver.current_window_handle
    browser.open(f"/ui/jobs/{job}")
    for _ in range(8):
        driver.switch_to.new_window("tab")
        browser.open(f"/ui/jobs/{job}")
        browser.wait_for("#head .badge", "evolving")
    browser.wait_until("document.querySelector('.live-dot').title === 'live'")
    address = driver.execute_script("return document.body.dataset.events")
    driver.execute_script("document.body.dataset.events = '/ui/none'; follow()")
    browser.wait_until("source?.readyState === EventSource.CLOSED || retry")
    driver.execute_script("document.body.dataset.events = arguments[0]", address)
    browser.wait_until("document.querySelector('.live-dot').title === 'live'")
    assert [line for line in browser.complaints() if "/ui/none" not in line] == []
    for handle in driver.window_handles:
        if handle != first:
            driver.switch_to.window(handle)
            driver.close()
    driver.switch_to.window(first)
    browser.wait_until("source?.readyState === EventSource.OPEN")


def test_a_failed_job_says_why_and_what_next(world: World, browser: Browser, team: Team) -> None:
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        story.candidate(story.generation(0), rejected(FailureKind.COMPILE_ERROR))
        job = story.end(JobState.FAILED, reason="no_valid_kernel", message="none was correct").id
    browser.open(f"/ui/jobs/{job}")
    for words in ("No kernel was proven", "none was correct", "What to do next"):
        assert words in browser.text()
    browser.picture("job-failed")


def test_every_page_is_sound_wide_narrow_light_and_dark(world: World, browser: Browser, team: Team) -> None:
    with world.database.transaction() as session:
        job = evolved(session, team.id).id
    pages = {
        "jobs": "/ui",
        "evolved": f"/ui/jobs/{job}",
        "candidate": f"/ui/jobs/{job}/candidates/4",
        "compare": f"/ui/compare?of={job}:0&of={job}:1&of={job}:4",
        "boards": "/ui/leaderboards",
        "pool": "/ui/pool?ask=softmax",
        "experiments": "/ui/experiments",
        "candidates": f"/ui/jobs/{job}/candidates",
        "lineage": f"/ui/jobs/{job}/lineage",
        "operations": "/ui/operations",
        "cluster": "/ui/cluster",
        "team": "/ui/team",
        "audit": "/ui/audit",
        "submit-empty": "/ui/submit",
    }
    for width, theme in ((1360, "light"), (360, "light"), (1360, "dark")):
        browser.resize(width)
        browser.theme(theme)
        for name, path in pages.items():
            browser.open(path)
            browser.find("main h1")
            overflow = browser.driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
            assert overflow <= 0, (name, width)
            browser.picture(f"{name}-{width}-{theme}")
    ground = "return getComputedStyle(document.body).backgroundColor"
    dark = browser.driver.execute_script(ground)
    browser.find("[data-theme-toggle]").click()
    assert browser.driver.execute_script(ground) != dark
    browser.driver.execute_script("localStorage.clear()")
    browser.resize(1360)
    browser.theme("light")
    browser.open(pages["candidate"])
    browser.press("Unified")
    assert browser.find("#diff-unified").is_displayed()
    assert browser.complaints() == []
    assert browser.hosts() == {world.url.removeprefix("http://")}


def test_another_team_sees_nothing(world: World, browser: Browser, team: Team) -> None:
    job = team.submit(problem={"name": "secret-operator", "source": SOURCE})["id"]
    browser.sign_in(world.team().key)
    assert "secret-operator" not in browser.text()
    browser.open(f"/ui/jobs/{job}")
    assert f"no job {job}" in browser.text()


def test_a_person_signs_in_through_the_provider_stays_signed_in_and_signs_out(
    world: World, browser: Browser, provider: IdentityProvider
) -> None:
    team = world.team()
    with world.database.transaction() as session:
        user = ensure_user(session, f"ann-{team.id}@example.org")
        set_role(session, session.get_one(TeamRow, team.id), user, Role.MEMBER)
        name = user.name
    provider.person = {"sub": str(team.id), "email": name, "email_verified": True}
    browser.driver.delete_all_cookies()
    browser.open("/ui/login")
    browser.picture("login")
    browser.press("Sign in with Example")
    browser.wait_for("h1", "Jobs")
    assert name in browser.text()
    browser.open("/ui/team")
    browser.wait_for("main", "single sign-on")
    browser.press("Sign out")
    browser.wait_for("h1", "Sign in")
    browser.open("/ui")
    browser.wait_for("h1", "Sign in")
    browser.open("/ui/sso/callback?code=made-up&state=made-up")
    browser.wait_for("main", "Jobs")
    assert name not in browser.text()
