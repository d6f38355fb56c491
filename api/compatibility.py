"""Find what would break clients of one REST contract at a service of another; each break is a sentence.

Contracts are as :mod:`api.contract` has them. The rule is containment of JSON schemas, as far as the service's own use
them; a keyword that is not known here counts as broken where it differs, so nothing is passed unseen. Of a request, all
that was accepted must still be; of an answer, all that may come must be what was promised, where fields and
``x-extensible-enum`` values that are new do not count: clients ignore them. What a service does with a request it still
accepts, defaults among that, is no matter of shapes and not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cupilot.domain.value import OPEN_ENUM

Json = Mapping[str, Any]

AT_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
AT_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
EQUAL = ("format", "pattern", "uniqueItems", "multipleOf", "contentMediaType")
HANDLED = frozenset({"type", "enum", "const", "anyOf", "oneOf", "$ref", "properties", "required"})
PARTS = {"items": "[]", "additionalProperties": ".*", "propertyNames": " keys"}
"""Keywords whose value is a schema, and how what it describes is called after the whole."""
ECHOES = frozenset({"JobPlan.method"})
"""Fields of answers that repeat what the request chose: a client meets no choice there that it does not know."""
IGNORED = frozenset({"default", "deprecated", "discriminator", OPEN_ENUM})


def broken(before: Json, after: Json) -> list[str]:
    """Return what a client of ``before`` would stumble over in a service of ``after``, each sentence once."""
    requests = _Containment(before, after, answers=False)
    answers = _Containment(after, before, answers=True)
    return list(dict.fromkeys(_operations(before, after, requests, answers)))


def _operations(before: Json, after: Json, requests: _Containment, answers: _Containment) -> Iterator[str]:
    for path, methods in sorted(before["paths"].items()):
        for method, old in sorted(methods.items()):
            name = f"{method.upper()} {path}"
            new = after["paths"].get(path, {}).get(method)
            if new is None:
                yield f"{name} is gone"
            else:
                yield from _parameters(name, old, new, requests)
                yield from _body(name, old, new, requests)
                yield from _answers(name, old, new, answers)


def _parameters(name: str, old: Json, new: Json, requests: _Containment) -> Iterator[str]:
    known = {(parameter["in"], parameter["name"]): parameter for parameter in old.get("parameters", [])}
    now = {(parameter["in"], parameter["name"]): parameter for parameter in new.get("parameters", [])}
    for key, parameter in known.items():
        where = f"{name} {key[0]} {key[1]}"
        if key not in now:
            yield f"{where} is gone"
        else:
            yield from requests.lacks(parameter["schema"], now[key]["schema"], where)
    for key, parameter in now.items():
        if parameter.get("required") and not known.get(key, {}).get("required"):
            yield f"{name} {key[0]} {key[1]} has to be given"


def _body(name: str, old: Json, new: Json, requests: _Containment) -> Iterator[str]:
    known, now = old.get("requestBody"), new.get("requestBody")
    if now and now.get("required") and not (known and known.get("required")):
        yield f"{name} body has to be given"
    taken = (now or {}).get("content", {})
    for kind, media in (known or {}).get("content", {}).items():
        if kind not in taken:
            yield f"{name} body may not be {kind} any more"
        else:
            yield from requests.lacks(media.get("schema", {}), taken[kind].get("schema", {}), f"{name} body")


def _answers(name: str, old: Json, new: Json, answers: _Containment) -> Iterator[str]:
    for status, answer in sorted(old["responses"].items()):
        now = new["responses"].get(status)
        if now is None:
            if status.startswith("2"):
                yield f"{name} answers {status} no more"
            continue
        where = f"{name} {status}"
        for header in sorted(answer.get("headers", {}).keys() - now.get("headers", {}).keys()):
            yield f"{where} header {header} is gone"
        for kind, media in answer.get("content", {}).items():
            if kind not in now.get("content", {}):
                yield f"{where} is not {kind} any more"
            else:
                yield from answers.lacks(now["content"][kind].get("schema", {}), media.get("schema", {}), where)


@dataclass
class _Containment:
    """Check that one contract's schemas allow all that another's allow."""

    inner: Json
    outer: Json
    answers: bool
    """Inner is what a newer service answers, outer what an older client reads; else inner is what an older client
    sends, outer what a newer service reads."""
    _known: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """Lacks of pairs of named schemas; nothing while they are being compared, for schemas may hold themselves."""

    def lacks(self, inner: Json, outer: Json, where: str) -> Iterator[str]:
        """Return sentences for what ``inner`` allows and ``outer`` does not."""
        choices = _choices(outer, self.outer)
        for narrow in _choices(inner, self.inner):
            resolved = _resolved(narrow, self.inner)
            alike = [choice for choice in choices if _same_kind(resolved, _resolved(choice, self.outer))]
            if alike:
                yield from min((self._unfit(narrow, choice, where) for choice in alike), key=len)
            else:
                yield f"{where} may {'' if self.answers else 'not '}be {_kind(resolved)}"

    def _unfit(self, inner: Json, outer: Json, where: str) -> list[str]:
        """Return the same for schemas without alternatives; two that have names are compared under the name."""
        pair = (inner.get("$ref", ""), outer.get("$ref", ""))
        resolved = _resolved(inner, self.inner), _resolved(outer, self.outer)
        if not all(pair):
            return list(self._differences(*resolved, where))
        if pair not in self._known:
            self._known[pair] = []
            name = pair[1].split("/")[-1].removesuffix("-Input").removesuffix("-Output")
            self._known[pair] = list(self._differences(*resolved, name))
        return self._known[pair]

    def _differences(self, inner: Json, outer: Json, where: str) -> Iterator[str]:
        yield from _values(inner, outer, where)
        yield from _bounds(inner, outer, where)
        yield from self._fields(inner, outer, where)
        for key, called in PARTS.items():
            if isinstance(outer.get(key), dict):
                schema = inner.get(key)
                yield from self.lacks(schema if isinstance(schema, dict) else {}, outer[key], where + called)
        unknown = {*inner, *outer} - HANDLED - IGNORED - {*AT_LEAST, *AT_MOST, *EQUAL, *PARTS}
        yield from (f"{where}: {key} is another" for key in sorted(unknown) if inner.get(key) != outer.get(key))

    def _fields(self, inner: Json, outer: Json, where: str) -> Iterator[str]:
        has, wants = inner.get("properties", {}), outer.get("properties", {})
        optional = {*outer.get("required", ())} - {*inner.get("required", ())}
        for name in sorted({*has, *wants}):
            place = f"{where}.{name}"
            if name not in has:
                if self.answers:
                    yield f"{place} is gone"
                elif name in optional:
                    yield f"{place} has to be given"
            elif name not in wants:
                if not self.answers and outer.get("additionalProperties") is False:
                    yield f"{place} is gone"
            elif not (self.answers and place in ECHOES):
                if name in optional:
                    yield f"{place} {'may be left out' if self.answers else 'has to be given'}"
                yield from self.lacks(has[name], wants[name], place)


def _choices(schema: Json, contract: Json) -> Sequence[Json]:
    """Return the alternatives of a schema; those that have a name are still references."""
    whole = _resolved(schema, contract)
    for key in ("anyOf", "oneOf"):
        if key in whole:
            return [choice for variant in whole[key] for choice in _choices(variant, contract)]
    return [schema]


def _resolved(schema: Json, contract: Json) -> Json:
    """Return the schema itself, where it is a reference to one."""
    while "$ref" in schema:
        schema = contract["components"]["schemas"][schema["$ref"].split("/")[-1]]
    return schema


def _values(inner: Json, outer: Json, where: str) -> Iterator[str]:
    allowed = _listed(outer)
    if allowed is None:
        return
    values = _listed(inner)
    if values is None:
        yield f"{where} may be other than {', '.join(allowed)}"
    else:
        yield from (f"{where} {value} is not among {', '.join(allowed)}" for value in values if value not in allowed)


def _listed(schema: Json) -> list[str] | None:
    """Return the values of an enumeration, as JSON; None where the schema is none."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return None if values is None else [json.dumps(value) for value in values]


def _bounds(inner: Json, outer: Json, where: str) -> Iterator[str]:
    for key in AT_LEAST:
        if key in outer and inner.get(key, float("-inf")) < outer[key]:
            yield f"{where}: {key} {inner.get(key, 'none')} is below {outer[key]}"
    for key in AT_MOST:
        if key in outer and inner.get(key, float("inf")) > outer[key]:
            yield f"{where}: {key} {inner.get(key, 'none')} is above {outer[key]}"
    for key in EQUAL:
        if key in outer and inner.get(key) != outer[key] and _listed(inner) is None:
            yield f"{where}: {key} is {json.dumps(outer[key])} and was not"


def _same_kind(inner: Json, outer: Json) -> bool:
    kinds = (inner.get("type"), outer.get("type"))
    return not outer or kinds[0] == kinds[1] or kinds == ("integer", "number")


def _kind(schema: Json) -> str:
    return str(schema.get("type", "anything"))
