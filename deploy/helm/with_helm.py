"""Renders the chart with Helm's own engine and compares that with deploy/helm/rendered, object by object.

Needs the package helm-python-sdk, which carries Helm's library as a wheel of 75 MB: a separate environment's business,
not this project's. ``uv run --no-project --with helm-python-sdk==0.2.2 --with pyyaml deploy/helm/with_helm.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

INFO = 1
HERE = Path(__file__).parent
VALUES = {"default": {}, "everything": yaml.safe_load((HERE / "examples/everything.yaml").read_text())}


def main() -> int:
    """Lint, check the values against the schema, render, compare; the exit status."""
    print(f"Helm's library {helm.helm_sdk_version()}")
    wrong = [one for one in helm.lint(str(HERE / "cupilot"), strict=True)["messages"] if one["severity"] > INFO]
    print("lint, strict:", wrong or "nothing to say")
    same = not wrong
    for name, values in VALUES.items():
        with helm.Chart.load(str(HERE / "cupilot")) as chart:
            chart.validate_schema(values)
            ours = _objects([(HERE / f"rendered/{name}.yaml").read_text()])
            theirs = _objects(chart.render(values, name="cupilot", namespace="cupilot").values())
        different = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        print(f"{name}: {len(theirs)} objects, {len(different)} differ from deploy/helm/rendered")
        for key in different:
            print("  ", *key, "" if key in theirs else "(not by Helm)", "" if key in ours else "(by Helm only)")
        same &= not different
    return 0 if same else 1


def _objects(texts: Any) -> dict[tuple[str, str], Any]:
    found = [one for text in texts for one in yaml.safe_load_all(text) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


if __name__ == "__main__":
    sys.exit(main())
