"""Check the pinned dependencies without a network: ``python deploy/dependencies.py [--sbom FILE]``.

Exits 1 where something that is installed for cuPilot is not pinned, is of another version than its pin, was published
to do harm, or has a licence that nobody has allowed here. Known holes are ``deploy/audit.sh``'s business, which asks
the advisory database; whether a file is the one that its author published is the package index' and the installer's.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
EVERYTHING = "cupilot[dev]"
"""The extra that holds all others."""

HARMFUL = {
    ("litellm", "1.82.7"): "steals credentials (BerriAI/litellm 24512)",
    ("litellm", "1.82.8"): "steals credentials when any Python starts (BerriAI/litellm 24518)",
}
ALLOWED = re.compile(
    r"\b(MIT|BSD|0BSD|Apache|ISC|PSF|Python Software Foundation|CNRI-Python|MPL|Mozilla Public License|LGPL|Zlib|CC0"
    r"|BSL-1\.0|NVIDIA)",
    re.IGNORECASE,
)
"""Licences under which a package may be installed beside ours, unchanged."""
FORBIDDEN = re.compile(r"\b(AGPL|GPL|Affero)", re.IGNORECASE)
"""Those that reach further, whatever stands beside them."""
TOLD = dict.fromkeys(
    ("nvidia-cuda-cccl", "nvidia-cuda-crt", "nvidia-cuda-nvrtc"), "NVIDIA CUDA Toolkit End User License Agreement"
)
"""Licences of packages whose metadata do not name theirs, as their files have them."""
OURS = frozenset({"cupilot", "pip"})
"""Packages that are no pinned dependency: the project, and what installs it."""

Pins = Mapping[str, str]


def read_pins(text: str) -> dict[str, str]:
    """Read versions by name; raise ValueError for a line that is no exact pin, or a second one of a name."""
    pins: dict[str, str] = {}
    for line in text.splitlines():
        pin = line.partition("#")[0].strip()
        if not pin:
            continue
        name, equal, version = pin.partition("==")
        if not equal or not re.fullmatch(r"[\w.+!-]+", version) or canonicalize_name(name) in pins:
            raise ValueError(f"constraints.txt: {pin!r} is no exact pin, or the second of its name")
        pins[canonicalize_name(name)] = version
    return pins


def installed_for(whole: str) -> dict[str, Distribution]:
    """Return the installed distributions that a requirement needs, and theirs.

    Those that this platform does not need are not among them.
    """
    installed: dict[str, Distribution] = {}
    pending = [Requirement(whole)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while pending:
        wanted = pending.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        installed[name] = distribution(name)
        needs = (Requirement(text) for text in installed[name].requires or ())
        pending += [
            requirement
            for requirement in needs
            if _needed(requirement, extras) and not (name == "torch" and _exact(requirement))
        ]
    return installed


def _needed(requirement: Requirement, extras: frozenset[str]) -> bool:
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def _exact(requirement: Requirement) -> bool:
    """Return whether a requirement is exact.

    Of torch, that is a library of its CUDA build, which differs by machine.
    """
    return [clause.operator for clause in requirement.specifier] == ["=="]


def licence_of(package: Distribution) -> str:
    """Return the licence that the package's metadata name, most reliable field first; empty where they name none."""
    metadata = package.metadata
    kinds = [text.split("::")[-1].strip() for text in metadata.get_all("Classifier") or () if "License ::" in text]
    licence = TOLD.get(canonicalize_name(package.name)) or metadata.get("License-Expression") or ", ".join(kinds)
    return licence or (metadata.get("License") or "")[:100].strip()


def complaints(pins: Pins, installed: Mapping[str, Distribution]) -> Iterator[str]:
    """Yield a sentence for each fault."""
    for (name, version), why in HARMFUL.items():
        if pins.get(name) == version:
            yield f"{name} {version} is pinned: it {why}"
    for name, package in sorted(installed.items()):
        if name in OURS:
            continue
        version = package.version.partition("+")[0]  # a build's mark: torch for the machine's own backend
        if name not in pins:
            yield f"{name} {version} is needed and not pinned in constraints.txt"
        elif pins[name] != version:
            yield f"{name} {version} is installed, and {pins[name]} is pinned"
        licence = licence_of(package)
        if not licence:
            yield f"{name} {version} names no licence: look it up and add it to TOLD"
        elif not ALLOWED.search(licence) or FORBIDDEN.search(licence):
            yield f"{name} {version} has a licence that nobody has allowed: {licence}"


def bill(installed: Mapping[str, Distribution]) -> dict[str, object]:
    """Return the installed packages as a CycloneDX 1.6 document (https://cyclonedx.org/docs/1.6/json)."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": [
            {
                "type": "library",
                "name": name,
                "version": package.version,
                "purl": f"pkg:pypi/{name}@{package.version.replace('+', '%2B')}",
                "licenses": [{"license": {"name": licence_of(package)}}],
            }
            for name, package in sorted(installed.items())
        ],
    }


def main(arguments: list[str] | None = None) -> int:
    """Check the dependencies and return 0 where nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sbom", type=Path, metavar="FILE", help="also write what is installed, as CycloneDX JSON")
    options = parser.parse_args(arguments)
    try:
        pins = read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
        installed = installed_for(EVERYTHING)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except PackageNotFoundError as error:
        sys.stderr.write(f"{error.name} is not installed here: make install\n")
        return 1
    wrong = list(complaints(pins, installed))
    sys.stderr.write("".join(f"{sentence}\n" for sentence in wrong))
    if options.sbom:
        options.sbom.parent.mkdir(parents=True, exist_ok=True)
        options.sbom.write_text(json.dumps(bill(installed), indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
