"""Messages between judge and reference process: questions about a reference, and their answers.

The tensors of a message lie in memory that the judge owns; the message holds their layouts as JSON, whose form and size
:mod:`gpu_worker.judge.exchange` checks against the memory that there is. The user's code may have taken the reference
process over, so the judge believes nothing of an answer but its form.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, TypeAdapter

from cupilot.domain.problem import NumericsPolicy
from gpu_worker.channel import finite

Layouts: TypeAlias = list[Any]
"""Of the tensors that come with a message."""

Use: TypeAlias = Literal["given", "results", "slots"]
"""Of memory of the judge's: for tensors to the reference, for tensors from it, for the slots that it is timed on."""

Ties: TypeAlias = Literal["first", "last"]
"""Which of equal elements comes first."""

Side: TypeAlias = Literal["up", "down"]
"""Neighbour to which values are rounded that lie next to a tie."""


class Message(BaseModel):
    """A question or an answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def as_json(self) -> dict[str, Any]:
        """Return the message for the channel."""
        data: dict[str, Any] = finite(self.model_dump(mode="json"))
        return data


# Questions


class Question(Message):
    """A question of the judge; ``op`` names it."""

    again: bool = False
    """True if it is asked for the second time, after the judge has released the memory that it can spare."""


class Begin(Question):
    """Answer once all is imported."""

    op: Literal["begin"] = "begin"
    sparing: StrictBool = False
    """True if memory that is not in use is given back at once."""


class Load(Question):
    """Run a problem file and construct its model."""

    op: Literal["load"] = "load"
    source: str
    policy: NumericsPolicy
    seed: int


class Trace(Question):
    """Run and trace forward once; answered by :class:`Facts`."""

    op: Literal["trace"] = "trace"
    problem_hash: str


class CheckScalars(Question):
    """Refuse a model that draws numbers at random which kernels know as constants."""

    op: Literal["check_scalars"] = "check_scalars"


class Describe(Question):
    """Describe how an imported file is called in the reference's place; answered by :class:`Described`."""

    op: Literal["describe"] = "describe"


class Draw(Question):
    """Draw inputs; answered by :class:`Tensors`."""

    op: Literal["draw"] = "draw"
    seed: int


class Run(Question):
    """Run forward under the policy; answered by :class:`Tensors`."""

    op: Literal["run"] = "run"
    given: Layouts
    seed: int | None
    """For the random numbers that forward draws, if it does."""


class RunExact(Question):
    """Run forward in float64; answered by :class:`ExactTensors`."""

    op: Literal["run_exact"] = "run_exact"
    given: Layouts
    rounded: bool
    """True if large results are rounded to float32."""
    nudge: float = 0.0
    """Share of itself by which each given value is moved, up or down at random, once it is in float64. It is done over
    there, for inputs in float64 would take twice the memory, three times over."""
    nudge_seed: int = 0
    nudge_of_largest: bool = False
    """True if it is moved by that share of its tensor's largest value."""
    ties: Ties | None = None
    """Which of equal elements is selected and sorted first; None: any, as PyTorch does it."""
    near_ties: Side | None = None
    """Neighbour to which values next to a tie are rounded; None: each to its own."""


class RunSelecting(Question):
    """As :class:`RunExact`, rounded; answered by :class:`SelectedTensors`."""

    op: Literal["run_selecting"] = "run_selecting"
    given: Layouts


class Reads(Question):
    """Mark the elements of named tensors that forward reads; answered by :class:`Tensors`."""

    op: Literal["reads"] = "reads"
    given: Layouts
    names: list[str]


class OperatorTime(Question):
    """Time forward's operators, without what Python does between them; answered by :class:`Timed`."""

    op: Literal["operator_time"] = "operator_time"
    given: Layouts


class Settle(Question):
    """Give parameters and buffers their first values again; answered by :class:`Settled`."""

    op: Literal["settle"] = "settle"
    notice: bool
    """True if to look first whether calls have changed them."""


