"""A kernel: device code plus a launch plan, and no host code (``docs/decisions/0002``).

Checks what can be checked from plan and facts alone; compiling and launching belong to ``gpu_worker``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import Field, field_validator, model_validator

from cupilot.domain.errors import InvalidPlan, InvalidTensorMap
from cupilot.domain.expression import Formula, evaluate
from cupilot.domain.header import constants
from cupilot.domain.problem import ProblemFacts, Target
from cupilot.domain.tensor_map import MapRule, ResolvedTensorMap, TensorMap, resolved
from cupilot.domain.value import Value

MAX_SOURCE_BYTES = 256 * 1024
MAX_LAUNCHES = 32
MAX_TUNABLES = 16
MAX_WORKSPACE_BYTES = 8 * 2**30
MAX_TENSOR_MAPS = 16

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")


def _identifier(name: str) -> str:
    if not _IDENTIFIER.match(name):
        raise ValueError(f"{name!r} is not a C identifier")
    return name


class Launch(Value):
    """Launch of an entry point with its arguments. Expressions are over ``problem.h`` and the tunables."""

    kernel: str
    """Name of the ``__global__`` function (``cuda``) or ``extern "C"`` function (``cpu``)."""
    args: tuple[str, ...]
    """Tensor or workspace names, passed as pointers in this order, and tensor maps, passed by value."""
    grid: tuple[Formula, ...] = ()
    """One to three expressions; ``cuda`` only."""
    block: tuple[Formula, ...] = ()
    """One to three expressions; ``cuda`` only."""
    shared_bytes: Formula = "0"
    """Dynamic shared memory; ``cuda`` only."""
    cluster: tuple[Formula, ...] = ()
    """Thread-block cluster size; ``cuda`` from sm_90 on."""
    cooperative: bool = False
    """Grid-wide synchronisation is used; ``cuda`` only."""

    _check_kernel = field_validator("kernel")(_identifier)


class Tunable(Value):
    """An integer that the evaluator may vary; ``problem.h`` defines it as a ``constexpr int``."""

    value: int
    choices: tuple[int, ...] = Field(min_length=1, max_length=16)

    @model_validator(mode="after")
    def _value_is_a_choice(self) -> Tunable:
        if self.value not in self.choices:
            raise ValueError(f"value {self.value} is not among choices {list(self.choices)}")
        return self


class Workspace(Value):
    """Scratch memory that the evaluator allocates; its contents are poisoned before every launch sequence."""

    name: str
    bytes: Formula
    """Expression over ``problem.h`` and the tunables."""

    _check_name = field_validator("name")(_identifier)


class LaunchPlan(Value):
    """Plan for running a kernel: everything a host program would decide, as data."""

    launches: tuple[Launch, ...] = Field(min_length=1, max_length=MAX_LAUNCHES)
    tunables: dict[str, Tunable] = Field(default_factory=dict, max_length=MAX_TUNABLES)
    workspace: tuple[Workspace, ...] = Field(default=(), max_length=8)
    tensor_maps: tuple[TensorMap, ...] = Field(default=(), max_length=MAX_TENSOR_MAPS)
    """Tiles for the Tensor Memory Accelerator; ``cuda`` from sm_90 on."""

    @field_validator("tunables")
    @classmethod
    def _tunable_names(cls, tunables: dict[str, Tunable]) -> dict[str, Tunable]:
        for name in tunables:
            _identifier(name)
        return tunables

    def values(self) -> dict[str, int]:
        """Return the tunables' present values."""
        return {name: tunable.value for name, tunable in self.tunables.items()}

    def with_values(self, values: dict[str, int]) -> LaunchPlan:
        """Return the same plan with other tunable values; each must be one of its choices."""
        unknown = sorted(set(values) - set(self.tunables))
        if unknown:
            raise InvalidPlan(f"no such tunable: {', '.join(unknown)}")
        impossible = [name for name, value in values.items() if value not in self.tunables[name].choices]
        if impossible:
            raise InvalidPlan(f"{values[impossible[0]]} is not a choice of the tunable {impossible[0]!r}")
        tunables = {
            name: Tunable(value=values.get(name, tunable.value), choices=tunable.choices)
            for name, tunable in self.tunables.items()
        }
        return self.model_copy(update={"tunables": tunables})


class Kernel(Value):
    """One source for one target, with its launch plan."""

    target: Target
    source: str = Field(min_length=1)
    plan: LaunchPlan

    @field_validator("source")
    @classmethod
    def _bounded(cls, source: str) -> str:
        if len(source.encode()) > MAX_SOURCE_BYTES:
            raise ValueError(f"kernel source is larger than {MAX_SOURCE_BYTES} bytes")
        if "\0" in source:
            raise ValueError("kernel source contains a NUL byte")
        return source

    def tunable_values(self) -> dict[str, int]:
        """Return the tunables' present values, by name."""
        return self.plan.values()

    def _identity(self) -> Any:
        identity = self.model_dump(mode="json")
        if not self.plan.tensor_maps:
            del identity["plan"]["tensor_maps"]  # kernels from before plans had them keep their hashes
        return identity

    def tuned(self, values: dict[str, int]) -> Kernel:
        """Return the same kernel with other tunable values."""
        return self.model_copy(update={"plan": self.plan.with_values(values)}) if values else self


class ResolvedLaunch(Value):
    """A launch with every expression evaluated."""

    kernel: str
    args: tuple[str, ...]
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    tensor_maps: dict[str, ResolvedTensorMap] = {}
    """Those among the arguments, by name."""


