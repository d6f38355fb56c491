"""Compute keys that tell whether a job already has an equivalent strategy or kernel. Pure; reads no rows.

Asked before anything is paid: a strategy before its kernel is written, a kernel before it is measured. Two strategies
are alike when they ask for the same code: parameters that are left out have their defaults, and an unknown technique's
name counts without its plural and its underscores. Two kernels are alike when they differ in comments, blanks and the
order of the plan's fields only: the compiler would make the same of both.
"""

from __future__ import annotations

import json
import re

from cupilot.domain.kernel import Kernel
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.domain.technique import Catalogue
from cupilot.domain.value import digest

_TOKEN = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')"""  # a literal keeps its blanks, and is no comment
    r"|(?P<comment>//[^\n]*|/\*.*?\*/)"
    r"|(?P<blank>[ \t\r\f\v]+)"
    r"|(?P<other>[A-Za-z_]\w*|\d[\w.]*|[-+*%<>=!&|^~?:.]+|\n|.)",
    re.DOTALL,
)


def strategy_key(strategy: Strategy, catalogue: Catalogue) -> str:
    """Return a key that is equal for strategies that ask for the same code.

    Order of techniques and prose do not count.
    """
    return digest(sorted((_use_key(use, catalogue) for use in strategy.techniques), key=json.dumps))


def kernel_key(kernel: Kernel) -> str:
    """Return a key that is equal for kernels that a compiler cannot tell apart, as far as can be seen without one."""
    tokens = [match[0] for match in _TOKEN.finditer(kernel.source) if match.lastgroup not in ("comment", "blank")]
    return digest([kernel.target.value, _without_blank_lines(tokens), kernel.plan.model_dump(mode="json")])


def _use_key(use: TechniqueUse, catalogue: Catalogue) -> list[object]:
    technique = catalogue.get(use.id)
    if technique is None:
        return [f"?{use.id.replace('_', '').rstrip('s')}", sorted(use.parameters.items())]
    defaults = {name: parameter.default for name, parameter in technique.parameters.items()}
    return [use.id, sorted((defaults | use.parameters).items())]


def _without_blank_lines(tokens: list[str]) -> list[str]:
    """Return the lines without blank ones.

    Line ends count, because directives end with them, but several in a row are one.
    """
    kept: list[str] = []
    for token in tokens:
        if token != "\n" or (kept and kept[-1] != "\n"):
            kept.append(token)
    return kept[:-1] if kept and kept[-1] == "\n" else kept
