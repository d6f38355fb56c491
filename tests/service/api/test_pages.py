"""The pages under /ui: what they show, to whom, and that nothing on them is anybody else's or runs."""

from __future__ import annotations

import html
import re
import uuid
from html.parser import HTMLParser

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import select

from api.app import create_app
from api.pages import overviews
from api.pages.routes import ROUTERS
from api.pages.visits import COOKIE
from cupilot.domain.champions import champions
from cupilot.domain.evaluation import Failure, FailureKind, Interval, Verdict, WorkloadResult
from cupilot.domain.people import Role, Scope
from cupilot.domain.problem import Problem
from cupilot.domain.states import JobState, WorkerKind
from cupilot.domain.workload import Workload
from cupilot.settings import Settings
from cupilot.storage.db.tables.jobs import Candidate
from cupilot.storage.db.tables.models import LlmCall
from cupilot.storage.db.tables.people import Team as TeamRow
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.usage import charge_gpu
from cupilot.storage.people.teams import create_api_key, ensure_team, ensure_user, set_role
from cupilot.storage.queue.cluster import register_worker
from cupilot.storage.queue.drains import SERVICE, begin_drain, end_drain
from tests.service.api.test_retention import with_call
from tests.service.api.world import DEVICE, SOURCE, Story, Team, World, audited, evolved, live, preparation, rejected

pytestmark = pytest.mark.service

EXPORT = "/ui/jobs/{job}/candidates/{candidate}/exports/{form}"