class Assume(Question):
    """Give the module's parameters and buffers these values, flat storages in the order of the specs."""

    op: Literal["assume"] = "assume"
    given: Layouts


class Attach(Question):
    """Map memory of the judge's, whose descriptors come along, in the place of an earlier one."""

    op: Literal["attach"] = "attach"
    use: Use
    handle: dict[str, Any]


class Detach(Question):
    """Give back memory of the judge's."""

    op: Literal["detach"] = "detach"
    uses: list[Use]


class Bind(Question):
    """Take these slots: byte offset by name of the tensor."""

    op: Literal["bind"] = "bind"
    slots: list[dict[str, int]]


class Compile(Question):
    """Make ``torch.compile`` of the module a baseline; answered by :class:`Compiled`."""

    op: Literal["compile"] = "compile"
    given: Layouts
    baseline: str
    mode: str
    seconds: int


class Capture(Question):
    """Make a block's calls one graph."""

    op: Literal["capture"] = "capture"
    baseline: str
    order: list[int]


class Block(Question):
    """Call a baseline once for each slot of an order; answered by :class:`Timed`."""

    op: Literal["block"] = "block"
    baseline: str
    order: list[int]


class Replay(Question):
    """Run the graph that was captured last; answered by :class:`Timed`."""

    op: Literal["replay"] = "replay"


class Output(Question):
    """Give the outputs for a slot, not timed; answered by :class:`Tensors`."""

    op: Literal["output"] = "output"
    slot: int


AnyQuestion: TypeAlias = (
    Begin | Load | Trace | CheckScalars | Describe | Draw | Run | RunExact | RunSelecting | Reads | OperatorTime
    | Settle | Assume | Attach | Detach | Bind | Compile | Capture | Block | Replay | Output
)  # fmt: skip
QUESTIONS: TypeAdapter[AnyQuestion] = TypeAdapter(Annotated[AnyQuestion, Field(discriminator="op")])

# Answers


class Answer(Message):
    """A question was answered."""

    ok: Literal[True] = True


class Facts(Answer):
    """Facts of a traced forward pass."""

    facts: dict[str, Any]
    """Of :class:`cupilot.domain.problem.ProblemFacts`; the size of the message bounds it."""


class Described(Answer):
    """A :class:`gpu_worker.signature.Signature` as JSON."""

    signature: dict[str, Any]


class Tensors(Answer):
    """Tensors, in memory."""

    results: Any
    """Their :data:`Layouts`, of any form until :mod:`gpu_worker.judge.exchange` has checked it."""


class ExactTensors(Tensors):
    """Outputs in float64, or in float32 where that cannot be."""

    exact: StrictBool
    short: StrictBool = False
    """True if they are not exact for lack of memory; the next ones may be."""


class Selected(Message):
    """Selection of an output that holds indices; the values that it selects from are among the tensors."""

    dim: StrictInt | None
    keepdim: StrictBool
    distinct: StrictBool
    running: StrictBool
    error: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Largest error of PyTorch's own values, under the policy."""


class SelectedTensors(Tensors):
    """Outputs, and behind them the values that some of them select from."""

    selections: list[Selected | None]
    exact: StrictBool
    short: StrictBool = False
    """As of :class:`ExactTensors`."""


class Settled(Answer):
    """Parameters and buffers have their first values."""

    changes_state: StrictBool


class Compiled(Answer):
    """The baseline is compiled, unless there is a reason why it cannot be."""

    reason: str | None = None


class Timed(Answer):
    """All calls are done."""

    seconds: Annotated[float, Field(strict=True)]
    """By the reference process's own clock."""


class Failed(Message):
    """A question could not be answered."""

    ok: Literal[False] = False
    error: Literal["unusable", "not_portable", "uncapturable", "out_of_memory"]
    message: str
    kind: str | None = None
    """Of a reference that is unusable: a value of :class:`cupilot.domain.evaluation.FailureKind`."""
