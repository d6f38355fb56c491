"""Calls of the client about experiments: plan, make, follow, list, cancel, report."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from cupilot import schemas
from cupilot.client.definitions import call, script, stream
from cupilot.client.jobs import LONGEST_PAGE
from cupilot.client.protocol import Call, Pause, Script, Stream, all_items, path

if TYPE_CHECKING:
    from cupilot.schemas import (
        ExperimentJob,
        ExperimentJobPage,
        ExperimentPage,
        ExperimentPlan,
        ExperimentReport,
        ExperimentRequest,
        ExperimentSummary,
        ExperimentView,
    )

ExperimentId = uuid.UUID | str
DRAWING_SECONDS = 120.0


class ExperimentCalls:
    """``/v1/experiments``."""

    @call
    def plan_experiment(self, request: ExperimentRequest) -> Call[ExperimentPlan]:
        """Plan an experiment without starting it: how many jobs, and what they can use at most."""
        return Call(schemas.ExperimentPlan, "POST", "/v1/experiments/plan", body=request, repeatable=True)

    @call
    def submit_experiment(
        self, request: ExperimentRequest, *, idempotency_key: str | None = None
    ) -> Call[ExperimentView]:
        """Start all jobs of a matrix. A key is made where none is given, so that repeating never starts more."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return Call(schemas.ExperimentView, "POST", "/v1/experiments", body=request, headers=headers)

    @call
    def experiment(self, experiment: ExperimentId) -> Call[ExperimentView]:
        """Return the state of an experiment."""
        return Call(schemas.ExperimentView, "GET", path("v1", "experiments", experiment))

    @call
    def experiments(self, *, cursor: str | None = None, limit: int = 50) -> Call[ExperimentPage]:
        """Return a page of the team's experiments, newest first."""
        return Call(schemas.ExperimentPage, "GET", "/v1/experiments", params={"cursor": cursor, "limit": limit})

    @stream
    def all_experiments(self) -> Stream[ExperimentSummary]:
        """Return all of the team's experiments, newest first, fetched a page at a time."""
        return all_items(
            lambda cursor: ExperimentCalls.experiments.ask(self, cursor=cursor, limit=LONGEST_PAGE),
            lambda page: page.next_cursor,
        )

    @call
    def experiment_jobs(
        self, experiment: ExperimentId, *, arm: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> Call[ExperimentJobPage]:
        """Return a page of an experiment's jobs, in the order of work."""
        parameters = {"arm": arm, "cursor": cursor, "limit": limit}
        return Call(schemas.ExperimentJobPage, "GET", path("v1", "experiments", experiment, "jobs"), params=parameters)

    @stream
    def all_experiment_jobs(self, experiment: ExperimentId, *, arm: str | None = None) -> Stream[ExperimentJob]:
        """Return all of an experiment's jobs in the order of work, fetched a page at a time."""
        return all_items(
            lambda cursor: ExperimentCalls.experiment_jobs.ask(
                self, experiment, arm=arm, cursor=cursor, limit=LONGEST_PAGE
            ),
            lambda page: page.next_cursor,
        )

    @call
    def cancel_experiment(self, experiment: ExperimentId) -> Call[ExperimentView]:
        """Stop every job that has not ended; ApiError with code ``conflict`` where all have ended by themselves."""
        return Call(schemas.ExperimentView, "POST", path("v1", "experiments", experiment, "cancel"), repeatable=True)

    @call
    def experiment_report(self, experiment: ExperimentId) -> Call[ExperimentReport]:
        """Return what can be said about the arms, so far."""
        return Call(schemas.ExperimentReport, "GET", path("v1", "experiments", experiment, "report"))

    @call
    def experiment_table(self, experiment: ExperimentId, table: str) -> Call[bytes]:
        """Return a table of the report as CSV: arms, cells, comparisons, convergence or jobs."""
        return Call(bytes, "GET", path("v1", "experiments", experiment, "report", "tables", table))

    @call
    def experiment_figure(self, experiment: ExperimentId, figure: str, *, format: str = "svg") -> Call[bytes]:
        """Return a figure of the report: convergence, speedups, comparisons or outcomes; as ``svg`` or ``png``."""
        where = path("v1", "experiments", experiment, "report", "figures", figure)
        return Call(bytes, "GET", where, params={"format": format}, timeout=DRAWING_SECONDS)

    @call
    def experiment_download(self, experiment: ExperimentId) -> Call[bytes]:
        """Return the report as a zip: JSON, Markdown, every table as CSV, every figure as SVG and PNG."""
        where = path("v1", "experiments", experiment, "report", "download")
        return Call(bytes, "GET", where, timeout=DRAWING_SECONDS)

    @script
    def wait_for_experiment(
        self,
        experiment: ExperimentId,
        on_update: Callable[[ExperimentView], None] | None = None,
        *,
        timeout: float | None = None,
    ) -> Script[ExperimentView]:
        """Wait until every job is final; raise TimeoutError after ``timeout`` seconds (the jobs go on)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            view = yield from ExperimentCalls.experiment.ask(self, experiment)
            if on_update is not None:
                on_update(view)
            if view.final:
                return view
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"experiment {experiment} is not final after {timeout} s")
            yield Pause(view.retry_after_seconds or 1.0)
