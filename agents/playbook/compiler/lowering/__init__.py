"""Lower a problem's graph: every value becomes a tensor that is defined by terms, or the call is refused.

Writes in place are followed through views: a storage's value is its root's, and a write through a view gives the root a
new value, so that every alias sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NoReturn

from agents.playbook.compiler.lowering.bits import BITS
from agents.playbook.compiler.lowering.calls import RUN_TIME_SIZE, UNFORESEEN, UNKNOWN_SIZE, Call, Unsupported, read
from agents.playbook.compiler.lowering.creation import CREATION
from agents.playbook.compiler.lowering.formulas import FORMULAS
from agents.playbook.compiler.lowering.gathers import GATHERS
from agents.playbook.compiler.lowering.indexed import INDEXED
from agents.playbook.compiler.lowering.losses import LOSSES
from agents.playbook.compiler.lowering.norms import NORMS
from agents.playbook.compiler.lowering.pointwise import BITS_AND_TRUTHS, SHIFTS, converted, lower, rounded_where_cast
from agents.playbook.compiler.lowering.products import PRODUCTS
from agents.playbook.compiler.lowering.reductions import REDUCTIONS
from agents.playbook.compiler.lowering.resizing import RESIZING
from agents.playbook.compiler.lowering.sampling import SAMPLING
from agents.playbook.compiler.lowering.scatters import SCATTERS
from agents.playbook.compiler.lowering.selections import SELECTIONS
from agents.playbook.compiler.lowering.views import VIEWS, View, is_view, views
from agents.playbook.compiler.lowering.windows import WINDOWS
from agents.playbook.compiler.tensors import Given, Map, Tensor
from agents.playbook.recognition.values import is_in_place, needed_calls, out_of_place, reference, references
from cupilot.domain.problem import GraphNode, ProblemFacts, Role

MAKERS = {
    **{**CREATION, **GATHERS, **INDEXED, **SCATTERS, **REDUCTIONS, **SELECTIONS},
    **{**BITS, **NORMS, **LOSSES, **PRODUCTS, **WINDOWS, **RESIZING, **SAMPLING},
}
_UNKNOWN_CALL = "it is not supported"
_REASONS = {
    **dict.fromkeys(("aten.nonzero.default", "aten.masked_select.default"), RUN_TIME_SIZE),
    **dict.fromkeys(
        ("aten.bernoulli.float", "aten.bernoulli.p", "aten.bernoulli.default"),
        "no kernel draws PyTorch's random numbers; where they are those of dropout, call `self.eval()` in `__init__`",
    ),
    **dict.fromkeys(
        [f"aten.{name}.default" for name in ("rand", "randn", "rand_like", "randn_like", "multinomial")],
        "no kernel draws PyTorch's random numbers; let `get_inputs` draw them",
    ),
    "aten._unique2.default": f"{UNKNOWN_SIZE}; sort and comparisons of neighbours are supported",
    "aten._pack_padded_sequence.default": (
        "its size follows from the lengths; run the layer over the padded batch, and mask or gather its results"
    ),
    "aten._ctc_loss.default": "its recursion written out, with logsumexp and where, is",
    "aten.mode.default": "sort, kthvalue, median and argmax are supported",
    "aten.bincount.default": "its size follows from its values; with a minlength above all of them it is supported",
    "aten.histc.default": "with its range, min and max, it is",
    **{
        f"aten.{name}.default": "of matrices with up to 8 rows it is"
        for name in (
            *("cholesky", "cholesky_solve", "linalg_cholesky_ex", "linalg_inv_ex", "linalg_solve_triangular"),
            *("_linalg_det", "_linalg_slogdet", "_linalg_solve_ex"),
        )
    },
    **{f"aten._fft_{kind}.default": "of up to 4,096 points it is" for kind in ("c2c", "c2r", "r2c")},
}
"""Reasons for refusing calls that no lowering knows but that something supported can stand for."""
_INTO_ANOTHER = "without out=, or with a tensor of the result's shape and type, it may be"
_NOT_HELD = ("complex64", "complex128")


@dataclass(eq=False)
class Place:
    """A tensor object of the reference: the root of a storage, or a view of another object."""

    value: Tensor | None = None
    """Present value, of a root."""
    base: Place | None = None
    view: View | None = None
    seen: tuple[Tensor, Tensor] | None = None
    """The base's value that the view was last made of, and the view."""

    @property
    def root(self) -> Place:
        """The object that owns the storage."""
        return self if self.base is None else self.base.root

    def tensor(self) -> Tensor:
        """Return the present value."""
        if self.base is None or self.view is None:
            assert self.value is not None
            return self.value
        base = self.base.tensor()
        if self.seen is None or self.seen[0] is not base:
            self.seen = base, self.view.of(base)
        return self.seen[1]

    def write(self, call: Call, new: Tensor) -> None:
        """Give the object another value."""
        if self.base is None or self.view is None:
            self.value = new
        else:
            self.base.write(call, self.view.written(call, self.base.tensor(), new))


