"""What crosses the REST boundary: requests and responses, shared by the API and the Python client.

Carries data only. Requests refuse unknown fields; responses may grow, so the client ignores fields it does not know
and vocabularies that may grow (states, kinds) are strings here, with their present values in the schema.
"""

from cupilot.schemas.base import ErrorBody, ErrorEnvelope, FieldProblem, Request, Response
from cupilot.schemas.jobs import (
    BestSummary,
    EventPage,
    EventView,
    JobPage,
    JobRequest,
    JobSummary,
    JobView,
    PreparationSummary,
    ProblemInput,
    ProblemRef,
)
from cupilot.schemas.results import CandidatePage, CandidateSummary, CandidateView, KernelView, LineageEntry, Report
from cupilot.schemas.service import (
    ClusterView,
    Health,
    ProblemPage,
    ProblemSummary,
    ProblemView,
    QueueView,
    Readiness,
    VersionView,
    WorkerView,
)

__all__ = [
    "BestSummary",
    "CandidatePage",
    "CandidateSummary",
    "CandidateView",
    "ClusterView",
    "ErrorBody",
    "ErrorEnvelope",
    "EventPage",
    "EventView",
    "FieldProblem",
    "Health",
    "JobPage",
    "JobRequest",
    "JobSummary",
    "JobView",
    "KernelView",
    "LineageEntry",
    "PreparationSummary",
    "ProblemInput",
    "ProblemPage",
    "ProblemRef",
    "ProblemSummary",
    "ProblemView",
    "QueueView",
    "Readiness",
    "Report",
    "Request",
    "Response",
    "VersionView",
    "WorkerView",
]
