"""Entries, questions and answers of the strategy pool. :mod:`cupilot.storage.pool` stores and searches them."""

from __future__ import annotations

from math import exp

from cupilot.domain.attribution import Credit
from cupilot.domain.evaluation import Evaluation, FailureKind, Verdict
from cupilot.domain.imported import KernelKind
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import NumericsPolicy, ProblemFacts, Role, Target
from cupilot.domain.roofline import Zone
from cupilot.domain.strategy import Strategy
from cupilot.domain.technique import catalogue
from cupilot.domain.value import Moment, Value, Vocabulary

FAILURE_GAIN = -0.7
"""A failure is as bad as a kernel of half the baseline's speed (ln 0.5)."""


class Sharing(Vocabulary):
    """Audience of an entry. One on a problem that is not built-in is private, whatever its team chose."""

    PRIVATE = "private"
    """The team that paid for it."""
    ANONYMOUS = "anonymous"
    """Every team of the cluster, without name, hash, prose or origin of the problem, and without invented techniques:
    their names and meanings are prose."""
    OPEN = "open"
    """Every team, with the problem's built-in name and the strategy's prose, and on leaderboards; never sources."""

    @classmethod
    def most_private(cls, *wanted: Sharing) -> Sharing:
        """Return the one with the smallest audience."""
        return min(wanted, key=list(cls).index)


class Provenance(Value):
    """Source of an entry."""

    job: str | None = None
    candidate: str | None = None
    method: str | None = None
    agents: str | None = None
    imported_from: str | None = None
    """Label of the import; None for what this cluster measured itself."""
    imported_id: str | None = None
    """Its id where it was measured."""
    kernel_kind: KernelKind = KernelKind.PLANNED
    """``imported``: a file that somebody had, whose techniques are read from its text only."""
    with_kernel: bool = False
    """Of an imported entry: whether its kernel's source came with it."""


class Context(Value):
    """Conditions of a measurement beside the kernel."""

    device: str | None = None
    driver: str | None = None
    cuda: str | None = None
    torch: str | None = None


class PoolEntry(Value):
    """One evaluated kernel, win or failure, as later jobs may learn from it."""

    id: str
    """Evaluation id: one entry an evaluation."""
    team: str
    """Entries are private to the team that paid for them."""
    problem_name: str
    problem_hash: str
    op_class: str
    operators: tuple[str, ...]
    """ATen operators of the reference, in order: what the embedding is made of, together with the name."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Shapes of inputs and parameters, in order."""
    target: Target
    policy: NumericsPolicy
    dtype: str
    device_class: str
    zone: Zone
    """Zone of the problem on this device's roofline."""
    strategy: Strategy
    """After alignment: what the code really does."""
    asked: Strategy | None = None
    """Before alignment, where that differs."""
    kernel_hash: str | None
    verdict: Verdict
    speedup: float | None
    """Over eager; only of a kernel that counts."""
    failure: FailureKind | None
    created_at: str
    """ISO 8601, UTC."""
    parent_hash: str | None = None
    """The kernel it was made from, of a crossover."""
    zone_after: Zone | None = None
    """Zone that the evaluation found, if other than ``zone``."""
    context: Context = Context()
    provenance: Provenance = Provenance()
    credits: tuple[Credit, ...] = ()
    """Measured contribution of each technique, of a winner whose job attributed its gain."""

    @property
    def informative(self) -> bool:
        """True if it says anything about its strategy: it did not fail for reasons other than the kernel."""
        return self.failure not in (FailureKind.INFRASTRUCTURE, FailureKind.INVALID_PROBLEM)

    @property
    def measured_here(self) -> bool:
        """True if this cluster measured it; an imported gain is a claim."""
        return self.provenance.imported_from is None

    @property
    def evidence(self) -> bool:
        """True if it counts for its techniques: measured here, and its machine code was checked for them."""
        return self.measured_here and self.provenance.kernel_kind is KernelKind.PLANNED

    def shown_to_others(self, sharing: Sharing, name: str) -> PoolEntry:
        """Return the entry as other teams may see it; ``name`` is the one that its built-in problem ships with."""
        kind = self.provenance.kernel_kind
        changes = {"id": self.id, "team": ELSEWHERE, "provenance": Provenance(kernel_kind=kind), "asked": None}
        if sharing is Sharing.OPEN:
            method = Provenance(method=self.provenance.method, kernel_kind=kind)
            return self.model_copy(update=changes | {"problem_name": name, "provenance": method})
        hidden = {
            "problem_name": ANONYMOUS_NAME,
            "problem_hash": "",
            "kernel_hash": None,
            "parent_hash": None,
            "strategy": Strategy(techniques=tuple(use for use in self.strategy.techniques if use.id in catalogue())),
            "credits": tuple(
                credit.model_copy(update={"note": None})
                for credit in self.credits
                if {credit.technique, *credit.removed} <= {technique.id for technique in catalogue()}
            ),
            "context": Context(driver=self.context.driver, cuda=self.context.cuda, torch=self.context.torch),
        }
        return self.model_copy(update=changes | hidden)


