"""Print CUPILOT_DATABASE_URL as libpq's environment variables, for a shell to evaluate.

By environment, because arguments are visible to every local user, and a password is among them.
"""

from __future__ import annotations

import os
import shlex
import sys

from sqlalchemy import make_url

url = make_url(os.environ["CUPILOT_DATABASE_URL"])
variables = {
    "PGHOST": url.host,
    "PGPORT": url.port,
    "PGUSER": url.username,
    "PGPASSWORD": url.password,
    "PGDATABASE": url.database,
    "PGSSLMODE": url.query.get("sslmode"),
    "PGSSLROOTCERT": url.query.get("sslrootcert"),
    "PGSSLCERT": url.query.get("sslcert"),
    "PGSSLKEY": url.query.get("sslkey"),
}
for name, value in variables.items():
    if value is not None:
        sys.stdout.write(f"export {name}={shlex.quote(str(value))}\n")
