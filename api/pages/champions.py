"""Pages of the champions that ship with the release: evidence, source, download, and the way to judge one here."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api.dependencies import Transaction
from api.pages.visits import HOME, Actor, PageRoute, Visitor, page, seen
from cupilot.domain.champions import Champion, by_kernel
from cupilot.domain.evaluation import Comparison
from cupilot.domain.people import Role
from cupilot.domain.problem import Target
from cupilot.exports import ExportFormat, Winner, archive, refusals
from cupilot.jobs.champions import judge
from cupilot.reports.champion import report_of
from cupilot.reports.job import BASELINE_NAMES, bound_words

router = APIRouter(prefix=f"{HOME}/champions", route_class=PageRoute, include_in_schema=False)


@router.get("/{kernel}")
def champion(caller: Visitor, kernel: str) -> Response:
    """Show a champion: its speed with the evidence, strategy and source, and its forms of export."""
    found = by_kernel(kernel)
    report = report_of(found)
    return page(
        "champion",
        caller,
        champion=found,
        report=report,
        fastest=over_fastest(found),
        names=BASELINE_NAMES,
        bound=bound_words(found.evaluation),
        exports=refusals(Winner.of(report)),
        may_judge=caller.acts_as.rank >= Role.MEMBER.rank,
        language="cuda" if found.target is Target.CUDA else "c++",
    )


@router.get("/{kernel}/exports/{form}")
def export(caller: Visitor, kernel: str, form: ExportFormat) -> Response:  # noqa: ARG001 - checked
    """Download a champion in one of the forms of export."""
    found = by_kernel(kernel)
    name = f"cupilot-{found.problem}-{found.policy.value}-{form.value}.zip"
    return Response(
        archive(Winner.of(report_of(found)), form),
        media_type="application/zip",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


@router.post("/{kernel}/judge")
def judge_here(session: Transaction, caller: Actor, kernel: str) -> Response:
    """Judge a champion on a device of this service, and show the job that does."""
    made, _ = judge(session, caller, kernel, None)
    return seen(f"/jobs/{made.id}")


def over_fastest(champion: Champion) -> Comparison:
    """Return the comparison with the fastest baseline: the one that leaves the smallest speedup."""
    return min(champion.evaluation.comparisons, key=lambda comparison: comparison.speedup.median)