COMPUTATIONS = (
    ("softmax", "norm", "reduction", "loss", "scan"),
    ("softmax", "attention"),
    ("matmul", "attention", "conv"),
    ("conv", "pool"),
)
"""Operator classes by the shape of their computation: passes over rows; rows between products; products of tiles that
are read again and again; windows that overlap. What helps one of a group is worth trying for the others."""


def related_classes(op_class: str) -> tuple[str, ...]:
    """Return the operator classes that share a shape of computation with this one, itself first."""
    sharing = [other for group in COMPUTATIONS if op_class in group for other in group]
    return tuple(dict.fromkeys([op_class, *sharing]))


ELSEWHERE = "another team"
ANONYMOUS_NAME = "shared problem"


class MatchReasons(Value):
    """Reasons why an entry was chosen, in numbers."""

    embedding: float | None = None
    """Cosine of the references' embeddings, 0 to 1; None where the index did not answer or does not know it yet."""
    lexical: float = 0.0
    """BM25 of the references' words over that of the question itself, 0 to 1."""
    tries: int = 0
    """Evaluations of the strategy on similar problems, by this cluster."""
    wins: int = 0
    """Those of them that count."""
    failures: dict[str, int] = {}
    """The others, by kind."""
    imported: int = 0
    """Evaluations that other clusters claim; never among ``tries``."""
    shared: int = 0
    """Those of ``tries`` that other teams made."""
    weight: float = 0.0
    """Evidence in evaluations: similar, recent ones on this class of device count as one, others as less."""
    mean_gain: float = 0.0
    """Weighted mean of the log speedups; a failure counts as a kernel of half the baseline's speed."""
    shrunk_gain: float = 0.0
    """The same, pulled towards the neighbourhood's mean the more, the less evidence there is (empirical Bayes)."""

    @property
    def warning(self) -> str | None:
        """Summary of failures, e.g. ``failed 3 of 4 times here: compile_error``; None where nothing failed."""
        failed = self.tries - self.wins
        if not failed:
            return None
        kinds = ", ".join(sorted(self.failures, key=lambda kind: (-self.failures[kind], kind)))
        return f"failed {failed} of {self.tries} times here{': ' + kinds if kinds else ''}"

    def words(self) -> str:
        """Describe it for a person or a model."""
        embedding = "unknown" if self.embedding is None else f"{self.embedding:.2f}"
        parts = [
            f"similarity {embedding} by meaning, {self.lexical:.2f} by words",
            f"{self.wins} of {self.tries} evaluations count",
            f"typically {exp(self.mean_gain):.2f}x, {exp(self.shrunk_gain):.2f}x after shrinkage",
        ]
        parts += [f"{self.shared} from other teams"] if self.shared else []
        parts += [f"{self.imported} imported, which proves little"] if self.imported else []
        parts += [self.warning] if self.warning else []
        return "; ".join(parts)


class PoolMatch(Value):
    """An entry that was retrieved for a problem."""

    entry: PoolEntry
    """The one that stands for its strategy."""
    similarity: float
    """Of the references, 0 to 1: the mean of both similarities."""
    score: float
    """Ranking key of entries: the shrunken gain less its standard deviation."""
    why: MatchReasons = MatchReasons()


class Lesson(Value):
    """A kernel of an earlier job before and after a change, with what that was worth."""

    problem: str
    """Name of the problem that it was for."""
    strategy: Strategy
    """Of the kernel after the change."""
    change: str
    """The change, in a sentence."""
    before: Kernel | None
    """None where the kernel was written from scratch, or its source is gone."""
    after: Kernel
    speedup_before: float | None
    """Over PyTorch eager, like the other; None where there is none before, or it does not count."""
    speedup: float


