"""One format for every number, time and state on the pages. Formats only; chooses nothing to show."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from cupilot.domain.evaluation import Interval

NONE = "-"
_TIMES = ((1e6, "s"), (1e3, "ms"))
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
TONES = {
    "succeeded": "good",
    "finished": "good",
    "audited": "good",
    "reproduced": "good",
    "live": "good",
    "answered": "good",
    "failed": "bad",
    "rejected": "bad",
    "silent": "bad",
    "unhealthy": "bad",
    "lost": "bad",
    "quarantined": "warn",
    "budget_exhausted": "warn",
    "paused": "warn",
    "cancelling": "warn",
    "drained": "warn",
    "preparing": "busy",
    "evolving": "busy",
    "running": "busy",
    "active": "busy",
    "started": "busy",
}
"""Colour class of a state, a verdict or a worker's health; anything else is neutral."""


def number(value: float | None) -> str:
    """Return a plain number: four significant digits, thousands apart; in scientific notation only below 0.0001."""
    if value is None:
        return NONE
    size = abs(value)
    if value == int(value) or size >= 1_000:
        return f"{value:,.0f}"
    if size >= 1:
        return f"{value:,.4g}"
    return f"{value:.2e}" if size < 1e-4 else f"{value:.3g}"


def micros(value: float | None) -> str:
    """Return a time that is given in microseconds, in the unit that suits it."""
    if value is None:
        return NONE
    rounded = _rounded(value)
    scale, unit = next(((scale, unit) for scale, unit in _TIMES if rounded >= scale), (1.0, "us"))
    return f"{value / scale:.3g} {unit}" if rounded / scale < 1_000 else f"{value / scale:,.0f} {unit}"


def seconds(value: float | None) -> str:
    """Return a duration in its two largest units."""
    if value is None:
        return NONE
    rounded = _rounded(value)
    if rounded < 60:
        return f"{value:.3g} s" if rounded >= 1 or not value else f"{value * 1e3:.3g} ms"
    parts: list[str] = []
    left = round(value)
    for size, unit in _STEPS:
        if left >= size and len(parts) < 2:
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts)


def times(value: float | None) -> str:
    """Return a speedup."""
    return NONE if value is None else f"{value:.2f}x"


def interval(value: Interval | None) -> Markup | str:
    """Return a speedup with its 95 % interval."""
    if value is None:
        return NONE
    text = '<span class="figure">{}</span> <span class="range" title="95 % interval">{} to {}</span>'
    return Markup(text).format(times(value.median), f"{value.low:.2f}", f"{value.high:.2f}")


def percent(value: float | None) -> str:
    """Return a share of one."""
    return NONE if value is None else f"{100 * value:.3g} %"


def money(value: float | None) -> str:
    """Return US dollars."""
    if value is None:
        return NONE
    return f"${value:,.4f}" if 0 < value < 0.1 else f"${value:,.2f}"


def prefixed(value: float) -> str:
    """Return a large number with its SI prefix, e.g. ``3.35T``."""
    rounded = _rounded(value)
    scale, prefix = next(((scale, prefix) for scale, prefix in _PREFIXES if rounded >= scale), (1.0, ""))
    return f"{value / scale:.3g}{prefix}"


def _rounded(value: float) -> float:
    """Return a number as it is shown, which decides on its unit: 999.7 us are 1 ms."""
    return float(f"{value:.3g}")


def moment(value: datetime | None) -> str:
    """Return an exact time."""
    return NONE if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def ago(value: datetime | None, now: datetime | None = None) -> Markup | str:
    """Return how long ago a time was, with the exact one for whoever points at it; the script keeps it fresh."""
    if value is None:
        return NONE
    passed = ((now or datetime.now(UTC)) - value).total_seconds()
    size, unit = next(((size, unit) for size, unit in _STEPS if abs(passed) >= size), (1, "s"))
    amount = f"{int(abs(passed) // size)} {unit}"
    text = f"{amount} ago" if passed >= 0 else f"in {amount}"
    return Markup('<time datetime="{}" title="{}" data-ago>{}</time>').format(value.isoformat(), moment(value), text)


def badge(state: Any) -> Markup:
    """Return a state or verdict as a badge; its words stay, so that colour is never all that tells it."""
    text = str(getattr(state, "value", state))
    return Markup('<span class="badge {}">{}</span>').format(TONES.get(text, "neutral"), text.replace("_", " "))
