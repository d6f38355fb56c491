"""A scripted language model that knows real kernels: a stand-in for a competent one, behind a real HTTP connection.

It reads the prompts that the agents write and answers in the form that they ask for. Its kernels are the playbook's
templates, rendered for exactly the techniques that the prompt names, so they are as good as those techniques together
and no better. Its first strategies have one technique each; its crossovers have both parents', and one more where the
job has had those. So a population gets better by combination alone, or not at all: that is what a run shows. Nothing
here is told what was measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container
from itertools import combinations
from random import Random
from typing import Any

from agents.interface import AgentError, Briefing
from agents.llm.prompt import LANGUAGE
from agents.playbook import agents as playbook
from agents.playbook.ladders import ladder
from agents.playbook.search import Space
from agents.playbook.translator import operator_of, with_defaults
from cupilot.domain.kernel import Kernel
from cupilot.domain.strategy import MAX_TECHNIQUES, Strategy, TechniqueUse
from tests.scripted_model import Reply

_DATA = re.compile(r'<data name="(?P<name>[^"]+)">\n(?P<text>.*?)\n</data>', re.DOTALL)
_HEADER = re.compile(r"^// Techniques: (.+)$", re.MULTILINE)


class ScriptedEngineer:
    """Answers requests; ``briefing`` says what the present job is about, as its agents know it."""

    def __init__(self, briefing: Callable[[], Briefing]) -> None:
        self._briefing = briefing
        self.asked: dict[str, int] = {}
        """Requests by what they ask for."""

    def __call__(self, request: dict[str, Any]) -> Reply:
        """Answer one request."""
        text, seed = str(request["messages"][1]["content"]), int(request.get("seed") or 0)
        kind, answer = next((kind, answer) for words, kind, answer in self._skills() if words in text)
        self.asked[kind] = self.asked.get(kind, 0) + 1
        content = answer(text, Random(seed))
        tokens = sum(len(turn["content"]) for turn in request["messages"]) // 4
        return Reply(text=content, prompt_tokens=tokens, completion_tokens=len(content) // 4)

    def _skills(self) -> list[tuple[str, str, Callable[[str, Random], str]]]:
        return [
            ("different strategies for", "initial", self._initial),
            ("You combine two", "crossover", self._crossover),
            ("you write one kernel out of two", "merge", self._merge),
            ("make it faster within its strategy", "improve", self._improve),
            ("You are the Kernel Revisor", "revise", self._revise),
            ("Rewrite the strategy to what the code really does", "align", self._align),
            ("You are the Strategy Translator", "translate", self._translate),
        ]

    def _initial(self, text: str, rng: Random) -> str:  # noqa: ARG002 - every skill has the same arguments
        count = int(re.findall(r"Write (\d+) different", text)[0])
        chosen = [{**_json(strategy), "rationale": "One idea at a time."} for strategy in ideas(self._space())[:count]]
        return json.dumps({"strategies": chosen})

    def _crossover(self, text: str, rng: Random) -> str:  # noqa: ARG002
        first, second = (_strategy(body) for name, body in _DATA.findall(text) if name == "candidate")
        taken = [_strategy(line) for name, body in _DATA.findall(text) if name == "taken" for line in body.splitlines()]
        known = {with_defaults(strategy).signature() for strategy in taken}
        child = crossed(self._space(), first, second, known)
        return json.dumps({**_json(child), "rationale": "What both parents have, as far as it goes together."})

    def _translate(self, text: str, rng: Random) -> str:  # noqa: ARG002 - every skill has the same arguments
        return self._written(_asked(text))

    def _merge(self, text: str, rng: Random) -> str:  # noqa: ARG002
        parents = [_of_source(body) for name, body in _DATA.findall(text) if name == "kernel"]
        return self._written(_combined(self._space(), parents[0], parents[1]))

    def _revise(self, text: str, rng: Random) -> str:
        kept = list(_asked(text).techniques)
        gone = kept.pop(rng.randrange(len(kept))).id if kept else "nothing"
        return f"NOTE: without {gone}\nDROPPED: {gone}\n{self._written(Strategy(techniques=tuple(kept)))}"

    def _improve(self, text: str, rng: Random) -> str:  # noqa: ARG002
        """Return the kernel as it is: a template's tunables have been swept."""
        shown = dict(_DATA.findall(text))
        language = LANGUAGE[self._briefing().target]
        return f"NOTE: nothing\n```{language}\n{shown['kernel']}\n```\n```json\n{shown['plan.json']}\n```"

    def _written(self, strategy: Strategy) -> str:
        briefing, space = self._briefing(), self._space()
        try:
            kernel = playbook().translator.translate(briefing, space.fitted(strategy)[0], (), 0)
        except AgentError as error:
            return f"I cannot write that: {error}"
        return _blocks(kernel, LANGUAGE[briefing.target])

    def _align(self, text: str, _: Random) -> str:
        """Return every technique as it was asked for: the binary decides."""
        uses = [use.model_dump() | {"evidence": '#include "problem.h"'} for use in _asked(text).techniques]
        return json.dumps({"techniques": uses, "rationale": "as it was asked for"})

    def _space(self) -> Space:
        briefing = self._briefing()
        return Space(briefing, operator_of(briefing))


