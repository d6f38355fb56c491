"""Parse every PromQL expression of the alert rules, the dashboard and the page on metrics.

Exits with 1 and says which are wrong.

With a parser after Prometheus' own grammar, from its wheel: uv run --no-project --with promql-parser==0.12.0
--with pyyaml python deploy/helm/promql.py
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import promql_parser
import yaml

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy/helm/cupilot/files"
VARIABLE = re.compile(r"\$__?\w+")
"""Of Grafana, which puts a duration in its place."""


def expressions() -> list[tuple[str, str]]:
    """Return where each expression stands, and the expression."""
    rules = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    places = [(f"alert {rule['alert']}", rule["expr"]) for group in rules for rule in group["rules"]]
    for panel in json.loads((FILES / "dashboard.json").read_text())["panels"]:
        places += [(f"panel {panel['title']}", target["expr"]) for target in panel.get("targets", [])]
    block = re.search(r"```promql\n(.*?)```", (ROOT / "docs/metrics.md").read_text(), re.DOTALL)
    assert block
    return places + [("docs/metrics.md", line) for line in block[1].splitlines() if line.strip()]


def main() -> int:
    """Parse them all."""
    asked, wrong = expressions(), 0
    for where, expression in asked:
        try:
            promql_parser.parse(VARIABLE.sub("5m", expression.partition("#")[0].strip()))
        except ValueError as error:
            wrong += 1
            sys.stderr.write(f"{where}: {error}\n  {expression}\n")
    sys.stdout.write(f"{len(asked)} expressions of PromQL, {wrong} wrong\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
