"""Read models' answers: JSON and code out of prose, checked against the value objects.

Every complaint is an :class:`agents.llm.gateway.AnswerError` worded for the model that has to answer again.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agents.interface import Briefing
from agents.llm.gateway import AnswerError
from agents.llm.patch import is_patch, patched
from agents.playbook.evidence import visible
from cupilot.domain.errors import InvalidPlan
from cupilot.domain.kernel import Kernel, resolve
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy, problems_with, shortened_meaning
from cupilot.domain.technique import Catalogue

M = TypeVar("M", bound=BaseModel)

_FENCE = re.compile(r"```[ \t]*([A-Za-z+#]*)[^\n]*\n(.*?)```", re.DOTALL)
_LAST_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)
"""A string, or a comma before a closing bracket."""
_CODE = {Target.CUDA: ("cuda", "cu", "cpp", "c++", "c"), Target.CPU: ("cpp", "c++", "c", "cc")}


class StrategyList(BaseModel):
    """The Manager's answer to an initial prompt; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")
    strategies: list[Any] = Field(min_length=1, max_length=200)


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in an answer: the whole text, the last fenced block that has one, or what stands between
    the outer braces. Line breaks in strings and commas before a closing bracket are accepted.
    """
    fenced = [body for language, body in _FENCE.findall(text) if language.lower() in ("json", "")][::-1]
    start, end = text.find("{"), text.rfind("}")
    outer = [text[start : end + 1]] if 0 <= start < end else []
    complaint = "there is no JSON object in it"
    for candidate in [text, *fenced, *outer]:
        try:
            value = _loaded(candidate)
        except (json.JSONDecodeError, RecursionError) as error:
            complaint = f"its JSON cannot be read: {error}"
            continue
        if isinstance(value, dict):
            return value
    raise AnswerError(complaint)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except json.JSONDecodeError:
        return json.loads(_LAST_COMMA.sub(lambda found: found[1] or "", text), strict=False)


def checked(model: type[M], value: Any) -> M:
    """Parse a value; the complaint names the first field that is wrong."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the object"
        raise AnswerError(f"{where}: {first['msg']}") from error


def strategy(value: Any, catalogue: Catalogue, briefing: Briefing) -> Strategy:
    """Return a strategy that keeps the catalogue's rules; unknown fields are dropped, unknown techniques kept."""
    if not isinstance(value, dict):
        raise AnswerError("a strategy must be a JSON object")
    known = {key: value[key] for key in ("techniques", "rationale") if key in value}
    if isinstance(known.get("techniques"), list):
        known["techniques"] = [_use(use, catalogue, briefing) for use in known["techniques"]]
    read = checked(Strategy, known)
    broken = problems_with(read, catalogue, briefing.target, briefing.facts.policy)
    if broken:
        raise AnswerError("; ".join(broken))
    return read


def proposed(value: Any, catalogue: Catalogue, briefing: Briefing) -> Strategy:
    """Return a strategy for a kernel that is yet to be written: it must suit the device and keep the job's bans too."""
    read, arch = strategy(value, catalogue, briefing), briefing.device.arch
    known = [technique for name in read.ids() if (technique := catalogue.get(name)) is not None]
    lacking = [technique.id for technique in known if not technique.runs_on(arch)]
    if lacking:
        raise AnswerError(f"{', '.join(lacking)}: {arch} lacks what this needs")
    banned = [name for name in read.ids() if name in briefing.banned]
    if banned:
        raise AnswerError(f"{', '.join(banned)}: banned from this job")
    return read


def _use(value: Any, catalogue: Catalogue, briefing: Briefing) -> Any:
    """Return a technique as it was answered, with a meaning where, and only where, the catalogue gives it none."""
    if not isinstance(value, dict):
        return value
    name, meant = value.get("id"), value.get("meaning")
    known = next((technique.meaning for technique in briefing.learned if technique.id == name), "")
    meaning = "" if name in catalogue else known or (meant if isinstance(meant, str) else "")
    return {**value, "meaning": shortened_meaning(meaning)}


def kernel(text: str, briefing: Briefing, before: Kernel | None = None) -> Kernel:
    """Return the source and the plan in an answer, as a kernel whose plan fits the problem and that shows nothing
    banned.

    Where the kernel ``before`` is given, a patch of its source may stand for the whole; the plan may then be left out.
    """
    if before is not None and is_patch(text):
        return _patched(text, briefing, before)
    blocks = [(language.lower(), body) for language, body in _FENCE.findall(text)]
    sources = [body for language, body in blocks if language in _CODE[briefing.target]]
    plans = [body for language, body in blocks if language == "json"]
    if not sources:
        raise AnswerError(f"there is no fenced ```{_CODE[briefing.target][0]} block with the source")
    if not plans:
        raise AnswerError("there is no fenced ```json block with the launch plan")
    return fitting(sources[-1], json_object(plans[-1]), briefing)


def _patched(text: str, briefing: Briefing, before: Kernel) -> Kernel:
    plans = [body for language, body in _FENCE.findall(text) if language.lower() == "json"]
    plan = json_object(plans[-1]) if plans else before.plan.model_dump(mode="json")
    return fitting(patched(before.source, text), plan, briefing)


def fitting(source: str, plan: dict[str, Any], briefing: Briefing) -> Kernel:
    """Return source and plan as a kernel whose plan fits the problem and that shows nothing banned."""
    made = checked(Kernel, {"target": briefing.target, "source": source, "plan": plan})
    try:
        for facts in (briefing.facts, *(facts for _, facts in briefing.workloads)):
            resolve(made, facts)
    except InvalidPlan as error:
        raise AnswerError(f"the launch plan does not fit: {error}. {error.hint or ''}") from error
    banned = [name for name in visible(made) if name in briefing.banned]
    if banned:
        raise AnswerError(f"the source uses what is banned from this job: {', '.join(banned)}")
    return made
