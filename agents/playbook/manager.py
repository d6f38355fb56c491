"""The playbook's SCE Manager: first strategies from pool, ladders and a seeded draw; crossover of two strategies.

The cost model orders the ladder, and keeps back what it predicts to be many times slower until nothing else is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from types import MappingProxyType

from agents.interface import Attempt, Briefing, InitialStrategy, StrategySource
from agents.playbook.forecast import Forecast
from agents.playbook.ladders import ladder, parse
from agents.playbook.prophet import PlaybookProphet
from agents.playbook.search import Space
from agents.playbook.translator import operator_of, template_operator, with_defaults
from cupilot.domain.evaluation import FailureKind
from cupilot.domain.pool import PoolEntry, PoolMatch, operators, shapes
from cupilot.domain.problem import Role, Target
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.domain.technique import catalogue

RANDOM_ATTEMPTS = 40
"""Draws for each wanted strategy before the space counts as exhausted."""
CROSSOVER_ATTEMPTS = 24
SLOW_SHARE = 0.25
"""A strategy that was slower than this share of the best speedup known for the same work is not tried again."""
BASICS_CPU = parse("threads, simd(width=16), polynomial_exp: every core, whole vectors")
"""Techniques of a strategy from the pool in place of those that cannot be applied: it would be scalar code."""
KEEP_FITTER, TAKE_OTHER, PARAMETER_OF_FITTER, MUTATE = 0.85, 0.5, 0.65, 0.35
"""Chances that a child keeps a technique of the fitter parent only, takes one of the other's, has the fitter's value of
a parameter that both set, and is changed beyond its parents."""


class PlaybookManager:
    """Writes strategies without a language model; equal seeds give equal answers."""

    def initial_strategies(
        self,
        briefing: Briefing,
        pool: Sequence[PoolMatch],
        count: int,
        seed: int,
        *,
        taken: Sequence[Strategy] = (),
        seeds: Sequence[Attempt] = (),  # noqa: ARG002 - a template begins from nothing but the strategy
        outcomes: Mapping[str, str] = MappingProxyType({}),  # noqa: ARG002 - which are taken is enough
    ) -> list[InitialStrategy]:
        """Return up to ``count`` renderable strategies with different signatures; raises NoTemplate."""
        space = Space(briefing, template_operator(briefing))
        forecast = Forecast(space)
        avoided = _avoided(pool, briefing)
        chosen: list[InitialStrategy] = []
        seen = {_signature(strategy) for strategy in taken}

        def take(candidates: Iterator[InitialStrategy], limit: int) -> None:
            for item in candidates:
                if len(chosen) >= limit:
                    return
                signature = item.strategy.signature()
                if signature not in seen | avoided:
                    seen.add(signature)
                    chosen.append(item)

        def promising(candidates: Iterator[InitialStrategy]) -> Iterator[InitialStrategy]:
            return (item for item in candidates if not forecast.hopeless(item.strategy))

        attempts = RANDOM_ATTEMPTS * count
        take(_from_pool(space, pool, forecast), (count + 1) // 2)
        take(promising(_from_ladder(space, forecast)), count)
        take(promising(_from_draws(space, Random(seed), attempts)), count)
        take(_from_pool(space, pool, forecast), count)
        take(_from_ladder(space, forecast), count)
        take(_from_draws(space, Random(seed), attempts), count)
        if not chosen and not taken:  # all there is has failed here before: tried again, it may tell why
            avoided = set()
            take(_from_ladder(space, forecast), count)
        return chosen

    def crossover(
        self,
        briefing: Briefing,
        first: Attempt,
        second: Attempt,
        taken: Sequence[Strategy],
        seed: int,
        *,
        outcomes: Mapping[str, str] = MappingProxyType({}),  # noqa: ARG002 - which are taken is enough
    ) -> Strategy:
        """Return a strategy made of both parents' techniques; different from those taken wherever one can be found."""
        rng = Random(seed)
        space = Space(briefing, operator_of(briefing))
        forecast = Forecast(space)
        known = {_signature(strategy) for strategy in taken}
        child = Strategy(techniques=())
        for attempt in range(CROSSOVER_ATTEMPTS):
            child = _child(space, first, second, rng, mutate=attempt >= 2 or rng.random() < MUTATE)
            if child.signature() not in known and not forecast.hopeless(child):
                return child
        for parent in (child, first.strategy, second.strategy):
            for neighbour, change in space.neighbours(space.fitted(parent)[0]):
                complete = with_defaults(neighbour)
                if complete.signature() not in known:
                    return _explained(
                        complete, f"A neighbour of a parent, {change}: all combinations were tried before."
                    )
        for item in _from_draws(space, rng, RANDOM_ATTEMPTS):
            if item.strategy.signature() not in known:
                return item.strategy
        return child


