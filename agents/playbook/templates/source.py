"""Tools for templates: the techniques of a strategy with their values, and sources built up in parts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from string import Template
from textwrap import dedent, indent

from cupilot.domain.kernel import Kernel, LaunchPlan
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.domain.technique import Catalogue, Scalar


@dataclass(frozen=True)
class Options:
    """A strategy's techniques with every parameter filled in."""

    techniques: dict[str, dict[str, Scalar]]

    @classmethod
    def of(cls, strategy: Strategy, catalogue: Catalogue) -> Options:
        """Return the strategy's techniques; parameters that it leaves open take the catalogue's default."""
        return cls({use.id: parameters_of(use, catalogue) for use in strategy.techniques})

    def __contains__(self, technique: str) -> bool:
        return technique in self.techniques

    def number(self, technique: str, parameter: str, without: int) -> int:
        """Return a whole-number parameter, or ``without`` where the strategy does not use the technique."""
        value = self.techniques.get(technique, {}).get(parameter, without)
        return int(value)

    def text(self, technique: str, parameter: str, without: str = "") -> str:
        """Return a parameter in words."""
        return str(self.techniques.get(technique, {}).get(parameter, without))

    def describe(self) -> str:
        """Return the techniques in one line, for the comment at the head of a kernel."""
        words = []
        for name, parameters in self.techniques.items():
            values = ", ".join(f"{key}={value}" for key, value in parameters.items())
            words.append(f"{name}({values})" if values else name)
        return ", ".join(words) or "none: the plain kernel"


def parameters_of(use: TechniqueUse, catalogue: Catalogue) -> dict[str, Scalar]:
    """Return a technique's parameters, defaults included."""
    technique = catalogue.get(use.id)
    defaults = {name: item.default for name, item in technique.parameters.items()} if technique else {}
    return {**defaults, **use.parameters}


@dataclass
class Source:
    """A kernel source in the making."""

    title: str
    options: Options
    parts: list[str] = field(default_factory=list)

    def add(self, text: str, **values: object) -> None:
        """Append C++ text; ``$NAME`` is replaced."""
        self.parts.append(fill(text, **values))

    def constants(self, **values: int) -> None:
        """Append compile-time constants, ``K_`` and the given name."""
        lines = [f"constexpr long long K_{name.upper()} = {value}LL;" for name, value in values.items()]
        self.parts.append("\n".join(lines))

    def text(self) -> str:
        """Return the whole source, without constants that nothing refers to."""
        head = f'// {self.title}\n// Techniques: {self.options.describe()}\n#include "problem.h"'
        whole = "\n".join(self.parts)
        parts = []
        for part in self.parts:
            lines = [line for line in part.strip("\n").split("\n") if _is_used(line, whole)]
            parts.append("\n".join(lines))
        return "\n\n".join([head, *(part for part in parts if part.strip())]) + "\n"

    def kernel(self, target: Target, plan: LaunchPlan) -> Kernel:
        """Return the kernel with this source."""
        return Kernel(target=target, source=self.text(), plan=plan)


def _is_used(line: str, whole: str) -> bool:
    constant = re.match(r"constexpr long long (K_\w+) = ", line)
    return constant is None or len(re.findall(rf"\b{constant.group(1)}\b", whole)) > 1


def fill(text: str, **values: object) -> str:
    """Return C++ text without its common indentation, ``$NAME`` replaced.

    A list of lines is indented like its place.
    """
    body = dedent(text).strip("\n")
    lines: list[str] = []
    for line in body.split("\n"):
        name = line.strip()[1:]
        value = values.get(name) if line.strip().startswith("$") else None
        if isinstance(value, list | tuple):
            lines += [indent(str(item), line[: len(line) - len(line.lstrip())]) for item in value]
        else:
            lines.append(Template(line).substitute({key: str(item) for key, item in values.items()}))
    return "\n".join(lines)


def arguments(inputs: Iterable[str], outputs: Iterable[tuple[str, str]], types: Mapping[str, str] | None = None) -> str:
    """Return a C parameter list: inputs ``p_NAME``, then outputs given as type and name.

    ``types`` are those of inputs that are not ``float``.
    """
    known = types or {}
    reads = [f"const {known.get(name, 'float')}* __restrict__ p_{name}" for name in inputs]
    return ", ".join([*reads, *(f"{kind}* __restrict__ p_{name}" for kind, name in outputs)])
