"""Draw a job's family tree as SVG: a column for each generation, a curve from each parent to its child.

Of a large family :func:`notable` chooses who is drawn first.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from markupsafe import Markup

from api.pages.words import times
from cupilot.storage.jobs.members import Member

NODE_WIDTH, NODE_HEIGHT = 96.0, 24.0
COLUMN, ROW = 176.0, 34.0
MARGIN, HEAD = 12.0, 34.0


def notable(candidates: Sequence[Member], most: int, best: int | None) -> list[Member]:
    """Return at most so many: the best and its ancestors, then those that selection kept, then the newest."""
    if len(candidates) <= most:
        return list(candidates)
    known = {candidate.id: candidate for candidate in candidates}
    open_ = [candidate.id for candidate in candidates if candidate.ordinal == best]
    line: dict[UUID, None] = {}
    while open_ and len(line) < most:
        member = open_.pop(0)
        if member in known and member not in line:
            line[member] = None
            open_.extend(known[member].parents)
    newest = list(reversed(candidates))
    others = [member.id for member in newest if member.survives] + [member.id for member in newest]
    chosen = set(list(dict.fromkeys([*line, *others]))[:most])
    return [candidate for candidate in candidates if candidate.id in chosen]


def lineage(candidates: Sequence[Member], base: str, best: int | None = None) -> Markup:
    """Draw the tree; ``base`` is the URL of the candidates' pages, ``best`` the winner's number. Empty without any."""
    places: dict[object, tuple[float, float]] = {}
    rows: dict[int, int] = {}
    columns = {number: column for column, number in enumerate(sorted({member.generation for member in candidates}))}
    for candidate in candidates:
        row = rows.get(candidate.generation, 0)
        rows[candidate.generation] = row + 1
        places[candidate.id] = (MARGIN + columns[candidate.generation] * COLUMN, HEAD + row * ROW)
    if not places:
        return Markup()
    heads = Markup("").join(
        Markup('<text class="tick" x="{}" y="18">generation {}</text>').format(MARGIN + column * COLUMN, number + 1)
        for number, column in columns.items()
    )
    edges = Markup("").join(
        _edge(places[parent], places[candidate.id], f"{candidate.ordinal}")
        for candidate in candidates
        for parent in candidate.parents
        if parent in places
    )
    nodes = Markup("").join(_node(candidate, places[candidate.id], base, best) for candidate in candidates)
    width = max(x for x, _ in places.values()) + NODE_WIDTH + MARGIN
    height = max(y for _, y in places.values()) + NODE_HEIGHT + MARGIN
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" class="tree" role="group" aria-label="Lineage" viewBox="0 0 {} {}"'
        ' width="{}" height="{}">{}{}{}</svg>'
    ).format(width, height, width, height, heads, edges, nodes)


def _edge(parent: tuple[float, float], child: tuple[float, float], of: str) -> Markup:
    """Return a curve from the middle of the parent's right side to the middle of the child's left side."""
    x, y = parent[0] + NODE_WIDTH, parent[1] + NODE_HEIGHT / 2
    to_x, to_y = child[0], child[1] + NODE_HEIGHT / 2
    if to_x <= x:  # within one generation: leave and arrive on the left
        x = parent[0]
        bend = x - 14
        return Markup('<path class="edge" data-of="{}" d="M{} {} C{} {} {} {} {} {}"/>').format(
            of, x, y, bend, y, bend, to_y, to_x, to_y
        )
    middle = (x + to_x) / 2
    return Markup('<path class="edge" data-of="{}" d="M{} {} C{} {} {} {} {} {}"/>').format(
        of, x, y, middle, y, middle, to_y, to_x, to_y
    )


def _node(candidate: Member, place: tuple[float, float], base: str, best: int | None) -> Markup:
    x, y = place
    verdict = candidate.verdict.value if candidate.verdict else "none"
    outcome = candidate.verdict.value if candidate.verdict else candidate.reason or candidate.state
    title = f"candidate {candidate.ordinal}, {candidate.operator}: {outcome}"
    label = f"{candidate.ordinal}"
    if candidate.speedup is not None:
        title += f", {times(candidate.speedup)}"
        label += f" · {times(candidate.speedup)}"
    kept = " kept" if candidate.survives else ""
    winner = " winner" if candidate.ordinal == best else ""
    return Markup(
        '<a href="{}/{}" data-panel aria-label="{}"><title>{}</title>'
        '<rect class="leaf {}{}{}" x="{}" y="{}" width="{}" height="{}" rx="6"/>'
        '<text class="tick middle" x="{}" y="{}">{}</text></a>'
    ).format(
        base,
        candidate.ordinal,
        title,
        title,
        verdict,
        kept,
        winner,
        x,
        y,
        NODE_WIDTH,
        NODE_HEIGHT,
        x + NODE_WIDTH / 2,
        y + NODE_HEIGHT / 2 + 4,
        label,
    )
