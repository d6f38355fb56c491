"""Read models' answers: JSON and code out of prose, checked against the value objects.

Every complaint is an :class:`agents.llm.gateway.AnswerError` worded for the model that has to answer again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agents.interface import Briefing
from agents.llm.fences import Block, blocks
from agents.llm.gateway import AnswerError
from agents.llm.patch import is_patch, patched
from agents.playbook.evidence import visible
from cupilot.domain.errors import InvalidPlan
from cupilot.domain.kernel import Kernel, resolve
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy, problems_with, shortened_meaning
from cupilot.domain.technique import Catalogue
from cupilot.domain.value import storable

M = TypeVar("M", bound=BaseModel)

_STRING = r'(?P<string>"(?:[^"\\]|\\.)*+(?:"|\Z))'
_FOREIGN = re.compile(
    _STRING
    + r"|(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))|(?P<word>\b(?:True|False|None)\b)|(?P<blank>[\u00a0\u202f\ufeff])",
    re.DOTALL,
)
"""A string, or what JSON has not but models write: comments, Python's words, blanks of typesetters."""
_WORDS = {"True": "true", "False": "false", "None": "null"}
_LAST_COMMA = re.compile(_STRING + r"|,(?=\s*[}\]])", re.DOTALL)
"""A string, or a comma before a closing bracket."""
_JSON = ("json", "jsonc", "json5")
_CPP = ("cpp", "c++", "c", "cc", "cxx", "hpp", "h")
_CODE = {Target.CUDA: ("cuda", "cu", "cuh", *_CPP), Target.CPU: _CPP}
_HEADER = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"problem\.h"', re.MULTILINE)


class StrategyList(BaseModel):
    """The Manager's answer to an initial prompt; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")
    strategies: list[Any] = Field(min_length=1, max_length=200)


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in an answer: the whole text, the last fenced block that has one, or what stands between
    the outer braces. Line breaks in strings, comments, commas before a closing bracket and Python's words are accepted.
    """
    fenced = [block for block in blocks(text) if block.language in ("", *_JSON)][::-1]
    around = text
    if fenced and not fenced[0].closed and "{" in fenced[0].body:  # a draft before it is not the answer
        fenced, around = fenced[:1], fenced[0].body
    start, end = around.find("{"), around.rfind("}")
    outer = [around[start : end + 1]] if 0 <= start < end else []
    complaint = "there is no JSON object in it"
    for candidate in [text, *(block.body for block in fenced), *outer]:
        try:
            value = _loaded(candidate)
        except (ValueError, RecursionError) as error:  # ValueError also of a number of thousands of digits
            complaint = f"its JSON cannot be read: {error}"
            continue
        if isinstance(value, dict):
            return value
    raise AnswerError(complaint)


def _loaded(text: str) -> Any:
    try:
        value = json.loads(text, strict=False)
    except json.JSONDecodeError:
        native = _FOREIGN.sub(_native, text)
        value = json.loads(_LAST_COMMA.sub(lambda found: found["string"] or "", native), strict=False)
    return _storable(value)


def _native(found: re.Match[str]) -> str:
    return found["string"] or _WORDS.get(found["word"], " ")


def _storable(value: Any) -> Any:
    if isinstance(value, dict):
        return {storable(key): _storable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_storable(item) for item in value]
    return storable(value) if isinstance(value, str) else value


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
    fenced = blocks(text)
    source, plan = _source(fenced, briefing.target), _plan(fenced)
    if source is None:
        raise AnswerError(f"there is no fenced ```{_CODE[briefing.target][0]} block with the source")
    if plan is None:
        raise AnswerError("there is no fenced ```json block with the launch plan")
    return fitting(source, plan, briefing)


def _patched(text: str, briefing: Briefing, before: Kernel) -> Kernel:
    plan = _plan(blocks(text)) or before.plan.model_dump(mode="json")
    return fitting(patched(before.source, text), plan, briefing)


def _source(fenced: Sequence[Block], target: Target) -> str | None:
    """Return the whole source among an answer's blocks: the last one that includes the problem's header, which each
    kernel needs; where none does, the longest. A fence without a language counts where no other holds code.
    """
    closed = [block for block in fenced if block.closed]
    named = [block.body for block in closed if block.language in _CODE[target]]
    bare = [block.body for block in closed if not block.language and not block.body.lstrip().startswith("{")]
    sources = named or bare
    whole = [source for source in sources if _HEADER.search(source)]
    return whole[-1] if whole else max(sources, key=len, default=None)


def _plan(fenced: Sequence[Block]) -> dict[str, Any] | None:
    """Return the launch plan among an answer's blocks: the last object with launches; where there is none, the last.

    A last block without its closing fence counts if it is whole.
    """
    named = [block.body for block in fenced if block.language in _JSON]
    bare = [block.body for block in fenced if not block.language and block.body.lstrip().startswith("{")]
    plans = named or bare
    for body in plans[::-1]:
        if '"launches"' in body:
            return json_object(body)
    return json_object(plans[-1]) if plans else None


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
