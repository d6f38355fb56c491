"""Notes kept of a candidate beside its strategy and kernel: how it was proposed, and what its writer said."""

from __future__ import annotations

from pydantic import Field

from cupilot.domain.evolution.population import Operator, Proposal
from cupilot.domain.value import Value

MAX_INSIGHT = 4_000
"""Characters of an insight; the published prompts ask for a few sentences."""


class AgentBook(Value):
    """The book of a candidate that is worked on with tools: what it has used, and what its agent wrote down."""

    tool_calls: int = 0
    tokens: int = 0
    """Of prompts and answers."""
    note: str = Field(default="", max_length=MAX_INSIGHT)
    """The agent's own, from one turn to the next."""


class Notes(Value):
    """Notes on a candidate, added stage by stage; a field without a note is empty."""

    best: str | None = None
    """See :class:`cupilot.domain.evolution.population.Proposal`, as are the next three."""
    inspirations: tuple[str, ...] = ()
    place: int = 0
    places: int = 1
    name: str = Field(default="", max_length=200)
    """Name that its writer gave it."""
    insight: str = Field(default="", max_length=MAX_INSIGHT)
    """Why its writer thinks it is fast (EvoEngineer's I3); shown to later writers where the method says so."""
    functional: str = ""
    """The reference as a pure function, where it was converted."""
    conversions: tuple[tuple[str, str], ...] = ()
    """Conversions that were wrong, each with what was wrong with it, oldest first."""
    repairs: tuple[str, ...] = ()
    """Changes that the Revisor reported, one entry a round: repairs, then performance revisions."""

    book: AgentBook = AgentBook()

    @classmethod
    def of(cls, proposal: Proposal) -> Notes:
        """Return the notes of a candidate that was just proposed."""
        shared = ("best", "inspirations", "place", "places")
        return cls(**{name: getattr(proposal, name) for name in shared})

    def change(self, round_number: int, operator: Operator) -> str:
        """Return what the Revisor reported of the kernel of a round, from 0; empty for one that it did not make.

        A mutation's first kernel is a revision already.
        """
        place = round_number if operator is Operator.MUTATION else round_number - 1
        return self.repairs[place] if 0 <= place < len(self.repairs) else ""
