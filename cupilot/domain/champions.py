"""Champions: proven kernels for built-in problems that ship with the release, a file each, verified when it is read.

A champion holds for the kind of device that it was measured on; on another architecture it is a seed, from which jobs
begin. Nothing here measures or stores: ``benchmarks/make_champions.py`` writes the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from cupilot.domain import problems
from cupilot.domain.errors import CupilotError, NotFound
from cupilot.domain.evaluation import Evaluation, Preparation, Verdict
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import NumericsPolicy, Problem, Target
from cupilot.domain.problems import Size
from cupilot.domain.strategy import Strategy
from cupilot.domain.value import Value, digest

FORMAT = 1


class InvalidChampion(CupilotError):
    """A champion's file was changed, or contradicts itself."""

    code = "invalid_champion"
    status = 500


class Champion(Value):
    """A reproduced kernel with its evidence."""

    format: Literal[1] = 1
    problem: str
    """Name of the built-in problem."""
    size: Size
    policy: NumericsPolicy
    target: Target
    strategy: Strategy
    kernel: Kernel
    evaluation: Evaluation
    """Its confirmation in fresh processes, with the environment."""
    preparation: Preparation
    """Preparation of the problem on that device."""
    author: Literal["model", "playbook"]
    """Author of the kernel: a language model, or a template."""
    generation: int = Field(ge=1)
    """Counted from 1."""
    measured_at: str
    """ISO 8601, UTC."""

    @model_validator(mode="after")
    def _proven(self) -> Champion:
        if self.evaluation.verdict is not Verdict.REPRODUCED or self.evaluation.comparison() is None:
            raise ValueError("a champion is reproduced, and compared with eager")
        if self.evaluation.environment is None:
            raise ValueError("a champion says where it was measured")
        if self.evaluation.build is None or not self.evaluation.build.flags:
            raise ValueError("a champion says how it was compiled")
        if self.kernel.content_hash() != self.evaluation.kernel_hash or self.kernel.target is not self.target:
            raise ValueError("the evaluation is of another kernel")
        hashes = {self.evaluation.problem_hash, self.preparation.facts.problem_hash}
        if hashes != {self.load_problem().content_hash()}:
            raise ValueError("the evaluation is of another version of the problem")
        return self

    @property
    def problem_hash(self) -> str:
        """Content hash of the problem, which covers size and policy."""
        return self.evaluation.problem_hash

    @property
    def arch(self) -> str:
        """Architecture that it is a champion on."""
        assert self.evaluation.environment is not None
        return self.evaluation.environment.device.arch

    @property
    def device(self) -> str:
        """Model of device that it was measured on."""
        assert self.evaluation.environment is not None
        return self.evaluation.environment.device.name

    @property
    def lower_bound(self) -> float:
        """Lower bound of its speedup over eager."""
        comparison = self.evaluation.comparison()
        assert comparison is not None
        return comparison.speedup.low

    def load_problem(self) -> Problem:
        """Return the problem that it solves."""
        return problems.load(self.problem, size=self.size, policy=self.policy)


def dump(champion: Champion) -> str:
    """Return a champion's file: the value, and the hash that it is verified by."""
    value = champion.model_dump(mode="json", exclude_defaults=True)
    return json.dumps({"hash": digest(value), "champion": value}, separators=(",", ":"), sort_keys=True) + "\n"


def parse(text: str, name: str) -> Champion:
    """Return the champion in a file's text; InvalidChampion where anything of it was changed."""
    try:
        data: Mapping[str, Any] = json.loads(text)
        value = data["champion"]
        if digest(value) != data["hash"]:
            raise InvalidChampion(f"{name}: the content does not have the hash that the file names")
        return Champion.model_validate(value)
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        raise InvalidChampion(f"{name}: {error}") from error


@cache
def champions() -> tuple[Champion, ...]:
    """Return every champion of this release, by problem, policy, target and architecture."""
    listed = [parse(entry.read_text(encoding="utf-8"), entry.name) for entry in _files()]
    return tuple(sorted(listed, key=lambda found: (found.problem, found.policy, found.target, found.arch)))


def _files() -> Iterator[Traversable]:
    folder = files("cupilot.domain").joinpath("shipped")
    return (entry for entry in folder.iterdir() if entry.name.endswith(".json"))


def matching(
    problem: str, target: Target, *, policy: NumericsPolicy | None = None, arch: str | None = None
) -> list[Champion]:
    """Return the champions for a problem, by name or content hash, the one with the highest lower bound first."""
    found = [
        champion
        for champion in champions()
        if problem in (champion.problem, champion.problem_hash)
        and champion.target is target
        and policy in (None, champion.policy)
        and arch in (None, champion.arch)
    ]
    return sorted(found, key=lambda champion: (champion.policy, -champion.lower_bound))


def best(problem: str, target: Target, *, policy: NumericsPolicy | None = None, arch: str | None = None) -> Champion:
    """Return the champion for a problem, without a policy one under ``fp32`` first; NotFound where there is none."""
    found = matching(problem, target, policy=policy, arch=arch)
    if found:
        return found[0]
    others = sorted({f"{champion.policy.value} on {champion.arch}" for champion in matching(problem, target)})
    if others:
        where = target.value + (f" ({arch})" if arch else "") + (f" under {policy.value}" if policy else "")
        raise NotFound(f"no champion for {problem} on {where} ships", hint=f"there is one under {', '.join(others)}")
    if not problems.is_name(problem):
        raise NotFound(f"no built-in problem is called {problem!r}", hint=problems.suggestion(problem))
    raise NotFound(
        f"no champion for {problem} on {target.value} ships with this release",
        hint=f"cupilot submit {problem} --target {target.value} evolves one",
    )


def by_kernel(kernel_hash: str) -> Champion:
    """Return the champion whose kernel has this hash, or one that begins so; NotFound where none has."""
    candidates = champions() if len(kernel_hash) >= 8 else ()
    found = [champion for champion in candidates if champion.kernel.content_hash().startswith(kernel_hash)]
    if len(found) != 1:
        raise NotFound("no such champion ships with this release", hint="GET /v1/champions lists all", where="kernel")
    return found[0]
