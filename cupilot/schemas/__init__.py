"""Requests and responses of the REST boundary, shared by the API and the Python client.

Carries data only. Requests refuse unknown fields; responses may grow, so the client ignores fields it does not know
and vocabularies that may grow (states, kinds) are strings here, with their present values in the schema.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cupilot.schemas.audit import AuditEntryView, AuditPage
    from cupilot.schemas.base import ErrorBody, ErrorEnvelope, FieldProblem, Request, Response
    from cupilot.schemas.batches import (
        BatchCounts,
        BatchPage,
        BatchReceipts,
        BatchRequest,
        BatchStepPage,
        BatchStepView,
        BatchView,
        Receipt,
        ReceiptOutcome,
    )
    from cupilot.schemas.calls import CallPage, CallSummary, CallView, Spending, ToolUse, Turn
    from cupilot.schemas.champions import ChampionList, ChampionSummary
    from cupilot.schemas.comparisons import (
        CandidateComparison,
        ChangedTechnique,
        ComparedCandidate,
        Leaderboard,
        LeaderboardEntry,
        LeaderboardList,
        LeaderboardSummary,
        Measurement,
        MeasurementList,
        MetricPair,
        PlanChange,
        StrategyDifference,
    )
    from cupilot.schemas.experiments import (
        ArmInput,
        ArmProgress,
        ArmReport,
        CellReport,
        ComparisonReport,
        ConvergencePoint,
        ExperimentJob,
        ExperimentJobPage,
        ExperimentPage,
        ExperimentPlan,
        ExperimentReport,
        ExperimentRequest,
        ExperimentSummary,
        ExperimentView,
        SpeedSummary,
    )
    from cupilot.schemas.jobs import (
        BestSummary,
        EventPage,
        EventView,
        ImportRequest,
        JobPage,
        JobRequest,
        JobSummary,
        JobView,
        PreparationSummary,
        ProblemInput,
        ProblemRef,
        StateEntry,
    )
    from cupilot.schemas.people import (
        CallerView,
        InvitationAnswer,
        InvitationRequest,
        InvitationView,
        JoinedView,
        KeyList,
        KeyView,
        MemberList,
        MemberRequest,
        MemberView,
        NewKeyView,
        ServiceAccountRequest,
        TeamList,
        TeamView,
        UserPage,
        UserView,
    )
    from cupilot.schemas.plans import JobBound, JobGuess, JobPlan
    from cupilot.schemas.pool import (
        BadLine,
        PoolEntryView,
        PoolImportResult,
        PoolPage,
        PoolSearchRequest,
        PoolSearchResult,
        PoolShareRequest,
        PoolShareResult,
        PoolStatistics,
        TechniqueStatistics,
    )
    from cupilot.schemas.results import (
        CandidatePage,
        CandidateSummary,
        CandidateView,
        ExportList,
        ExportOffer,
        GenerationPoint,
        KernelView,
        LineageEntry,
        Report,
    )
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
    from cupilot.schemas.steering import (
        DirectiveList,
        DirectiveView,
        ForkRequest,
        QuotaView,
        RetryRequest,
    )
    from cupilot.schemas.steps import (
        StepPage,
    )
    from cupilot.schemas.techniques import TechniqueEffect, TechniquePage, TechniqueView
    from cupilot.schemas.webhooks import (
        AttemptView,
        DeliveryDetail,
        DeliveryPage,
        DeliveryView,
        WebhookChange,
        WebhookPage,
        WebhookRequest,
        WebhookView,
        WebhookWithSecret,
    )

_NAMES = {
    "audit": "AuditEntryView AuditPage",
    "base": "ErrorBody ErrorEnvelope FieldProblem Request Response",
    "batches": (
        "BatchCounts BatchPage BatchReceipts BatchRequest BatchStepPage BatchStepView BatchView Receipt ReceiptOutcome"
    ),
    "calls": "CallPage CallSummary CallView Spending ToolUse Turn",
    "champions": "ChampionList ChampionSummary",
    "comparisons": (
        "CandidateComparison ChangedTechnique ComparedCandidate Leaderboard LeaderboardEntry LeaderboardList "
        "LeaderboardSummary Measurement MeasurementList MetricPair PlanChange StrategyDifference"
    ),
    "experiments": (
        "ArmInput ArmProgress ArmReport CellReport ComparisonReport ConvergencePoint ExperimentJob "
        "ExperimentJobPage ExperimentPage ExperimentPlan ExperimentReport ExperimentRequest ExperimentSummary "
        "ExperimentView SpeedSummary"
    ),
    "jobs": (
        "BestSummary EventPage EventView ImportRequest JobPage JobRequest JobSummary JobView "
        "PreparationSummary ProblemInput ProblemRef StateEntry"
    ),
    "people": (
        "CallerView InvitationAnswer InvitationRequest InvitationView JoinedView KeyList KeyView MemberList "
        "MemberRequest MemberView NewKeyView ServiceAccountRequest TeamList TeamView UserPage UserView"
    ),
    "plans": "JobBound JobGuess JobPlan",
    "pool": (
        "BadLine PoolEntryView PoolImportResult PoolPage PoolSearchRequest PoolSearchResult PoolShareRequest "
        "PoolShareResult PoolStatistics TechniqueStatistics"
    ),
    "results": "CandidatePage CandidateSummary CandidateView ExportList ExportOffer GenerationPoint KernelView"
    " LineageEntry Report",
    "service": "ClusterView Health ProblemPage ProblemSummary ProblemView QueueView Readiness VersionView WorkerView",
    "steering": "DirectiveList DirectiveView ForkRequest QuotaView RetryRequest",
    "steps": "StepPage",
    "techniques": "TechniqueEffect TechniquePage TechniqueView",
    "webhooks": (
        "AttemptView DeliveryDetail DeliveryPage DeliveryView WebhookChange WebhookPage WebhookRequest "
        "WebhookView WebhookWithSecret"
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""Module of each name. It is imported when the name is first used, so that a command loads only what it needs."""

