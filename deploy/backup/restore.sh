#!/bin/sh
# Restores a dump of backup.sh into an empty database: restore.sh DUMP. Then brings the schema to this release's head
# and makes the strategy pool's index anew (CUPILOT_CHROMA_URL; SKIP_INDEX=1 leaves that to the agents, which index what
# is missing by themselves once Chroma is empty). All or nothing: one transaction. Stop or drain the service before.
set -eu
dump=${1:?usage: restore.sh DUMP}
: "${CUPILOT_DATABASE_URL:?set it to the empty database to restore into}"
bin=${PG_BIN:+$PG_BIN/}
connection=$("${PYTHON:-python}" "$(dirname "$0")/connection.py")
eval "$connection"
[ -f "$dump" ] || { echo "restore: there is no file $dump" >&2; exit 1; }
if [ -f "$dump.sha256" ]; then
    (cd "$(dirname "$dump")" && sha256sum --check --quiet "$(basename "$dump").sha256") || { echo "restore: $dump is damaged" >&2; exit 1; }
fi
tables=$("${bin}psql" -XAtc "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
if [ "$tables" != 0 ]; then
    echo "restore: the database holds $tables tables already; restore into an empty one" >&2
    exit 1
fi
"${bin}pg_restore" --single-transaction --exit-on-error --no-owner --no-privileges --dbname="$PGDATABASE" "$dump"
"${PYTHON:-python}" -m migrations
[ -n "${SKIP_INDEX:-}" ] || "${PYTHON:-python}" -m workers rebuild-pool
echo "restored: $dump"
