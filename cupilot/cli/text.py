"""Format text for terminals: strip control characters from untrusted text, shorten numbers."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cupilot.domain.counted import counted

if TYPE_CHECKING:
    from cupilot.domain.evaluation import Interval
    from cupilot.schemas import EventView, JobView

_SHOWN = ("job.", "generation.", "candidate.", "step.reaped", "step.failed")
_HIDDEN = ("generation.initialised", "candidate.active", "candidate.measured")
"""A line for each candidate when it is done is enough."""
_WORDS = {
    "job.best": "is the best so far",
    "job.evolved": "has ended its search; the best kernel is measured again in fresh processes",
    "candidate.measured": "measured again",
}


def clean(text: object) -> str:
    """Return a text without control and format characters, which could move the cursor."""
    return "".join(
        " " if character in "\n\t" else character
        for character in str(text)
        if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs")
    )


def clean_lines(text: str) -> str:
    """Return a text of several lines without control characters; lines stay, tabs become spaces."""
    return "\n".join(clean(line.expandtabs(4)) for line in text.split("\n"))


def interval(speedup: Interval) -> str:
    """Return a speedup with its 95 % interval, e.g. ``1.84x [1.82, 1.86]``."""
    return f"{speedup.median:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}]"


def seconds(value: float) -> str:
    """Return a duration, e.g. ``42 s`` or ``3 min 05 s``."""
    if round(value) < 100:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def counts(verdicts: Mapping[str, int]) -> str:
    """Return candidates by verdict, the best first, e.g. ``audited 5, rejected 2``."""
    from cupilot.domain.evaluation import Verdict

    order = [verdict.value for verdict in sorted(Verdict, key=lambda verdict: -verdict.rank)]
    ranked = [name for name in order if name in verdicts]
    names = ranked + [name for name in verdicts if name not in ranked]
    return ", ".join(f"{name} {verdicts[name]}" for name in names) or "none measured yet"


def queue_words(position: int) -> str:
    """Return where a job stands in its queue."""
    if position == 0:
        return "next in the queue"
    return f"{counted(position, 'job')} before it"


def way_on(job: JobView) -> str:
    """Return the command that a user goes on with once a job has been followed to its end."""
    if job.best is None:
        return f"no kernel is proven; what to do next: cupilot status {job.id}"
    return f"fetch the result with: cupilot result {job.id}"


def event_line(event: EventView) -> str | None:
    """Return an event in one line; None for one that only tells how work is handed around."""
    data = event.data
    if event.kind.startswith("budget."):
        return _budget_line(event)
    if event.kind == "candidate.credited":
        return _credit_line(event)
    confirmed = event.kind == "candidate.measured" and data.get("purpose") == "confirm"
    if not event.kind.startswith(_SHOWN) or (event.kind in _HIDDEN and not confirmed):
        return None
    subject, _, what = event.kind.partition(".")
    what = _WORDS.get(event.kind, what)
    if event.kind == "job.best":
        subject = "candidate"
    ordinal, number = data.get("ordinal"), data.get("number")
    if isinstance(ordinal, int):
        subject = f"{subject} {ordinal}"
    if isinstance(number, int):
        # People count generations from one, as in "generation 1 of 4".
        subject = f"{subject} {number + 1}"
    parts = [f"{subject} {what}"]
    if data.get("verdict"):
        parts.append(str(data["verdict"]))
    speedup = data.get("speedup")
    if isinstance(speedup, int | float):
        low = data.get("speedup_low")  # kernels are ranked by it
        parts.append(f"{speedup:.2f}x{f' (at least {low:.2f}x)' if isinstance(low, int | float) else ''}")
    parts += [str(data[name]) for name in ("reason", "message") if data.get(name)]
    return clean(": ".join([parts[0], ", ".join(parts[1:])]) if parts[1:] else parts[0])


def _credit_line(event: EventView) -> str | None:
    """Return what a technique is worth to the winner; why one could not be measured is the report's to tell."""
    factor = event.data.get("factor")
    if not isinstance(factor, int | float):
        return None
    return clean(f"{event.data.get('technique')} is worth {factor:.2f}x to the winner")


def _budget_line(event: EventView) -> str:
    name = clean(str(event.data.get("budget", "")).replace("_", " "))
    share, spent, limit = (event.data.get(key) for key in ("share", "spent_usd", "limit_usd"))
    if not isinstance(share, float) or not isinstance(spent, int | float) or not isinstance(limit, int | float):
        return f"{name}: no further model call fits it"
    return f"{name}: {share:.0%} are spent ({spent:.2f} of {limit:.2f} USD)"
