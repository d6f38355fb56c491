"""The tables, a module for each kind of record. All are imported here, so that the metadata is always whole."""

from cupilot.storage.db.tables import (  # noqa: F401
    audit,
    cluster,
    experiments,
    jobs,
    models,
    people,
    pool,
    steering,
    webhooks,
)