def ideas(space: Space) -> list[Strategy]:
    """Return every technique that the playbook would use here, one a strategy; the plain kernel last.

    A technique that cannot stand alone brings the fewest companions of the same rung that let it stand.
    """
    strategies: dict[tuple[str, ...], Strategy] = {}
    for rung in ladder(space.operator, space.briefing.target):
        fitting, _ = space.fitted(rung)
        for use in fitting.techniques:
            alone = _least(space, fitting, use)
            strategies.setdefault(alone.ids(), alone)
    plain = Strategy(techniques=())
    return [*(strategy for ids, strategy in strategies.items() if ids), plain]


def _least(space: Space, rung: Strategy, kept: TechniqueUse) -> Strategy:
    """Return the technique with the fewest others of its rung that let it be rendered, at most the whole rung."""
    others = [use for use in rung.techniques if use.id != kept.id]
    choices = (
        with_defaults(Strategy(techniques=tuple(use for use in rung.techniques if use in (kept, *companions))))
        for count in range(len(others) + 1)
        for companions in combinations(others, count)
    )
    return next(strategy for strategy in choices if space.valid(strategy))


def crossed(space: Space, first: Strategy, second: Strategy, taken: Container[str]) -> Strategy:
    """Combine both parents' techniques; a taken signature gets one more technique, or another parameter."""
    both = _combined(space, first, second)
    larger = (_combined(space, both, strategy) for strategy in ideas(space))
    varied = (with_defaults(strategy) for strategy, _ in space.neighbours(both))
    return next((strategy for strategy in (both, *larger, *varied) if strategy.signature() not in taken), both)


def _combined(space: Space, first: Strategy, second: Strategy) -> Strategy:
    added = tuple(use for use in second.techniques if first.use(use.id) is None)
    return space.fitted(Strategy(techniques=(*first.techniques, *added)[:MAX_TECHNIQUES]))[0]


def _asked(text: str) -> Strategy:
    """Return the strategy that a kernel is to follow; the plain one has no data of its own in the prompt."""
    strategies = [_strategy(body) for name, body in _DATA.findall(text) if name == "strategy"]
    return strategies[0] if strategies else Strategy(techniques=())


def _json(strategy: Strategy) -> dict[str, Any]:
    return {"techniques": [use.model_dump() for use in strategy.techniques]}


def _strategy(text: str) -> Strategy:
    """Read the strategy from the first line of a prompt's data."""
    techniques = json.loads(text.splitlines()[0])["techniques"]
    return Strategy(techniques=tuple(TechniqueUse.model_validate(technique) for technique in techniques))


def _of_source(source: str) -> Strategy:
    """Return the techniques that a template's kernel names in its header, with their default parameters."""
    listed = _HEADER.search(source)
    names = re.findall(r"(\w+)(?:\([^)]*\))?(?:, |$)", listed[1]) if listed else []
    return with_defaults(Strategy(techniques=tuple(TechniqueUse(id=name) for name in names if name != "none")))


def _blocks(kernel: Kernel, language: str) -> str:
    return f"```{language}\n{kernel.source}\n```\n```json\n{kernel.plan.model_dump_json()}\n```"