@dataclass
class Lowering:
    """Lowers one graph, call by call."""

    facts: ProblemFacts
    places: dict[str, Place] = field(default_factory=dict)
    order: list[Place] = field(default_factory=list)
    """Objects in the order in which the tracer met them."""
    dtypes: dict[str, str] = field(default_factory=dict)
    """Types of values in the reference, which a float of eight bits has there only."""
    left_out: dict[str, GraphNode] = field(default_factory=dict)
    """Calls by those of their results that lowering does not make."""

    def run(self) -> list[Tensor]:
        """Return the values of the outputs; raises Unsupported."""
        self.dtypes |= {spec.name: spec.dtype.value for spec in self.facts.tensors}
        for node in self.facts.graph.nodes:
            self.dtypes |= zip(node.results, (dtype.removeprefix("torch.") for dtype in node.dtypes), strict=True)
        for spec in self.facts.with_role(Role.INPUT, Role.PARAMETER, Role.BUFFER):
            if 0 not in spec.shape:
                tensor = Given(spec.shape, spec.dtype.value, spec.name)
                tensor.layout = spec.strides
                self._add(spec.name, Place(tensor))
        for node in self._live():
            try:
                self._node(node)
            except UNFORESEEN as error:
                raise Unsupported(node, f"a variant of it is not foreseen ({type(error).__name__})") from error
        return [self._value(name) for name in self.facts.graph.outputs]

    def _live(self) -> Sequence[GraphNode]:
        """Return the calls that the outputs depend on.

        Where one of them writes in place, all views and writes count, since each may alias what is read later.
        """
        nodes = self.facts.graph.nodes
        live = needed_calls(nodes, self.facts.graph.outputs)
        if any(is_in_place(node.op) for node in live):
            aliasing = [node for node in nodes if is_in_place(node.op) or is_view(node.op)]
            names = {name for node in aliasing for name in node.results}
            live = needed_calls(nodes, names | set(self.facts.graph.outputs))
        return live

    def _add(self, name: str, place: Place) -> None:
        self.places[name] = place
        self.order.append(place)

    def _value(self, name: str) -> Tensor:
        if name in self.left_out:
            node = self.left_out[name]
            place = node.results.index(name) + 1
            raise Unsupported(node, f"result {place} of its {len(node.results)} is used, and is not supported")
        if name not in self.places:
            given = {spec.name for spec in self.facts.with_role(Role.INPUT, Role.PARAMETER, Role.BUFFER)}
            what = "has no elements" if name in given else "is the result of no call"
            raise Unsupported(None, f"the value {name!r} {what}")
        return self.places[name].tensor()

    def _node(self, node: GraphNode) -> None:
        given = frozenset(spec.dtype.value for spec in self.facts.with_role(Role.INPUT, Role.PARAMETER, Role.BUFFER))
        call = Call(node, self._value, self.dtypes, given)
        if any(0 in shape for shape in node.shapes) and prod(node.shapes[0]) == 0:
            for name in node.results:
                self._add(name, Place(Tensor(tuple(node.shapes[0]), node.dtypes[0].removeprefix("torch."))))
            return
        if is_in_place(node.op) and is_view(out_of_place(node.op)):
            self._viewed_in_place(call)
            return
        if is_in_place(node.op) or node.op == "aten.copy_.default":
            self._written(call)
            return
        found = views(call, node.op)
        if found is not None:
            base = self.places[str(reference(node.args[0]))]
            for name, view in zip(node.results, found, strict=True):
                self._add(name, Place(base=base, view=view))
            return
        made = self._made(call, node.op)
        for name, tensor in zip(node.results, made, strict=False):
            self._add(name, Place(rounded_where_cast(call, tensor)))
        self.left_out |= dict.fromkeys(node.results[len(made) :], node)
        for name, tensor in call.updates.items():
            self.places[name].write(call, tensor)

    def _viewed_in_place(self, call: Call) -> None:
        """Follow a call that makes its first argument a view of what it was; names of aliases change with it."""
        before = self.places[str(reference(call.node.args[0]))]
        view = (views(call, call.op) or [])[0]
        after = Place(base=before, view=view)
        others = [place for place in self.order if place is not before and place.root is before.root]
        self.order[self.order.index(before)] = after
        for name, place in zip(call.node.results, [after, *others], strict=False):
            self.places[name] = place

    def _made(self, call: Call, op: str) -> list[Tensor]:
        unknown = next((dtype for dtype in call.node.dtypes if dtype.removeprefix("torch.") in _NOT_HELD), None)
        if unknown is not None and op not in _REASONS:
            self._refuse_complex(call.node, unknown.removeprefix("torch."))
        if op in MAKERS:
            made = MAKERS[op](call)
            call.refuse_unread()
            return made if isinstance(made, list) else [made]
        if "." in op:
            tensor = lower(call, op)
            if tensor is not None:
                return [tensor]
        raise Unsupported(call.node, why_not(op))

    def _refuse_complex(self, node: GraphNode, kind: str) -> NoReturn:
        """Refuse a call that makes complex numbers; a view that the tracer made for one call is that call's."""
        users = [user for user in self.facts.graph.nodes if set(node.results) & set(references(user))]
        theirs = node.op == "aten.view_as_complex.default" and len(users) == 1
        raise Unsupported(
            users[0] if theirs else node,
            f"it {'is given' if theirs else 'makes'} {kind}, and is not among the calls that are followed by real and"
            " imaginary parts; torch.view_as_real gives these, for calls on real tensors",
        )

    def _written(self, call: Call) -> None:
        """Follow a call that writes to its first argument, and rename the objects that share its storage."""
        node = call.node
        target = self.places[str(reference(node.args[0]))]
        old = target.tensor()
        if node.op == "aten.copy_.default":
            source = call.tensor(1)
            new: Tensor = Map(old.shape, source.dtype, lambda index: read(source, index))
        else:
            (new, *_) = self._made(call, out_of_place(node.op))
        if new.shape != old.shape:
            call.refuse("it writes a tensor of another shape")
        same = new.dtype == old.dtype and not node.op.startswith("aten.copy_")
        target.write(call, rounded_where_cast(call, new if same else converted(new, old.dtype)))
        others = [place for place in self.order if place is not target and place.root is target.root]
        for name, place in zip(node.results, [target, *others], strict=False):
            self.places[name] = place


def why_not(op: str) -> str:
    """Return the reason for refusing a call that there is no lowering for."""
    instead = _REASONS.get(out_of_place(op), _INTO_ANOTHER if op.endswith((".out", "_out")) else None)
    return _UNKNOWN_CALL if instead is None else f"{_UNKNOWN_CALL}: {instead}"


def lowered(facts: ProblemFacts) -> list[Tensor]:
    """Return the outputs' tensors; raises Unsupported naming the call."""
    return Lowering(facts).run()


def supported() -> frozenset[str]:
    """Return every call that there is a lowering for."""
    return frozenset({*MAKERS, *FORMULAS, *VIEWS, *(f"aten.{name}.default" for name in (*BITS_AND_TRUTHS, *SHIFTS))})


__all__ = ["UNFORESEEN", "Unsupported", "lowered", "supported", "why_not"]
