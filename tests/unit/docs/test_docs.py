"""The documentation is true: links resolve, and every setting, command and route it names exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks import readme
from cupilot.domain.errors import CupilotError
from cupilot.domain.evolution.methods import CONFIGS
from cupilot.settings import Settings
from cupilot.storage.db import engine

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "benchmarks/README.md"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", BENCHMARKS, *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
ROOMS = ("cupilot", "agents", "gpu_worker", "workers", "api", "migrations")
LINK = re.compile(r"(?<!\!)\[[^\]]+\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Heading anchors as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_resolve(page: Path) -> None:
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for match in LINK.finditer(prose):
        link = match[1] or match[2]
        if re.match(r"https?://|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(f"{link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            broken.append(f"{link}: no such heading")
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_pages_read_like_pages(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# "), "a page opens with its title"
    assert text.endswith("\n")
    assert not re.search(r"TODO|FIXME|TBD|lorem", text)


def test_every_page_is_reachable_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        for match in LINK.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
            link = (match[1] or match[2]).partition("#")[0]
            if link and "://" not in link:
                todo.append((page.parent / link).resolve())
    assert not [page_id(page) for page in PAGES if page not in seen]


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_documented_with_its_default(name: str) -> None:
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `CUPILOT_{name.upper()}` \| ([^|]*) \| [^|]{{10,}} \|$", page, re.MULTILINE)
    assert row, f"docs/configuration.md has no row for CUPILOT_{name.upper()}"
    default = Settings.model_fields[name].get_default(call_default_factory=True)
    shown = default.get_secret_value() if hasattr(default, "get_secret_value") else default
    expected = "none" if shown is None else f"`{shown}`"
    assert row[1].strip() == expected, f"the default of CUPILOT_{name.upper()} is {expected}"


def test_variables_that_the_code_reads_are_those_that_the_pages_name() -> None:
    sources = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    read = set(re.findall(r'"(CUPILOT_[A-Z_]*[A-Z])"', code)) | {
        f"CUPILOT_{name.upper()}" for name in Settings.model_fields
    }
    configuration = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(CUPILOT_\w+)` \|", configuration, re.MULTILINE))
    assert read == documented
    for page in PAGES:
        named = set(re.findall(r"\bCUPILOT_[A-Z_]*[A-Z]", page.read_text(encoding="utf-8")))
        assert named <= documented, f"{page_id(page)} names unknown variables"


ANSWERED = re.compile(r"api\.|cupilot\.(?!embedded|client|endpoint)")
"""Modules whose errors can be an answer of the API."""
NEVER_ANSWERED = {
    *("forbidden", "cost_budget", "stale", "illegal_transition"),  # bases, and what is caught on the way
    *("wrong_settings", "unsafe_production", "card_taken"),  # end a process, or keep it from serving
    *("invalid_batch_file", "nothing_to_export", "invalid_flashinfer_bench"),  # command lines say them
    *("old_schema", "no_scheduler", "no_worker", "webhooks_behind"),  # /readyz says them in its own words
}


def subclasses(error: type[CupilotError]) -> Iterator[type[CupilotError]]:
    for subclass in error.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


@cache
def openapi_routes() -> dict[str, set[str]]:
    """Methods by path, as the service itself tells them."""
    create_app = pytest.importorskip("api.app").create_app
    paths = create_app(Settings()).openapi()["paths"]
    return {path: {method.upper() for method in methods} for path, methods in paths.items()}


def test_every_route_is_documented_and_every_documented_route_exists() -> None:
    text = (ROOT / "docs/rest.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([A-Z]+ /\S*)` \|", text, re.MULTILINE))
    assert documented == {f"{method} {path}" for path, methods in openapi_routes().items() for method in methods}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_routes_named_in_prose_and_examples_exist(page: Path) -> None:
    known = {re.sub(r"\{\w+\}|\$\w+", "*", path) for path in openapi_routes()}
    named = re.findall(r"(?<![\w.])(/v1/[\w/{}$]+|/healthz|/readyz)", page.read_text(encoding="utf-8"))
    unknown = {path for path in named if re.sub(r"\{\w+\}|\$\w+", "*", path.rstrip("/")) not in known}
    assert not unknown


def test_error_codes_of_the_rest_page_are_those_of_the_code() -> None:
    """With their statuses; those that the framework raises have no class of ours, but a name in the API's code."""
    text = (ROOT / "docs/rest.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (\d{3}) \|", text, re.MULTILINE)
    listed = [(code, int(status)) for codes, status in rows for code in re.findall(r"`(\w+)`", codes)]
    pytest.importorskip("api.app")
    import_module("cupilot.domain.flashinfer_bench.schema")  # known whichever tests ran before
    ours = {error.code: error.status for error in subclasses(CupilotError) if ANSWERED.match(error.__module__)}
    for code in NEVER_ANSWERED:
        ours.pop(code)
    assert len(listed) == len(dict(listed)), "a code has one row"
    assert dict(listed).items() >= ours.items()
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "api").rglob("*.py"))
    assert not [code for code in dict(listed).keys() - ours.keys() if f'"{code}"' not in source]


