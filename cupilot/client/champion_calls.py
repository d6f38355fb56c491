"""Calls of the client about champions: proven kernels that ship with the service's release."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from cupilot import schemas
from cupilot.client.definitions import call
from cupilot.client.protocol import Call, path
from cupilot.domain.problem import NumericsPolicy, Target

if TYPE_CHECKING:
    from cupilot.schemas import ChampionList, JobView, Report


class ChampionCalls:
    """``/v1/champions``."""

    @call
    def champions(
        self,
        problem: str | None = None,
        *,
        target: Target | str | None = None,
        policy: NumericsPolicy | str | None = None,
    ) -> Call[ChampionList]:
        """Return the champions of the service's release, of one problem (a built-in's name, or a hash) where given."""
        parameters = {"problem": problem, "target": target, "policy": policy}
        return Call(schemas.ChampionList, "GET", "/v1/champions", params=parameters)

    @call
    def champion(self, kernel: str) -> Call[Report]:
        """Return a champion with kernel, evidence and reference, by its kernel's hash or the start of it."""
        return Call(schemas.Report, "GET", path("v1", "champions", kernel))

    @call
    def judge_champion(self, kernel: str, *, idempotency_key: str | None = None) -> Call[JobView]:
        """Start a job that judges a champion on a device of the service, and nothing else.

        An idempotency key is made where none is given.
        """
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return Call(schemas.JobView, "POST", path("v1", "champions", kernel, "judge"), headers=headers)