__all__ = [
    "ArmInput",
    "ArmProgress",
    "ArmReport",
    "AttemptView",
    "AuditEntryView",
    "AuditPage",
    "BadLine",
    "BatchCounts",
    "BatchPage",
    "BatchReceipts",
    "BatchRequest",
    "BatchStepPage",
    "BatchStepView",
    "BatchView",
    "BestSummary",
    "CallPage",
    "CallSummary",
    "CallView",
    "CallerView",
    "CandidateComparison",
    "CandidatePage",
    "CandidateSummary",
    "CandidateView",
    "CellReport",
    "ChampionList",
    "ChampionSummary",
    "ChangedTechnique",
    "ClusterView",
    "ComparedCandidate",
    "ComparisonReport",
    "ConvergencePoint",
    "DeliveryDetail",
    "DeliveryPage",
    "DeliveryView",
    "DirectiveList",
    "DirectiveView",
    "ErrorBody",
    "ErrorEnvelope",
    "EventPage",
    "EventView",
    "ExperimentJob",
    "ExperimentJobPage",
    "ExperimentPage",
    "ExperimentPlan",
    "ExperimentReport",
    "ExperimentRequest",
    "ExperimentSummary",
    "ExperimentView",
    "ExportList",
    "ExportOffer",
    "FieldProblem",
    "ForkRequest",
    "GenerationPoint",
    "Health",
    "ImportRequest",
    "InvitationAnswer",
    "InvitationRequest",
    "InvitationView",
    "JobBound",
    "JobGuess",
    "JobPage",
    "JobPlan",
    "JobRequest",
    "JobSummary",
    "JobView",
    "JoinedView",
    "KernelView",
    "KeyList",
    "KeyView",
    "Leaderboard",
    "LeaderboardEntry",
    "LeaderboardList",
    "LeaderboardSummary",
    "LineageEntry",
    "Measurement",
    "MeasurementList",
    "MemberList",
    "MemberRequest",
    "MemberView",
    "MetricPair",
    "NewKeyView",
    "PlanChange",
    "PoolEntryView",
    "PoolImportResult",
    "PoolPage",
    "PoolSearchRequest",
    "PoolSearchResult",
    "PoolShareRequest",
    "PoolShareResult",
    "PoolStatistics",
    "PreparationSummary",
    "ProblemInput",
    "ProblemPage",
    "ProblemRef",
    "ProblemSummary",
    "ProblemView",
    "QueueView",
    "QuotaView",
    "Readiness",
    "Receipt",
    "ReceiptOutcome",
    "Report",
    "Request",
    "Response",
    "RetryRequest",
    "ServiceAccountRequest",
    "SpeedSummary",
    "Spending",
    "StateEntry",
    "StepPage",
    "StrategyDifference",
    "TeamList",
    "TeamView",
    "TechniqueEffect",
    "TechniquePage",
    "TechniqueStatistics",
    "TechniqueView",
    "ToolUse",
    "Turn",
    "UserPage",
    "UserView",
    "VersionView",
    "WebhookChange",
    "WebhookPage",
    "WebhookRequest",
    "WebhookView",
    "WebhookWithSecret",
    "WorkerView",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