def _signature(strategy: Strategy) -> str:
    return with_defaults(strategy).signature()


def _explained(strategy: Strategy, rationale: str) -> Strategy:
    return Strategy(techniques=strategy.techniques, rationale=rationale[:4000])


def _same_work(entry: PoolEntry, briefing: Briefing) -> bool:
    """Return whether an entry is of the same calls on the same shapes, types and kind of device."""
    facts = briefing.facts
    if (entry.target, entry.device_class) != (briefing.target, briefing.device.device_class):
        return False
    if entry.problem_hash == facts.problem_hash:
        return True
    inputs = facts.with_role(Role.INPUT) or facts.tensors
    own = (operators(facts), shapes(facts), inputs[0].dtype.value, facts.policy)
    return (entry.operators, entry.shapes, entry.dtype, entry.policy) == own


def _avoided(pool: Sequence[PoolMatch], briefing: Briefing) -> set[str]:
    """Return signatures of strategies that failed on the same work, or were slow beside the best known there."""
    entries = [match.entry for match in pool if _same_work(match.entry, briefing)]
    best = max((entry.speedup for entry in entries if entry.speedup), default=0.0)
    failed = [entry for entry in entries if entry.failure not in (None, FailureKind.INFRASTRUCTURE)]
    slow = [entry for entry in entries if entry.speedup and entry.speedup < SLOW_SHARE * best]
    return {_signature(entry.strategy) for entry in (*failed, *slow)}


def _from_pool(space: Space, pool: Sequence[PoolMatch], forecast: Forecast) -> Iterator[InitialStrategy]:
    """Yield strategies of entries that counted, those of the same work first, fastest first, then by score.

    They come without what cannot be applied here. What won on other work and is predicted to be hopeless here is left
    out; what won on the same work was measured, and is not.
    """

    def won_here(match: PoolMatch) -> bool:
        return _same_work(match.entry, space.briefing) and match.entry.verdict.counts

    def rank(match: PoolMatch) -> tuple[float, float]:
        return (-(match.entry.speedup or 0.0) if won_here(match) else 0.0, -match.score)

    for match in sorted(pool, key=rank):
        entry = match.entry
        if entry.target is not space.briefing.target or not entry.verdict.counts or not entry.speedup:
            continue
        strategy, dropped = space.fitted(entry.strategy)
        added: tuple[str, ...] = ()
        if dropped and space.briefing.target is Target.CPU:
            strategy, added = _with_basics(space, strategy)
        if not strategy.techniques or (not won_here(match) and forecast.hopeless(strategy)):
            continue
        source = f"From the pool: {entry.speedup:.2f} times eager on {entry.problem_name}"
        without = f"; without {', '.join(dropped)}, which cannot be applied here" if dropped else ""
        instead = f"; with {', '.join(added)} instead" if added else ""
        yield InitialStrategy(
            strategy=_explained(strategy, f"{source}{without}{instead}."),
            source=StrategySource.POOL,
            pool_entry=entry.id,
        )


def _with_basics(space: Space, strategy: Strategy) -> tuple[Strategy, tuple[str, ...]]:
    """Return the strategy with those of :data:`BASICS_CPU` that can be applied beside its own, and their ids."""
    added = []
    for use in BASICS_CPU.techniques:
        if use.id in strategy.ids() or use.id in space.briefing.banned:
            continue
        more = with_defaults(Strategy(techniques=(*strategy.techniques, use)))
        if space.valid(more):
            strategy = more
            added.append(use.id)
    return strategy, tuple(added)


