"""Say before a job is queued whether the playbook has a kernel for its problem, in the words of the refusal itself.

Exact where the problem was traced before; otherwise a reading of the file's text, which runs nothing and finds calls
that are certainly refused once they are reached, never that there is a kernel.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from agents.interface import NoTemplate
from agents.playbook.compiler.lowering import why_not
from agents.playbook.compiler.refusals import unsupported
from agents.playbook.operators import Launches
from agents.playbook.translator import recognised
from cupilot.domain.problem import Graph, GraphNode, NumericsPolicy, ProblemFacts, Target
from cupilot.domain.syntax import parse

SHOWN = 3
"""Calls that are named at most."""

REFUSED: dict[str, tuple[str, ...]] = {
    "torch": (
        "bernoulli", "cholesky_inverse", "frexp", "gcd", "geqrf", "i0", "igamma", "igammac",
        "lcm", "lu_unpack", "masked_select", "mode", "multinomial", "nanmedian", "nextafter", "nonzero", "normal",
        "ormqr", "poisson", "pinverse", "polygamma", "qr", "segment_reduce", "svd", "triangular_solve",
        "unique", "unique_consecutive",
    ),
    "torch.nn.functional": ("ctc_loss",),
    "torch.linalg": (
        "eig", "eigh", "eigvals", "eigvalsh", "householder_product", "lstsq", "lu", "lu_factor", "matrix_exp", "pinv",
        "qr", "svd", "svdvals",
    ),
    "torch.special": (
        "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "chebyshev_polynomial_t",
        "chebyshev_polynomial_u", "erfcx", "hermite_polynomial_h", "hermite_polynomial_he", "i0e", "i1", "i1e",
        "laguerre_polynomial_l", "legendre_polynomial_p", "log_ndtr", "ndtri", "zeta",
    ),
}  # fmt: skip
"""Functions of PyTorch whose call the compiler certainly refuses, by module; a test holds them to what it supports."""

_PREFIXES = {"torch.linalg": "linalg_", "torch.special": "special_"}
_RENAMED = {"unique": "_unique2"}


def foreseen(source: str, policy: NumericsPolicy, target: Target, facts: ProblemFacts | None) -> list[str]:
    """Return what is known of the playbook's kernel for a problem; ``facts`` are those of an earlier trace."""
    if facts is not None:
        return [_by_trace(source, facts.model_copy(update={"policy": policy}), target)]
    refusals = [said(error) for error in by_text(source)][:SHOWN]
    if refusals:
        return [f"Once it is reached, this ends the job as no_template: {words}" for words in refusals]
    return [
        "The file's text names no operator that the playbook lacks; whether it has a kernel is known once the problem"
        " has been traced on a worker."
    ]


def said(error: NoTemplate) -> str:
    """Return a refusal in one sentence, with what to do next."""
    return f"{error.message}. Next: {error.hint}: cupilot submit FILE --agents hybrid"


def _by_trace(source: str, facts: ProblemFacts, target: Target) -> str:
    try:
        operator = recognised(facts, target, source)
    except NoTemplate as error:
        return f"The job would end as no_template: {said(error)}"
    if target is Target.CPU and isinstance(operator, Launches):
        return "The playbook has one strategy for this problem on cpu: there is one candidate in any population."
    return f"The playbook has a kernel for this problem on {target.value}."


def by_text(source: str) -> Iterator[NoTemplate]:
    """Yield a refusal for each call in a file that the compiler certainly refuses, in the order of lines.

    None for a text that Python itself cannot read, or only on a deeper stack than this one.
    """
    try:
        tree = parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    names = _imported(tree)
    calls = sorted(
        (node.lineno, name)
        for function in _traced(tree)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and (name := _refused(node.func, names)) is not None
    )
    nothing = _no_facts()
    for line, name in dict.fromkeys(calls):
        node = GraphNode(op=f"aten.{name}.default", args=(), results=(), shapes=(), dtypes=(), line=line)
        yield unsupported(nothing, node, why_not(node.op), source)


