"""Make an experiment's request from a file and flags."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cupilot.cli.flags import invalid
from cupilot.cli.labels import parse_labels
from cupilot.cli.problems import resolve
from cupilot.domain import problems as builtin
from cupilot.domain.errors import InvalidInput
from cupilot.domain.problem import NumericsPolicy
from cupilot.schemas import ExperimentRequest, ProblemInput
from cupilot.schemas.experiments import MAX_SEEDS

_WORDS = {"on": True, "true": True, "off": False, "false": False}


def read(path: Path) -> dict[str, Any]:
    """Return a matrix file's fields: TOML, YAML or JSON by its suffix. Problems may be names or files beside it."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        data = _parsed(text, path.suffix.lower())
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}", where="MATRIX") from error
    except ValueError as error:  # of every parser, and of a file that is not UTF-8
        raise InvalidInput(f"{path} is not valid: {error}", where=str(path)) from error
    if not isinstance(data, dict):
        raise InvalidInput(f"{path} has no fields", hint="see cupilot experiment run --help", where=str(path))
    data["problems"] = [_problem(entry, path.parent) for entry in data.get("problems", [])]
    return data


def request(fields: Mapping[str, Any]) -> ExperimentRequest:
    """Return the request; InvalidInput names the first field that is wrong."""
    try:
        return ExperimentRequest.model_validate(fields)
    except ValidationError as error:
        raise invalid(error, request=ExperimentRequest) from error


def problem(reference: str) -> dict[str, Any]:
    """Return a problem named on the command line."""
    resolved: ProblemInput = resolve(reference, name=None, policy=NumericsPolicy.FP32, size=None)
    return resolved.model_dump(exclude_unset=True)


def changed(problem: Any, policy: NumericsPolicy | None, size: str | None) -> Any:
    """Return a problem of a request under the policy, and a built-in one in the size, where these are given."""
    if not isinstance(problem, dict):
        return problem
    sized = {"size": size} if size is not None and builtin.is_name(str(problem.get("id"))) else {}
    return problem | ({"policy": policy.value} if policy is not None else {}) | sized


def seeds(text: str) -> list[int]:
    """Read a list of seeds: ``3`` means 0, 1, 2; ``4,7`` means these two."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(
            f"{text!r} is not a list of seeds", hint="a count, e.g. 6, or a list, e.g. 1,2,3", where="--seeds"
        ) from None
    if "," in text:
        return numbers
    if not 0 < numbers[0] <= MAX_SEEDS:
        raise InvalidInput(f"an experiment has 1 to {MAX_SEEDS} seeds", where="--seeds")
    return list(range(numbers[0]))


def arm(text: str) -> dict[str, Any]:
    """Return ``name:field=value,field=value`` as an arm; ``agents`` is the arm's, everything else its method's."""
    name, _, rest = text.partition(":")
    method = dict(_assignment(part, "--arm") for part in rest.split(",") if part)
    agents = method.pop("agents", None)
    return {"name": name.strip(), "method": method} | ({"agents": agents} if agents else {})


def switch(text: str) -> tuple[str, list[Any]]:
    """Return ``field=value,value`` as a switch with its values."""
    name, values = _assignment(text, "--switch", parse=False)
    return name, [value_of(part) for part in values.split(",")]


def assignments(texts: list[str], where: str) -> dict[str, Any]:
    """Return ``field=value`` texts as fields."""
    return dict(_assignment(text, where) for text in texts)


def labels(texts: list[str] | None) -> dict[str, str]:
    """Return ``key=value`` texts as labels."""
    return parse_labels(texts)


def value_of(text: str) -> Any:
    """Read a value: ``on`` and ``off`` as truth values, numbers as numbers, all else as text."""
    if text.strip().lower() in _WORDS:
        return _WORDS[text.strip().lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip()


def _assignment(text: str, where: str, *, parse: bool = True) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InvalidInput(f"{text!r} is not an assignment", hint="it looks like field=value", where=where)
    return name.strip(), value_of(value) if parse else value


def _parsed(text: str, suffix: str) -> Any:
    if suffix == ".toml":
        return tomllib.loads(text)
    if suffix in (".yaml", ".yml"):
        import yaml

        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error
    if suffix == ".json":
        return json.loads(text)
    raise ValueError("a matrix is a .toml, .yaml or .json file")


def _problem(entry: Any, folder: Path) -> Any:
    if not isinstance(entry, str):
        return entry
    path = folder / entry
    named = str(path) if entry.endswith(".py") and path.exists() else entry
    return problem(named)
