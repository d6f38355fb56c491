"""Changes of a migration that code of the release before it may stumble over while both run.

Compares what Postgres itself says of two schemas, so that it does not matter how a migration is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, text

TABLES = "SELECT relname, '' FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace"
COLUMNS = """
SELECT c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod),
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS obligatory
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
"""
DEMANDS = """
SELECT conrelid::regclass || ' ' || conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND conrelid <> 0 AND contype <> 'n'
UNION ALL
SELECT indrelid::regclass || ' ' || indexrelid::regclass, pg_get_indexdef(indexrelid)
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE indisunique AND relnamespace = 'public'::regnamespace
  AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = indexrelid)
UNION ALL
SELECT tgrelid::regclass || ' ' || tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
"""
"""Whatever may refuse a row: constraints, unique indexes, triggers; each after its table."""
VALUES = """
SELECT t.typname || ' ' || e.enumlabel, '' FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid
WHERE t.typnamespace = 'public'::regnamespace
"""
FUNCTIONS = """
SELECT oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
"""


@dataclass(frozen=True)
class Schema:
    """Each thing by its name."""

    tables: Mapping[str, str]
    columns: Mapping[str, tuple[str, bool]]
    """Type, and whether a new row has to give a value."""
    demands: Mapping[str, str]
    values: Mapping[str, str]
    functions: Mapping[str, str]


def schema_of(connection: Connection) -> Schema:
    """The schema of the connected database, as its transaction sees it."""
    tables, demands, values, functions = (
        {str(name): str(what) for name, what in connection.execute(text(query))}
        for query in (TABLES, DEMANDS, VALUES, FUNCTIONS)
    )
    columns = {name: (kind, obligatory) for name, kind, obligatory in connection.execute(text(COLUMNS))}
    return Schema(tables, columns, demands, values, functions)


def breaking(before: Schema, after: Schema) -> Iterator[str]:
    """A sentence for each change that code written for ``before`` may fail on; nothing for what is only added."""
    for name in sorted(before.tables.keys() - after.tables.keys()):
        yield f"table {name} is gone"
    shared = before.tables.keys() & after.tables.keys()
    yield from _columns(before, after, shared)
    for name, what in sorted(after.demands.items()):
        if name.split()[0] in shared and before.demands.get(name) != what:
            yield f"rows must satisfy {name}"
    for name in sorted(before.values.keys() - after.values.keys()):
        yield f"value {name} is gone"
    kinds = {name.split()[0] for name in before.values}
    for name in sorted(after.values.keys() - before.values.keys()):
        if name.split()[0] in kinds:
            yield f"value {name} is read by code that does not know it"
    for name, what in sorted(before.functions.items()):
        if after.functions.get(name) != what:
            yield f"function {name} is gone or another"


def _columns(before: Schema, after: Schema, shared: set[str]) -> Iterator[str]:
    for name in sorted({*before.columns, *after.columns}):
        if name.split(".")[0] not in shared:
            continue
        old, new = before.columns.get(name), after.columns.get(name)
        if new is None:
            yield f"column {name} is gone"
        elif old is not None and old[0] != new[0]:
            yield f"column {name} was {old[0]} and is {new[0]}"
        elif new[1] and not (old and old[1]):
            yield f"column {name} has to be given"