class ResolvedPlan(Value):
    """A plan over concrete facts: what the runner executes."""

    launches: tuple[ResolvedLaunch, ...]
    workspace: dict[str, int]
    """Bytes of each workspace, by name."""


def resolve(kernel: Kernel, facts: ProblemFacts) -> ResolvedPlan:
    """Evaluate a kernel's plan for a problem; raises :class:`InvalidPlan` where the two do not fit."""
    plan = kernel.plan
    header = constants(facts)
    clash = sorted(set(plan.tunables) & set(header))
    if clash:
        raise InvalidPlan(f"tunable {clash[0]!r} has the name of a constant in problem.h", hint="rename the tunable")
    names: dict[str, int | float | bool] = {**header, **plan.values()}
    tensors = {spec.name for spec in facts.tensors}
    workspace = _workspace(plan, names, tensors)
    maps = _tensor_maps(kernel, facts, names, workspace)
    names_in_scope = tensors | set(workspace) | set(maps)
    launches = tuple(_launch(launch, kernel.target, names, names_in_scope) for launch in plan.launches)
    return ResolvedPlan(launches=tuple(_with_maps(launch, maps) for launch in launches), workspace=workspace)


def _workspace(plan: LaunchPlan, names: dict[str, int | float | bool], tensors: set[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for item in plan.workspace:
        if item.name in tensors or item.name in sizes:
            raise InvalidPlan(f"workspace {item.name!r} has the name of another tensor", hint="rename the workspace")
        size = evaluate(item.bytes, names)
        if not 0 < size <= MAX_WORKSPACE_BYTES:
            raise InvalidPlan(f"workspace {item.name!r} would have {size} bytes; 1 to {MAX_WORKSPACE_BYTES}")
        sizes[item.name] = size
    return sizes


def _tensor_maps(
    kernel: Kernel, facts: ProblemFacts, names: dict[str, int | float | bool], workspace: dict[str, int]
) -> dict[str, ResolvedTensorMap]:
    specs = {spec.name: spec for spec in facts.tensors}
    sizes = {spec.name: spec.storage_elements * spec.dtype.itemsize for spec in facts.tensors} | workspace
    maps: dict[str, ResolvedTensorMap] = {}
    for item in kernel.plan.tensor_maps:
        if kernel.target is Target.CPU:
            raise InvalidPlan(f"tensor map {item.name!r}: a cpu kernel has no tensor maps")
        if item.name in sizes or item.name in maps:
            message = f"tensor map {item.name!r} has the name of another argument"
            raise InvalidPlan(message, hint="rename the tensor map")
        if item.tensor not in sizes:
            message, hint = f"tensor map {item.name!r}: unknown tensor {item.tensor!r}", f"known: {_listed(sizes)}"
            where = f"tensor_maps.{item.name}.tensor"
            raise InvalidTensorMap(message, rule=MapRule.TENSOR.value, where=where, hint=hint)
        maps[item.name] = resolved(item, specs.get(item.tensor), sizes[item.tensor], names, facts.policy)
    return maps


def _with_maps(launch: ResolvedLaunch, maps: dict[str, ResolvedTensorMap]) -> ResolvedLaunch:
    own = {name: maps[name] for name in launch.args if name in maps}
    return launch.model_copy(update={"tensor_maps": own}) if own else launch


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _launch(
    launch: Launch, target: Target, names: dict[str, int | float | bool], names_in_scope: set[str]
) -> ResolvedLaunch:
    unknown = [name for name in launch.args if name not in names_in_scope]
    if unknown:
        raise InvalidPlan(
            f"launch of {launch.kernel!r}: unknown argument {unknown[0]!r}", hint=f"known: {_listed(names_in_scope)}"
        )
    if target is Target.CPU:
        if launch.grid or launch.block or launch.cluster or launch.cooperative or launch.shared_bytes != "0":
            raise InvalidPlan(f"launch of {launch.kernel!r}: a cpu launch has no grid, block, cluster or shared memory")
        return ResolvedLaunch(kernel=launch.kernel, args=launch.args)
    if not launch.grid or not launch.block:
        raise InvalidPlan(f"launch of {launch.kernel!r}: a cuda launch needs grid and block")
    shared = evaluate(launch.shared_bytes, names)
    if shared < 0:
        raise InvalidPlan(f"launch of {launch.kernel!r}: shared_bytes is {shared}")
    return ResolvedLaunch(
        kernel=launch.kernel,
        args=launch.args,
        grid=_dim3(launch, "grid", launch.grid, names),
        block=_dim3(launch, "block", launch.block, names),
        shared_bytes=shared,
        cluster=_dim3(launch, "cluster", launch.cluster, names),
        cooperative=launch.cooperative,
    )


def _dim3(
    launch: Launch, field: str, expressions: tuple[str, ...], names: dict[str, int | float | bool]
) -> tuple[int, int, int]:
    if len(expressions) > 3:
        raise InvalidPlan(f"launch of {launch.kernel!r}: {field} has {len(expressions)} dimensions; at most 3")
    sizes = [evaluate(expression, names) for expression in expressions]
    if any(size < 1 for size in sizes):
        raise InvalidPlan(f"launch of {launch.kernel!r}: {field} is {sizes}; every dimension must be at least 1")
    x, y, z = [*sizes, 1, 1, 1][:3]
    return x, y, z