class Page(HTMLParser):
    """Collects what a browser would fetch or run, and whether every element is closed where it was opened."""

    VOID = frozenset({"meta", "link", "input", "img", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert tag not in ("style", "iframe"), tag
        if tag == "script":  # the pages' own file, never text inside a page
            assert re.fullmatch(r"/ui/static/[0-9a-f]{12}/cockpit\.js", given["src"] or "")
        assert not [name for name in given if name.startswith("on") or name == "style"], given
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


class Filled(HTMLParser):
    """Collects what a page's fields hold, as a browser would send it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self._select = self._area = ""
        self._chosen = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name = given.get("name") or ""
        if tag == "select":
            self._select, self.fields[name] = name, ""
        elif tag == "textarea":
            self._area, self.fields[name] = name, ""
        elif tag == "input" and name:
            self.fields[name] = given.get("value") or ""
        self._chosen = tag == "option" and "selected" in given

    def handle_data(self, data: str) -> None:
        if self._area:
            self.fields[self._area] += data.removeprefix("\n").replace("\n", "\r\n")
        elif self._chosen:
            self.fields[self._select] = data

    def handle_endtag(self, tag: str) -> None:
        self._chosen = False
        if tag == "textarea":
            self._area = ""


def visit(world: World, key: str | None) -> httpx.Client:
    browser = httpx.Client(base_url=world.url, timeout=60)
    world.open.append(browser)
    if key is not None:
        answer = browser.post("/ui/login", data={"key": key})
        assert (answer.status_code, answer.headers["Location"]) == (303, "/ui")
        cookie = answer.headers["Set-Cookie"]
        assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Path=/ui"))
    return browser


@pytest.fixture
def browser(world: World, team: Team) -> httpx.Client:
    return visit(world, team.key)


@pytest.fixture
def job(world: World, team: Team) -> str:
    with world.database.transaction() as session:
        job = evolved(session, team.id).id
        charge_gpu(session, job, 12.5)
        return str(job)


def shown(browser: httpx.Client, path: str, status: int = 200) -> str:
    """A page, which asks for nothing of another origin and runs nothing."""
    answer = browser.get(path)
    assert answer.status_code == status, answer.text
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    for link in Page(answer.text).links:
        assert re.match(r"/ui|\?|#main", link), link
    return answer.text


def test_every_page_shows_a_job_that_was_evolved(browser: httpx.Client, job: str) -> None:
    seen = {
        "/ui": ("double", "succeeded", "2.00x"),
        "/ui?state=failed": ("No jobs fit",),
        "/ui?state=succeeded&target=cpu&text=DOUB": ("2.00x", "highest median, from 1.50x to 2.00x"),
        "/ui?text=other&label=a=b&user=me&problem=x": ("No jobs fit",),
        "/ui/submit": ("New job", "softmax"),
        "/ui/pool": ("Strategy pool", "What works where"),
        "/ui/experiments": ("No experiments yet",),
        f"/ui/jobs/{job}": (
            "Generation 2",
            "reproduced",
            "duplicate_strategy",
            "Population",
            "Lineage",
            "Roofline: ",
            "From made to proven",
            "/candidates/4/exports/bundle",
            "<svg",
            "job.succeeded",
        ),
        f"/ui/jobs/{job}/candidates": ("2.00x", "the fastest first", "Compare chosen"),
        f"/ui/jobs/{job}/lineage": ("5 candidates", "generation 2", "winner"),
        f"/ui/jobs/{job}/candidates/4": ("crossover", "simd", "// candidate 4", "What it changed against", "passed"),
        f"/ui/jobs/{job}/candidates/2": ("wrong_value: out[0] is 1, should be 2",),
        f"/ui/compare?first={job}:0&second={job}:4": (
            'class="removed"><span class="k-c1">// candidate 0',
            'class="added"><span class="k-c1">// candidate 4',
            "as fast as the first",
        ),
        "/ui/leaderboards": ("double", "2.00x"),
        "/ui/cluster": ("Scheduler down", "Device use", "device seconds a day by days from today"),
        "/ui/team": ("device time", "cpk_", "device seconds a day by days from today"),
    }
    for path, parts in seen.items():
        text = shown(browser, path)
        for part in parts:
            assert part in text, (path, part)
    board = re.search(r'href="(/ui/leaderboards/[^"]+)"', shown(browser, "/ui/leaderboards"))
    assert board
    assert "rank" in shown(browser, board[1].replace("&amp;", "&"))
    for name, kind in (("style.css", "text/css"), ("cockpit.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
        address = re.search(rf'"(/ui/static/[0-9a-f]+/{name})"', shown(browser, "/ui"))
        assert address
        answer = browser.get(address[1])
        assert answer.headers["Content-Type"].startswith(kind)
        assert "immutable" in answer.headers["Cache-Control"]
    assert browser.get("/ui/static/0/routes.py").status_code == 404
    assert browser.get("/ui/jobs", follow_redirects=False).headers["Location"] == "/ui"
    tried = {re.sub(r"/jobs/[^/?]+", "/jobs/{job}", path.split("?")[0]) for path in seen}
    tried = {re.sub(r"/candidates/\d", "/candidates/{candidate}", path) for path in tried}
    elsewhere = {
        "/",
        "/llms.txt",
        "/ui/audit",
        "/ui/jobs",
        "/ui/operations",
        "/ui/login",
        "/ui/sso",
        "/ui/sso/callback",
        "/ui/static/{digest}/{name}",
        "/ui/leaderboards/{problem}",
    }
    elsewhere |= {"/ui/champions/{kernel}", "/ui/champions/{kernel}/exports/{form}"}
    elsewhere |= {"/ui/events", "/ui/jobs/{job}/events", "/ui/jobs/{job}/calls/{call}", "/ui/experiments/{experiment}"}
    elsewhere |= {"/ui/experiments/{experiment}/figures/{figure}", EXPORT}
    pages = {route.path for router in ROUTERS for route in router.routes if "GET" in route.methods}  # type: ignore[attr-defined]
    assert tried | elsewhere == pages


def test_the_front_door_leads_browsers_to_the_pages_and_models_to_the_interfaces(world: World) -> None:
    nobody = visit(world, None)
    answer = nobody.get("/", headers={"Accept": "text/html,application/xhtml+xml"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/ui")
    assert nobody.get("/", headers={"Accept": "application/json"}).json()["error"]["code"] == "route_not_found"
    assert "/openapi.json" in nobody.get("/llms.txt").text


def test_buttons_do_what_rest_does_and_only_from_these_pages(browser: httpx.Client, team: Team) -> None:
    job = team.submit()["id"]
    form = {"problem": "softmax", "target": "cpu", "population": "4", "labels": "a=b"}
    assert "would wait" in browser.post("/ui/submit", data={**form, "action": "plan"}).text
    made = browser.post("/ui/submit", data={**form, "action": "submit"})
    assert made.status_code == 303
    assert "a=b" in shown(browser, made.headers["Location"])
    assert "looks like" not in shown(browser, "/ui/submit?problem=softmax")
    half = browser.post("/ui/submit", data={**form, "tensors": "bfloat16", "policy": "half", "action": "plan"}).text
    assert "softmax_bfloat16, policy half" in half
    for wrong in (
        {**form, "source": SOURCE},
        {**form, "population": "many"},
        {**form, "labels": "a"},
        {**form, "problem": "matmul_scalar", "tensors": "float16"},
        {**form, "problem": "", "source": SOURCE, "tensors": "float16"},
    ):
        assert browser.post("/ui/submit", data=wrong).status_code == 422
    own = {"source": SOURCE, "target": "cpu"}
    for field, value in {"population": "5000", "minutes": "0", "name": "x" * 201, "seed": "-1"}.items():
        refused = browser.post("/ui/submit", data={**own, field: value})
        assert refused.status_code == 422
        assert 'role="alert"' in refused.text
        assert "class Model" in refused.text  # what was pasted is not lost
    for seeds in ("0", str(10**18)):
        refused = browser.post("/ui/experiments", data={"problem": "softmax", "target": "cpu", "seeds": seeds})
        assert (refused.status_code, "1 to 100 seeds" in refused.text) == (422, True)
    for action, data, state in (("pause", {}, "paused"), ("resume", {}, "queued"), ("cancel", {}, "cancelled")):
        assert browser.post(f"/ui/jobs/{job}/{action}", data=data).status_code == 303
        assert team.http.get(f"/v1/jobs/{job}").json()["state"] == state
    assert browser.post(f"/ui/jobs/{job}/explode").status_code == 422
    other = team.submit()["id"]
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        refused = browser.post(f"/ui/jobs/{other}/cancel", headers=headers)
        assert refused.status_code == 403
        assert "cross_site" in refused.text
    chosen = {"job": [job, other], "action": "cancel"}  # the first has ended
    assert browser.post("/ui/jobs/bulk", data=chosen).status_code == 303
    assert team.http.get(f"/v1/jobs/{other}").json()["state"] == "cancelled"


def test_a_champion_has_a_page_and_is_judged_from_it(world: World, browser: httpx.Client, team: Team) -> None:
    listed = shown(browser, "/ui/leaderboards")
    one = champions()[0]
    page = f"/ui/champions/{one.kernel.content_hash()}"
    assert f'href="{page}"' in listed
    assert "over the fastest baseline" in listed
    text = shown(browser, page)
    for part in (
        one.device,
        f"in generation {one.generation}",
        "of the speed that the device",
        "Judge it here",
        "__global__",
    ):
        assert part in text, part
    file = browser.get(f"{page}/exports/bundle")
    assert (file.status_code, file.headers["Content-Type"]) == (200, "application/zip")
    made = browser.post(f"{page}/judge")
    assert made.status_code == 303
    job = team.http.get(f"/v1/jobs/{made.headers['Location'].rsplit('/', 1)[-1]}").json()
    assert job["labels"] == {"champion": one.kernel.content_hash()}
    with world.database.transaction() as session:
        _, key = create_api_key(session, session.get_one(TeamRow, team.id), "looks", scope=Scope.READ)
    looking = visit(world, key)
    assert "Judge it here" not in shown(looking, page)
    assert looking.post(f"{page}/judge").status_code == 403
    shown(browser, f"/ui/champions/{'0' * 64}", 404)


def test_leaderboards_lead_on_where_there_are_more(
    world: World, browser: httpx.Client, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overviews, "BOARDS", 1)
    with world.database.transaction() as session:
        evolved(session, team.id)
        evolved(session, team.id, problem=Problem(name="thrice", source=SOURCE + "# thrice\n"))
    for path, parts in {"/ui/leaderboards": ("double", "thrice")}.items():
        first = shown(browser, path)
        (more,) = re.findall(r'href="(\?cursor=[^"]+)">More', first)
        second = shown(browser, path + html.unescape(more))
        assert "More</a>" not in second
        assert [part in first for part in parts] != [part in second for part in parts]
    (board,) = re.findall(r'href="(/ui/leaderboards/[^"?]+)', first)
    ranked = shown(browser, board)
    (more,) = re.findall(r'href="(\?cursor=[^"]+)">More', ranked)
    assert 'data-name="rank">2<' in shown(browser, board + html.unescape(more))


def test_a_refused_experiment_keeps_what_was_typed(browser: httpx.Client) -> None:
    typed = {"name": "<mine>", "problem": ["softmax", "gelu"], "target": "cpu", "switch": "alignment", "seeds": "1000"}
    refused = browser.post("/ui/experiments", data=typed)
    assert refused.status_code == 422
    assert "an experiment has 1 to 100 seeds" in refused.text
    kept = ('value="&lt;mine&gt;"', "<option selected>softmax<", "<option selected>gelu<", "<option selected>cpu<")
    for part in (*kept, '<option value="alignment" selected>', 'value="1000"', '<details id="make" open>'):
        assert part in refused.text, part
    assert "refresh" not in refused.text
    Page(refused.text)


def test_a_refused_directive_keeps_what_was_typed(world: World, browser: httpx.Client, team: Team) -> None:
    with world.database.transaction() as session:
        job = evolved(session, team.id, JobState.EVOLVING).id
    for action, typed in (
        ("inject", {"techniques": "not a technique!, <simd>", "rationale": "wide & loads"}),
        ("ban", {"technique": "no_such_technique"}),
    ):
        refused = browser.post(f"/ui/jobs/{job}/{action}", data=typed)
        assert refused.status_code in (404, 422), refused.text
        assert 'role="alert"' in refused.text
        assert '<details id="steer" open>' in refused.text
        for value in typed.values():
            assert f'value="{html.escape(value)}"' in refused.text
        Page(refused.text)


def test_a_job_like_another_is_the_same_job(browser: httpx.Client, team: Team, stranger: Team) -> None:
    method = {"name": "sce", "population": 6, "generations": 3}
    budgets = {"candidates": 33, "wall_seconds": 450.0, "cost_usd": 1.25, "gpu_seconds": 77.5}
    asked = {"method": method, "budgets": budgets, "labels": {"a": "b", "c": "d"}, "priority": "high", "seed": 7}
    problems = (
        {"id": "softmax_bfloat16", "policy": "half"},
        {"id": "softmax", "policy": "tf32", "name": "mine"},
        {"id": "softmax", "size": "full"},
        {"name": "double", "source": SOURCE},
    )
    for problem in problems:
        job = team.submit(**asked, problem=problem)
        text = shown(browser, f"/ui/submit?like={job['id']}")
        assert f"like={job['id']}" in shown(browser, f"/ui/jobs/{job['id']}")
        assert "no fields for" not in text
        made = browser.post(f"/ui/submit?like={job['id']}", data={**Filled(text).fields, "action": "submit"})
        assert made.status_code == 303, made.text
        like = team.http.get(f"/v1/jobs/{made.headers['Location'].rsplit('/', 1)[-1]}").json()
        same = ("problem", "target", "agents", "method", "budgets", "labels", "priority", "seed", "learning")
        assert {part: like[part] for part in same} == {part: job[part] for part in same}
    other = team.submit(method={"name": "sce", "elites": 1}, labels={"a": "b,c"})["id"]
    assert "the job's method, labels:" in shown(browser, f"/ui/submit?like={other}")
    shown(browser, f"/ui/submit?like={stranger.submit()['id']}", 404)


def test_a_candidate_shows_its_workloads(world: World, browser: httpx.Client, team: Team) -> None:
    one = audited(1.5)
    parts = (
        WorkloadResult(
            workload=Workload(name="<one>", values={"ROWS": 1}, weight=3),
            verdict=one.verdict,
            laws=one.laws,
            comparisons=one.comparisons,
        ),
        WorkloadResult(workload=Workload(name="many", values={"ROWS": 64, "DTYPE": "float16"})),
    )
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        story.candidate(story.generation(0), one.model_copy(update={"workloads": parts}), best=True)
        page = f"/ui/jobs/{story.end(JobState.SUCCEEDED).id}/candidates/0"
    text = shown(browser, page)
    for part in ("&lt;one&gt;", "ROWS 1</td>", "ROWS 64, DTYPE float16", "not judged", "1.50x"):
        assert part in text, part


def test_a_candidate_shows_which_models_wrote_it(world: World, browser: httpx.Client, team: Team) -> None:
    with world.database.transaction() as session:
        job = evolved(session, team.id)
        call = session.get_one(LlmCall, with_call(session, job))
        call.model = "openai/<b>writer</b>"
        written = session.scalars(select(Candidate.id).where(Candidate.job_id == job.id, Candidate.ordinal == 4)).one()
        session.get_one(Step, call.step_id).candidate_id = written
        page = f"/ui/jobs/{job.id}/candidates/4"
    text = shown(browser, page)
    for part in ("Model calls", "translate", "openai/&lt;b&gt;writer", "answered", "--candidate 4", "Time line"):
        assert part in text, part


def test_empty_and_failed_jobs_have_a_page(world: World, browser: httpx.Client, team: Team) -> None:
    assert "No jobs" in shown(browser, "/ui")
    text = shown(browser, f"/ui/jobs/{team.submit()['id']}")
    assert "No kernel counts yet" in text
    assert 'http-equiv="refresh"' in text
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        story.candidate(story.generation(0), rejected(FailureKind.COMPILE_ERROR))
        failed = story.end(JobState.FAILED, reason="no_valid_kernel", message="none was correct").id
    text = shown(browser, f"/ui/jobs/{failed}")
    assert "none was correct" in text
    assert 'http-equiv="refresh"' not in text


def test_a_jobs_times_are_those_that_its_speedup_compares(world: World, browser: httpx.Client, team: Team) -> None:
    slow = Interval(low=650.0, median=660.0, high=670.0)
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        story.job.preparation = preparation().model_copy(update={"baseline_us": slow})
        story.candidate(story.generation(0), audited(2.0), best=True)
        job = story.job.id
    text = shown(browser, f"/ui/jobs/{job}")
    assert "PyTorch 20 us, measured beside it" in text
    assert "PyTorch eager, 20 us" in text
    assert "candidate 0: 2.00x, 10 us against 20 us" in text
    assert "660 us" not in text
    best = team.http.get(f"/v1/jobs/{job}").json()["best"]
    assert best["baseline_us"]["median"] / best["kernel_us"]["median"] == best["speedup"]["median"]


def test_a_job_that_was_not_confirmed_says_why(world: World, browser: httpx.Client, team: Team) -> None:
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        story.candidate(story.generation(0), audited(2.0), best=True)
        open_job = story.job.id
    text = shown(browser, f"/ui/jobs/{open_job}")
    assert "measured when the best is confirmed" in text
    assert "What to do next" not in text, "the job goes on by itself"
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        story.candidate(story.generation(0), audited(2.0), best=True)
        message = "the best kernel is audited, but could not be measured again: this machine is too busy"
        job = story.end(JobState.SUCCEEDED, reason="not_confirmed", message=message).id
    text = shown(browser, f"/ui/jobs/{job}")
    assert f'<section class="card warn"><p>{message}</p></section>' in text
    assert "<h2>What to do next</h2><ul><li>Run the job again" in text
    assert "card good" not in text
    assert '<div class="note">not measured</div>' in text


def test_a_job_shows_what_its_preparation_noted(world: World, browser: httpx.Client, team: Team) -> None:
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        notes = ("law signed left out: not <finite>", "forward makes numbers of input values (line 9)")
        story.job.preparation = preparation().model_copy(update={"notes": notes})
        noted, quiet = story.job.id, Story(session, team.id).prepare().job.id
    text = shown(browser, f"/ui/jobs/{noted}")
    assert "<li>input distribution signed left out: not &lt;finite&gt;</li>" in text
    assert "<li>forward makes numbers of input values (line 9)</li>" in text
    assert 'id="notes"' not in shown(browser, f"/ui/jobs/{quiet}")


def test_what_others_wrote_is_text(world: World, browser: httpx.Client, team: Team) -> None:
    evil = "<script>alert(1)</script>\"' onload=x"
    team.submit(problem={"name": evil, "source": SOURCE}, labels={"<b>": evil})
    assert "&lt;script&gt;" in shown(browser, "/ui")
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        made = story.candidate(story.generation(0), audited(1.5), best=True)
        made.reason = evil
        job = story.job.id
    assert "&lt;script&gt;" in shown(browser, f"/ui/jobs/{job}")
    shown(browser, f"/ui/jobs/{job}/candidates/0")


def test_a_strangers_things_do_not_exist(world: World, stranger: Team, job: str) -> None:
    browser = visit(world, stranger.key)
    assert "No jobs" in shown(browser, "/ui")
    for path in (f"/ui/jobs/{job}", f"/ui/jobs/{job}/candidates/0", f"/ui/compare?first={job}:0&second={job}:1"):
        shown(browser, path, 404)
    shown(browser, "/ui/jobs/nothing", 404)


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("http://cupilot.example.org", 401),
        ("http://10.0.0.7:8080", 401),
        ("https://cupilot.example.org", 303),
        ("http://localhost:8080", 303),
        ("http://[::1]:8080", 303),
    ],
)
def test_signing_in_says_where_the_browser_would_drop_the_key(
    world: World, team: Team, address: str, status: int
) -> None:
    url = SecretStr(world.database.engine.url.render_as_string(hide_password=False))
    config = Settings(database_url=url).model_copy(update={"environment": "production"})
    headers = {"Origin": address, "Host": address.partition("://")[2]}
    with live(create_app(config)) as service:
        answer = httpx.post(f"{service}/ui/login", data={"key": team.key}, headers=headers, timeout=60)
    assert answer.status_code == status
    if status == 303:
        assert "Secure" in answer.headers["Set-Cookie"]
    else:
        assert "open it over https" in answer.text
        assert "Set-Cookie" not in answer.headers


def test_without_a_valid_key_there_is_only_the_door(world: World, team: Team, job: str) -> None:
    nobody = visit(world, None)
    for path in ("/ui", f"/ui/jobs/{job}", "/ui/team", "/ui/audit", "/ui/operations"):
        answer = nobody.get(path)
        assert (answer.status_code, answer.headers["Location"]) == (303, "/ui/login")
    assert "Sign in" in shown(nobody, "/ui/login")
    assert nobody.post("/ui/login", data={"key": "cpk_wrong"}).status_code == 401
    rest = f"1234567_{'a' * 43}"
    assert nobody.post("/ui/login", data={"key": f"cpk_\0{rest}"}).status_code == 401
    escaped = nobody.get("/ui", headers={"Cookie": f'cupilot_key="cpk_\\000{rest}"'})
    assert (escaped.status_code, escaped.headers["Location"]) == (303, "/ui/login")
    assert nobody.post("/ui/login", content=b"key=" + b"x" * 2_000).status_code == 422
    browser = visit(world, team.key)
    assert browser.post("/ui/logout").status_code == 303
    assert COOKIE not in browser.cookies


def test_a_viewer_looks_and_only_an_admin_sees_the_audit_log(world: World, team: Team) -> None:
    def key(role: Role, scope: Scope) -> str:
        with world.database.transaction() as session:
            row = session.get_one(TeamRow, team.id)
            user = ensure_user(session, f"user-{uuid.uuid4().hex[:8]}")
            set_role(session, row, user, role)
            return create_api_key(session, row, "test", user=user, scope=scope)[1]

    viewer, admin = (visit(world, key(*item)) for item in ((Role.VIEWER, Scope.READ), (Role.ADMIN, Scope.ADMIN)))
    assert "/ui/audit" not in shown(viewer, "/ui")
    shown(viewer, "/ui/audit", 403)
    assert "GET /ui/audit" in shown(admin, "/ui/audit")
    assert "403 refused" in shown(admin, "/ui/audit")


@pytest.fixture
def olga(world: World) -> httpx.Client:
    """A cluster admin of another team."""
    with world.database.transaction() as session:
        user = ensure_user(session, "olga")
        user.cluster_admin = True
        secret = create_api_key(session, ensure_team(session, "operators"), "test", user=user)[1]
    return visit(world, secret)


def name_of(world: World, team: Team) -> str:
    with world.database.transaction() as session:
        return session.get_one(TeamRow, team.id).name


def quarantined(world: World, team: Team, why: str = "faster than the floor") -> str:
    """A job of the team whose only kernel is in quarantine."""
    failure = Failure(kind=FailureKind.BELOW_FLOOR, message=why)
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        judged = audited(90.0).model_copy(update={"verdict": Verdict.QUARANTINED, "failure": failure})
        story.candidate(story.generation(0), judged)
        return str(story.end(JobState.FAILED, reason="no_valid_kernel").id)


def test_operations_are_for_cluster_admins(world: World, team: Team, olga: httpx.Client) -> None:
    def key(role: Role, *, cluster_admin: bool = False, scope: Scope = Scope.ADMIN) -> str:
        with world.database.transaction() as session:
            row = session.get_one(TeamRow, team.id)
            user = ensure_user(session, f"user-{uuid.uuid4().hex[:8]}")
            user.cluster_admin = cluster_admin
            set_role(session, row, user, role)
            return create_api_key(session, row, "test", user=user, scope=scope)[1]

    lesser = [key(role) for role in Role] + [key(Role.ADMIN, cluster_admin=True, scope=Scope.READ)]
    for secret in lesser:
        browser = visit(world, secret)
        assert "/ui/operations" not in shown(browser, "/ui")
        shown(browser, "/ui/operations", 403)
        shown(browser, "/ui?team=operators", 404)
    assert "/ui/operations" in shown(olga, "/ui")
    assert "Operations" in shown(olga, "/ui/operations")


def test_operations_show_what_waits_for_whom_and_what_to_type(world: World, team: Team, olga: httpx.Client) -> None:
    with world.database.transaction() as session:
        register_worker(session, "gpu-7", WorkerKind.GPU, queues=["gpu.cpu"], slots=1, version="1", device=DEVICE)
        begin_drain(session, "gpu-7", "new fan")
        begin_drain(session, SERVICE, "upgrade")
    waiting, odd, name = team.submit(priority="high")["id"], quarantined(world, team), name_of(world, team)
    text = shown(olga, "/ui/operations")
    for part in ("drained: new fan", "the service", "upgrade", f"?team={name}", "high", "faster than the floor"):
        assert part in text, part
    for command in ("workers drain", "workers resume", "cupilot change JOB", f"cupilot remeasure {odd} --candidate 0"):
        assert command in text, command
    # What the page links is there, though it is another team's.
    assert "// candidate 0" in shown(olga, f"/ui/jobs/{odd}/candidates/0")
    assert f"/ui/jobs/{waiting}" in shown(olga, f"/ui?team={name}&state=queued")
    assert "priority high" in shown(olga, f"/ui/jobs/{waiting}")
    with world.database.transaction() as session:
        end_drain(session, "gpu-7")
        end_drain(session, SERVICE)


def test_a_kernel_leaves_the_list_once_it_was_judged_anew(world: World, team: Team, olga: httpx.Client) -> None:
    odd = quarantined(world, team)
    assert odd in shown(olga, "/ui/operations")
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()  # candidate 0 has the same kernel everywhere
        story.candidate(story.generation(0), audited(1.5), best=True)
        story.end(JobState.SUCCEEDED)
    assert odd not in shown(olga, "/ui/operations")


def test_operations_with_nothing_to_do_say_so(monkeypatch: pytest.MonkeyPatch, olga: httpx.Client) -> None:
    for name in ("backlogs", "quarantine", "drains"):
        monkeypatch.setattr(f"api.pages.overviews.{name}", lambda *_: [])
    text = shown(olga, "/ui/operations")
    for part in ("Nothing is drained.", "Nothing waits or runs.", "No kernel waits for a person."):
        assert part in text, part


def test_what_others_wrote_is_text_in_operations_too(world: World, team: Team, olga: httpx.Client) -> None:
    evil = "<script>alert(1)</script>\"' onload=x"
    with world.database.transaction() as session:
        register_worker(session, evil, WorkerKind.AGENT, queues=["agents"], slots=1, version=evil, device=None)
        begin_drain(session, evil, evil)
        session.get_one(TeamRow, team.id).name = evil
    team.submit()
    quarantined(world, team, evil)
    text = shown(olga, "/ui/operations")
    assert text.count("&lt;script&gt;") >= 6
    assert "%3Cscript%3E" in text
    shown(olga, f"/ui?{httpx.QueryParams(team=evil)}")
    with world.database.transaction() as session:
        end_drain(session, evil)


def test_an_admin_decides_on_the_team_page_who_is_in_the_team(world: World, team: Team, browser: httpx.Client) -> None:
    name = team.http.get("/v1/me").json()["team"]
    page = browser.post("/ui/team/invitations", data={"role": "viewer", "expires_days": "3"})
    invitation = re.search(r"cpi_[\w-]{20,}", page.text)
    assert invitation
    Page(page.text)
    with world.database.transaction() as session:
        guest = ensure_user(session, f"guest-{uuid.uuid4()}")
        home = ensure_team(session, f"team-{uuid.uuid4()}")
        set_role(session, home, guest, Role.MEMBER)
        guest_name, (_, secret) = guest.name, create_api_key(session, home, "test", user=guest, scope=Scope.SUBMIT)
    joined = world.http(secret).post("/v1/invitations/accept", json={"secret": invitation[0]}).json()
    assert (joined["team"], joined["role"]) == (name, "viewer")
    assert guest_name in shown(browser, "/ui/team")
    assert browser.post("/ui/team/members", data={"user": guest_name, "role": "member"}).status_code == 303
    members = {item["name"]: item["role"] for item in team.http.get(f"/v1/teams/{name}/members").json()["items"]}
    assert members[guest_name] == "member"
    assert browser.post("/ui/team/accounts", data={"name": "nightly", "role": "member"}).status_code == 303
    for gone in (guest_name, "nightly"):
        assert browser.post("/ui/team/members", data={"user": gone, "action": "remove"}).status_code == 303
        assert browser.post("/ui/team/members", data={"user": gone, "action": "remove"}).status_code == 404
    assert browser.post("/ui/team/members", data={"user": "", "action": "remove"}).status_code == 422
    assert browser.post("/ui/team/invitations", data={"role": "king"}).status_code == 422


def test_keys_are_made_shown_once_and_revoked_on_the_team_page(world: World, browser: httpx.Client) -> None:
    page = browser.post("/ui/team/keys", data={"name": "laptop", "scope": "read", "expires_days": "5"})
    secret = re.search(r"cpk_\w{8}_[\w-]{32,}", page.text)
    assert secret
    reader = visit(world, secret[0])
    assert "This key only reads" in shown(reader, "/ui/team")
    assert secret[0] not in shown(browser, "/ui/team")
    for path, data in (
        ("keys", {"name": "more", "scope": "admin"}),
        ("keys/revoke", {"key": secret[0][:12]}),
        ("members", {"user": "anybody", "role": "admin"}),
        ("invitations", {}),
        ("accounts", {"name": "nightly"}),
        ("quota", {"weight": "5"}),
    ):
        assert reader.post(f"/ui/team/{path}", data=data).status_code == 403, path
        foreign = browser.post(f"/ui/team/{path}", data=data, headers={"Sec-Fetch-Site": "cross-site"})
        assert foreign.status_code == 403, path
    assert browser.post("/ui/team/keys/revoke", data={"key": secret[0][:12]}).status_code == 303
    assert reader.get("/ui/team").status_code == 303


def test_only_cluster_admins_set_quotas_on_the_team_page(world: World, browser: httpx.Client) -> None:
    assert "Models, USD" not in shown(browser, "/ui/team")
    assert browser.post("/ui/team/quota", data={"weight": "5"}).status_code == 403
    admin = world.cluster_admin()
    ruler = visit(world, admin.key)
    assert "Models, USD" in shown(ruler, "/ui/team")
    limits = {"weight": "2.5", "max_running_jobs": "3", "gpu_seconds": "", "model_usd": "12.5", "period": "week"}
    assert ruler.post("/ui/team/quota", data=limits).status_code == 303
    quota = admin.http.get("/v1/quota").json()
    assert quota["weight"] == 2.5
    assert quota["quota"] == {
        "max_running_jobs": 3,
        "max_queued_jobs": None,
        "gpu_seconds": None,
        "model_usd": 12.5,
        "period": "week",
    }
    assert ruler.post("/ui/team/quota", data={"max_running_jobs": "-1"}).status_code == 422