def test_reasons_of_the_rest_page_are_those_of_the_code() -> None:
    text = (ROOT / "docs/rest.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (?:`(?:failed|succeeded|cancelled|budget_exhausted)`|open) \| (`[^|]+`) \|", text, re.MULTILINE
    )
    listed = {reason for row in rows for reason in re.findall(r"`(\w+)`", row)}
    assert len(listed) >= 10
    source = "\n".join(path.read_text(encoding="utf-8") for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    assert not [reason for reason in listed if f'"{reason}"' not in source]


@pytest.mark.parametrize("method", CONFIGS)
def test_a_methods_table_has_every_field_with_its_default(method: str) -> None:
    text = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## `{method}`\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `([\w.]+)` \|", section, re.MULTILINE))
    fields = CONFIGS[method]().model_dump(mode="json")
    assert rows == {name: str(value).lower() for name, value in fields.items() if name != "name"}


@cache
def commands() -> dict[str, set[str]]:
    """Options by command, as the command line itself has them."""
    app = pytest.importorskip("cupilot.cli.app").app
    group = typer.main.get_command(app)
    return {name: options(command) for name, command in group.commands.items()}  # type: ignore[attr-defined]


def options(command: Any) -> set[str]:
    """Options of a command, or of all commands of a group together."""
    found = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    return found.union(*(options(inner) for inner in getattr(command, "commands", {}).values()))


def test_every_command_and_option_is_documented() -> None:
    text = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    known = commands()
    assert set(re.findall(r"^\| `cupilot (\w+)", text, re.MULTILINE)) == set(known)
    everywhere = {"--json", "--server", "--data"}
    missing = {option for name in ("evolve", "submit") for option in known[name]} - everywhere
    assert not [option for option in sorted(missing) if f"`{option}" not in text]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_in_pages_exist_with_their_options(page: Path) -> None:
    known = commands()
    for name, rest in re.findall(r"(?<![.\w/])cupilot ([a-z]+)\b([^\n`#|]*)", "\n".join(code(page))):
        assert name in known, f"no command {name}"
        options = set(re.findall(r"(?<!\w)(--[a-z][\w-]*)", rest))
        assert options <= known[name] | {"--help"}, f"cupilot {name} has no {sorted(options - known[name])}"


TYPED = re.compile(r"(?:^|\$\()cupilot ([^#)\n]*)", re.MULTILINE)


def test_the_tours_commands_are_typed_as_they_must_be() -> None:
    """Every subcommand, argument and option, as the command line itself would read them."""
    text = (ROOT / "docs/a-day.md").read_text(encoding="utf-8")
    typed = [line for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S) for line in TYPED.findall(block)]
    assert len(typed) > 30
    whole: Any = typer.main.get_command(pytest.importorskip("cupilot.cli.app").app)
    for line in typed:
        command, words = whole, shlex.split(line)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context("cupilot", words)


def code(page: Path) -> list[str]:
    """Everything in a page that is set as code."""
    text = page.read_text(encoding="utf-8")
    return [*FENCE.findall(text), *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_targets_and_modules_in_pages_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = "\n".join(code(page))
    for target in re.findall(r"\bmake ([a-z-]+)", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    for module in re.findall(r"python -m ([\w.]+)", text):
        if module.partition(".")[0] in ROOMS:
            path = ROOT / module.replace(".", "/")
            assert (path / "__main__.py").exists() or path.with_suffix(".py").exists(), f"python -m {module}"


def test_what_is_kept_of_benchmarks_is_listed_with_the_scripts_that_exist() -> None:
    text = BENCHMARKS.read_text(encoding="utf-8")
    rows = [row.split(" | ") for row in re.findall(r"^\| (`.*) \|$", text, re.MULTILINE)]
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    assert listed == {path.name for path in (BENCHMARKS.parent / "results").iterdir()}
    scripts = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert not [name for name in scripts if not (BENCHMARKS.parent / f"{name}.py").exists()]


def test_the_results_in_the_readme_are_the_recorded_ones() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == readme.updated(text), "run python -m benchmarks.readme --write"
    assert readme.section().count("\n|") >= 5
    assert readme.PAGE.read_text(encoding="utf-8") == readme.page()


def test_the_role_behind_pgbouncer_has_the_limits_that_connections_ask_for() -> None:
    page = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^ALTER ROLE cupilot SET (\w+) = '(.+)';$", page, re.MULTILINE))
    milliseconds = {
        "statement_timeout": engine.STATEMENT_TIMEOUT_MS,
        "lock_timeout": engine.LOCK_TIMEOUT_MS,
        "idle_in_transaction_session_timeout": engine.IDLE_IN_TRANSACTION_TIMEOUT_MS,
    }
    assert told == {name: f"{limit // 1_000}s" for name, limit in milliseconds.items()} | {"timezone": "UTC"}