def _from_ladder(space: Space, forecast: Forecast) -> Iterator[InitialStrategy]:
    """Yield the family's ladder by predicted time.

    Among rungs that predictions do not tell apart, those for the zone come first that apply as they stand.
    """
    rungs = ladder(space.operator, space.briefing.target)
    placement = space.briefing.placement
    strategies = [with_defaults(space.fitted(rung)[0]) for rung in rungs]
    classes = forecast.order(strategies)

    def place(at: int) -> tuple[int, bool, bool]:
        suits = placement is None or _suits(rungs[at], placement.zone.value)
        return classes[at], not space.valid(rungs[at]), not suits

    for at in sorted(range(len(rungs)), key=place):
        strategy = _explained(strategies[at], rungs[at].rationale)
        yield InitialStrategy(strategy=strategy, source=StrategySource.IDEA)


def _suits(strategy: Strategy, zone: str) -> bool:
    known = (catalogue().get(use.id) for use in strategy.techniques)
    return all(not technique.zones or zone in technique.zones for technique in known if technique)


def _from_draws(space: Space, rng: Random, attempts: int) -> Iterator[InitialStrategy]:
    for _ in range(attempts):
        strategy = with_defaults(space.random(rng))
        yield InitialStrategy(
            strategy=_explained(strategy, "Drawn from the techniques that apply."), source=StrategySource.IDEA
        )


def _child(space: Space, first: Attempt, second: Attempt, rng: Random, *, mutate: bool) -> Strategy:
    uses: list[TechniqueUse] = []
    words: list[str] = []
    for use in first.strategy.techniques:
        other = second.strategy.use(use.id)
        if other is not None:
            uses.append(_blended(use, other, rng))
            words.append(f"{use.id} of both")
        elif rng.random() < KEEP_FITTER:
            uses.append(use)
            words.append(f"{use.id} of the fitter")
    for use in second.strategy.techniques:
        if first.strategy.use(use.id) is None and rng.random() < TAKE_OTHER and not _conflicts(use, uses):
            uses.append(use)
            words.append(f"{use.id} of the other")
    strategy, dropped = space.fitted(Strategy(techniques=tuple(uses[:12])))
    words = [word for word in words if word.split(" ")[0] not in dropped]
    if mutate:
        strategy, change = _mutated(space, strategy, first, rng)
        words.append(change)
    return _explained(with_defaults(strategy), f"Crossover: {', '.join(word for word in words if word)}.")


def _blended(use: TechniqueUse, other: TechniqueUse, rng: Random) -> TechniqueUse:
    names = sorted({*use.parameters, *other.parameters})
    values = {}
    for name in names:
        preferred, rest = (use, other) if rng.random() < PARAMETER_OF_FITTER else (other, use)
        values[name] = preferred.parameters.get(name, rest.parameters.get(name, 0))
    return TechniqueUse(id=use.id, parameters=values)


def _conflicts(use: TechniqueUse, uses: Sequence[TechniqueUse]) -> bool:
    technique = catalogue().get(use.id)
    return technique is not None and any(item.id in technique.conflicts for item in uses)


def _mutated(space: Space, strategy: Strategy, fitter: Attempt, rng: Random) -> tuple[Strategy, str]:
    """Return one change beyond the parents.

    The diagnosis' advice where there is guidance, else a neighbour or a technique.
    """
    wanted: list[str] = []
    if space.briefing.placement is not None and fitter.evaluation is not None:
        wanted = [item.technique for item in PlaybookProphet().diagnose(space.briefing, fitter).advice]
    missing = [item for item in space.techniques() if strategy.use(item.id) is None]
    advised = [item for item in missing if item.id in wanted]
    roll = rng.random()
    if (advised and roll < 0.5) or (missing and roll < 0.25):
        technique = rng.choice(advised or missing)
        return space.with_technique(
            strategy, technique, rng
        ), f"{technique.id} new, as {'advised' if advised else 'a try'}"
    neighbours = space.neighbours(strategy)
    if neighbours:
        return rng.choice(neighbours)
    return (space.with_technique(strategy, rng.choice(missing), rng), "a try") if missing else (strategy, "")
