"""Export one file with ``ModelNew``, by KernelBench's conventions (https://github.com/ScalingIntelligence/KernelBench).

The reference stands in it as it was submitted, so that ``ModelNew`` draws the same random parameters. KernelBench
judges forward passes only, so the kernel is used whether or not a gradient is wanted.
"""

from __future__ import annotations

import ast
import pprint
import re

from cupilot.domain.syntax import parse
from cupilot.exports import texts
from cupilot.exports.winner import ExportRefused, Winner, is_cuda

_OWN_IMPORTS = re.compile(r"^from (__future__|\._)[^\n]*\n", re.MULTILINE)


def files(winner: Winner) -> dict[str, str]:
    """Return the one file."""
    winner.refuse_side_effects()
    launcher = "_launch_cuda.py" if is_cuda(winner) else "_launch_cpu.py"
    runtime = "\n\n".join(_pasted(name) for name in ("_buffers.py", launcher, "_structure.py", "_proven.py"))
    reference = winner.reference
    tail = texts.template(
        "modelnew_tail.py.txt",
        spec=pprint.pformat(winner.spec(), width=110, sort_dicts=False),
        source=texts.literal(winner.kernel.source),
        headers=_dictionary(winner.device_files() if is_cuda(winner) else {"problem.h": winner.header}),
        unit='\'#include "common.h"\\n#include "kernel.cu"\\n\'' if is_cuda(winner) else "KERNEL_SOURCE",
        own='{**KERNEL_HEADERS, "kernel.cu": KERNEL_SOURCE}' if is_cuda(winner) else "KERNEL_HEADERS",
    )
    _refuse_clash(reference, f"{runtime}\n{tail}")
    head = texts.template(
        "modelnew_head.py.txt", headline=texts.headline(winner), verdict=winner.evaluation.verdict.value
    )
    text = f"{head}{reference.rstrip()}\n\n\n{_RULE}\n{runtime}\n\n\n{tail}"
    compile(text, "modelnew.py", "exec", dont_inherit=True)
    return {f"{winner.slug}_modelnew.py": text}


_RULE = "# --- the kernel, its launch plan, and where they are proven " + "-" * 58 + "\n"


def _pasted(name: str) -> str:
    """Return a runtime file as part of another: without docstring and what it imports from its neighbours."""
    text = _OWN_IMPORTS.sub("", texts.runtime(name))
    docstring = ast.get_docstring(parse(text), clean=False)
    assert docstring is not None
    comment = "\n".join(f"# {line}".rstrip() for line in docstring.strip().splitlines())
    return comment + "\n" + text[text.index(docstring) + len(docstring) + 3 :].strip()


def _dictionary(entries: dict[str, str]) -> str:
    return "{\n" + "".join(f"    {name!r}: {texts.literal(text)},\n" for name, text in entries.items()) + "}"


def _refuse_clash(reference: str, own: str) -> None:
    clash = sorted(_defined(parse(reference)) & _defined(parse(own)))
    if clash:
        raise ExportRefused(
            f"the reference defines {clash[0]!r}, a name that this file needs",
            hint="rename it in the problem, or export the torch package",
        )


def _defined(tree: ast.Module) -> set[str]:
    """Return names that a module binds other than by importing them."""
    named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.name for node in tree.body if isinstance(node, named)}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            names |= {
                inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
            }
    return names