def _traced(tree: ast.Module) -> list[ast.FunctionDef]:
    """Return the functions that a forward pass may run: ``Model.forward``, and in turn those of the file that it names.

    They are functions of the module, methods of ``self`` and ``super()``, and ``forward`` of classes that are named,
    also where an attribute of ``self`` is made. Methods of other objects are not followed.
    """
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    seen: list[ast.FunctionDef] = []
    waiting = [(method, "Model") for method in _methods("Model", "forward", classes)[:1]]
    while waiting:
        function, owner = waiting.pop()
        if function in seen:
            continue
        seen.append(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Name):
                waiting += [(functions[node.id], "")] if node.id in functions else []
                waiting += [(method, node.id) for method in _methods(node.id, "forward", classes)[:1]]
            elif isinstance(node, ast.Attribute) and _is_own(node.value):
                methods = _methods(owner, node.attr, classes)
                first = methods.index(function) + 1 if function in methods and isinstance(node.value, ast.Call) else 0
                waiting += [(method, owner) for method in methods[first : first + 1]]
                made_of = _classes_of_attribute(owner, node.attr, classes)
                waiting += [(method, name) for name in made_of for method in _methods(name, "forward", classes)[:1]]
    return seen


def _is_own(value: ast.expr) -> bool:
    """Return whether an expression is ``self`` or ``super()``."""
    name = value.func if isinstance(value, ast.Call) else value
    return isinstance(name, ast.Name) and name.id == ("super" if isinstance(value, ast.Call) else "self")


def _with_bases(name: str, classes: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """Return a class of the file and those of its bases that are in the file."""
    found: list[ast.ClassDef] = []
    names = [name]
    while names:
        known = classes.get(names.pop(0))
        if known is not None and known not in found:
            found.append(known)
            names += [base.id for base in known.bases if isinstance(base, ast.Name)]
    return found


def _methods(owner: str, name: str, classes: Mapping[str, ast.ClassDef]) -> list[ast.FunctionDef]:
    """Return the methods of this name that a class of the file and its bases have, overriding ones first."""
    bodies = [node for known in _with_bases(owner, classes) for node in known.body]
    return [node for node in bodies if isinstance(node, ast.FunctionDef) and node.name == name]


def _classes_of_attribute(owner: str, name: str, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """Return the classes of the file that are named where ``self.name`` is assigned."""
    assigned = [
        node.value
        for known in _with_bases(owner, classes)
        for node in ast.walk(known)
        if isinstance(node, ast.Assign)
        and any(isinstance(to, ast.Attribute) and to.attr == name and _is_own(to.value) for to in node.targets)
    ]
    return {
        node.id for value in assigned for node in ast.walk(value) if isinstance(node, ast.Name) and node.id in classes
    }


def _imported(tree: ast.Module) -> dict[str, str]:
    """Return the module that each name of the file stands for."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                names[item.asname or item.name.partition(".")[0]] = (
                    item.name if item.asname else item.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {item.asname or item.name: f"{node.module}.{item.name}" for item in node.names}
    return names


def _refused(function: ast.expr, names: dict[str, str]) -> str | None:
    """Return ATen's name of a function that is certainly refused; None for all others, and for methods."""
    dotted = _dotted(function)
    if dotted is None:
        return None
    first, _, rest = dotted.partition(".")
    whole = f"{names[first]}.{rest}".rstrip(".") if first in names else ""
    module, _, name = whole.rpartition(".")
    return aten_name(module, name) if name in REFUSED.get(module, ()) else None


def aten_name(module: str, name: str) -> str:
    """Return how ATen names a function of :data:`REFUSED`."""
    return f"{_PREFIXES.get(module, '')}{_RENAMED.get(name, name)}"


def _dotted(function: ast.expr) -> str | None:
    names: list[str] = []
    while isinstance(function, ast.Attribute):
        names.append(function.attr)
        function = function.value
    return ".".join([function.id, *reversed(names)]) if isinstance(function, ast.Name) else None


def _no_facts() -> ProblemFacts:
    """Return facts that say nothing: a call's refusal needs none."""
    return ProblemFacts(
        problem_hash="",
        policy=NumericsPolicy.FP32,
        tensors=(),
        graph=Graph(nodes=(), outputs=()),
        op_class="other",
        flops=0,
        matmul_flops=0,
        compulsory_bytes=0,
    )
