"""A technique: one named optimisation, and the catalogue that the whole system shares.

The catalogue says what a technique is for and when it applies; how code is changed by it is the agents' business.
Techniques that agents invent are not in it: :mod:`cupilot.domain.standing` says how they prove themselves.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from importlib.resources import files

from pydantic import Field

from cupilot.domain.hardware import generation
from cupilot.domain.problem import Target
from cupilot.domain.value import Value

Scalar = int | str


class Resource(StrEnum):
    """The hardware resource that a technique relieves."""

    DRAM = "dram"
    CACHE = "cache"
    SHARED_MEMORY = "shared_memory"
    REGISTERS = "registers"
    COMPUTE = "compute"
    TENSOR_CORES = "tensor_cores"
    LATENCY = "latency"
    LAUNCH = "launch"


class Parameter(Value):
    """A choice that a technique leaves open."""

    choices: tuple[Scalar, ...] = Field(min_length=1)
    default: Scalar
    meaning: str


class MetricChange(Value):
    """Metric that a technique should move if it works."""

    metric: str
    """Name of a profile metric, e.g. ``dram_throughput_pct``."""
    direction: str = Field(pattern="^(up|down)$")


class Technique(Value):
    """One named optimisation."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]{1,63}$")
    title: str
    summary: str
    """One or two sentences: what it does and why it helps."""
    resource: Resource
    targets: tuple[Target, ...] = Field(min_length=1)
    arch: str | None = Field(default=None, pattern=r"^sm_\d+$")
    """The first GPU architecture that has what it needs; None for all."""
    last_arch: str | None = Field(default=None, pattern=r"^sm_\d+$")
    """The last one, where later ones lack it."""
    op_classes: tuple[str, ...] = ()
    """Operator families it applies to; empty for all."""
    zones: tuple[str, ...] = ()
    """Roofline zones in which it usually pays; empty for all."""
    parameters: dict[str, Parameter] = {}
    preconditions: tuple[str, ...] = ()
    """In prose, each a sentence; code that applies the technique checks them."""
    requires: tuple[str, ...] = ()
    """Technique ids that must be in the strategy too."""
    conflicts: tuple[str, ...] = ()
    """Technique ids that must not be in the same strategy."""
    policies: tuple[str, ...] = ()
    """Numerics policies under which it is allowed; empty for all."""
    expected: tuple[MetricChange, ...] = ()

    def runs_on(self, arch: str) -> bool:
        """Return whether a device of this architecture has what the technique needs."""
        first = self.arch is None or generation(arch) >= generation(self.arch)
        return first and (self.last_arch is None or generation(arch) <= generation(self.last_arch))


class Catalogue:
    """Techniques by id. Iterates in the order of the file."""

    def __init__(self, techniques: tuple[Technique, ...]) -> None:
        self._by_id = {technique.id: technique for technique in techniques}
        if len(self._by_id) != len(techniques):
            raise ValueError("two techniques of the catalogue have the same id")

    def __iter__(self) -> Iterator[Technique]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, technique_id: object) -> bool:
        return technique_id in self._by_id

    def get(self, technique_id: str) -> Technique | None:
        """Return the technique of this id, or None where the catalogue does not know it."""
        return self._by_id.get(technique_id)


@cache
def catalogue() -> Catalogue:
    """Return the built-in catalogue, from ``techniques.toml`` beside this module."""
    data = tomllib.loads(files("cupilot.domain").joinpath("techniques.toml").read_text(encoding="utf-8"))
    return Catalogue(tuple(Technique(id=key, **fields) for key, fields in data.items()))
