"""Render the chart with Helm's own engine into a folder: ``render.py FOLDER``.

Lints it, holds two sets of values (the defaults, and every part switched on) against the schema, and writes what each
renders to, with a digest of the chart so that a reader sees when it is older than the chart.

Needs the package helm-python-sdk, which carries Helm's library as a wheel of 75 MB: kept out of this project's
environment. ``uv run --no-project --with helm-python-sdk==0.2.2 --with pyyaml deploy/helm/render.py build/helm``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import helm_python as helm
import yaml
from digest import digest

INFO = 1
HERE = Path(__file__).parent
VALUES = {"default": {}, "everything": yaml.safe_load((HERE / "examples/everything.yaml").read_text())}


def main(folder: Path) -> int:
    """Lint, check the values, render; the exit status."""
    print(f"Helm's library {helm.helm_sdk_version()}")
    messages = helm.lint(str(HERE / "cupilot"), strict=True)["messages"]
    problems = [message for message in messages if message["severity"] > INFO]
    print("lint, strict:", problems or "no message")
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in VALUES.items():
        with helm.Chart.load(str(HERE / "cupilot")) as chart:
            chart.validate_schema(values)
            manifests = chart.render(values, name="cupilot", namespace="cupilot").values()
        objects = [manifest for text in manifests for manifest in yaml.safe_load_all(text) if manifest]
        (folder / f"{name}.yaml").write_text(yaml.safe_dump_all(objects, sort_keys=False))
        print(f"{name}: {len(objects)} objects in {folder / name}.yaml")
    (folder / "DIGEST").write_text(digest() + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