class TechniqueAdvice(Value):
    """Advice on a technique from results on similar problems."""

    technique: str
    score: float
    """Lower bound of the log speedup of strategies with it."""
    why: MatchReasons


class PoolQuestion(Value):
    """Question to the pool."""

    name: str = ""
    op_class: str
    operators: tuple[str, ...] = ()
    dtype: str = "float32"
    shapes: tuple[tuple[int, ...], ...] = ()
    target: Target
    policy: NumericsPolicy = NumericsPolicy.FP32
    zone: Zone | None = None
    """Zone whose entries are used if the family and those related to it have none."""
    device_class: str | None = None
    """Evidence from other classes counts half; None counts all alike."""
    limit: int = 8
    before: Moment | None = None
    """Only what the pool knew at that time, weighed as of then."""
    without_problem: str | None = None
    """Hash of a problem whose entries are not to be used: for judging the retrieval itself."""


class PoolAnswer(Value):
    """Answer of the pool."""

    matches: tuple[PoolMatch, ...] = ()
    techniques: tuple[TechniqueAdvice, ...] = ()
    left_out: dict[str, str] = {}
    """Entries that were near, but whose strategy cannot be applied here, with the reason."""
    notes: tuple[str, ...] = ()


def question_of(
    facts: ProblemFacts, name: str, *, target: Target, zone: Zone, device_class: str, limit: int = 8
) -> PoolQuestion:
    """Return the question for a prepared problem."""
    inputs = facts.with_role(Role.INPUT) or facts.tensors
    return PoolQuestion(
        name=name,
        op_class=facts.op_class,
        operators=operators(facts),
        dtype=inputs[0].dtype.value,
        shapes=shapes(facts),
        target=target,
        policy=facts.policy,
        zone=zone,
        device_class=device_class,
        limit=limit,
    )


def unfit(strategy: Strategy, question: PoolQuestion) -> str | None:
    """Return why the catalogue forbids a strategy for what is asked about; None where it does not."""
    for use in strategy.techniques:
        technique = catalogue().get(use.id)
        if technique is None:
            continue
        if question.target not in technique.targets:
            return f"{use.id} is not for target {question.target.value}"
        if technique.policies and question.policy.value not in technique.policies:
            return f"{use.id} is not allowed under policy {question.policy.value}"
        if technique.op_classes and question.op_class not in technique.op_classes:
            return f"{use.id} is not for operators of class {question.op_class}"
    return None


def operators(facts: ProblemFacts) -> tuple[str, ...]:
    """Return the reference's ATen operators, in order of execution."""
    return tuple(node.op for node in facts.graph.nodes)


def shapes(facts: ProblemFacts) -> tuple[tuple[int, ...], ...]:
    """Return shapes of the reference's inputs and parameters, in order."""
    return tuple(spec.shape for spec in facts.with_role(Role.INPUT, Role.PARAMETER))


def entry_of(
    evaluation: Evaluation,
    *,
    id: str,
    team: str,
    problem_name: str,
    facts: ProblemFacts,
    target: Target,
    device_class: str,
    zone: Zone,
    strategy: Strategy,
    created_at: str,
    provenance: Provenance | None = None,
    parent_hash: str | None = None,
) -> PoolEntry:
    """Return what the pool remembers of an evaluation; ``strategy`` after alignment, where it was aligned."""
    inputs = facts.with_role(Role.INPUT) or facts.tensors
    environment, placement = evaluation.environment, evaluation.placement
    return PoolEntry(
        id=id,
        team=team,
        problem_name=problem_name,
        problem_hash=evaluation.problem_hash,
        op_class=facts.op_class,
        operators=operators(facts),
        shapes=shapes(facts),
        target=target,
        policy=facts.policy,
        dtype=inputs[0].dtype.value,
        device_class=device_class,
        zone=zone,
        strategy=strategy,
        kernel_hash=evaluation.kernel_hash,
        verdict=evaluation.verdict,
        speedup=evaluation.speedup,
        failure=evaluation.failure.kind if evaluation.failure else None,
        created_at=created_at,
        parent_hash=parent_hash,
        zone_after=placement.zone if placement and placement.zone is not zone else None,
        context=Context(
            device=environment.device.name, driver=environment.driver, cuda=environment.cuda, torch=environment.torch
        )
        if environment
        else Context(),
        provenance=provenance or Provenance(),
    )
