#!/bin/sh
# Backs Postgres up: backup.sh FOLDER [KEEP]. Everything else is made anew from it. Needs pg_dump and pg_restore of the
# server's version or newer (PG_BIN names their folder), and CUPILOT_DATABASE_URL. Keeps the newest KEEP dumps (all).
# Prints the dump's path. Consistent while the service runs: pg_dump reads one snapshot.
set -eu
folder=${1:?usage: backup.sh FOLDER [KEEP]}
keep=${2:-}
case $keep in *[!0-9]*|0*) echo "backup: KEEP is a number from 1, or nothing to keep all dumps; not $keep" >&2; exit 1;; esac
: "${CUPILOT_DATABASE_URL:?set it to the database to back up}"
bin=${PG_BIN:+$PG_BIN/}
connection=$("${PYTHON:-python}" "$(dirname "$0")/connection.py")
eval "$connection"
umask 077
mkdir -p "$folder"
dump="$folder/cupilot-$(date -u +%Y%m%dT%H%M%SZ)-$$.dump"
trap 'rm -f "$dump.part"' EXIT
"${bin}pg_dump" --format=custom --no-owner --no-privileges --file="$dump.part"
# A dump that cannot be read is none: decode all of it, not only its table of contents.
"${bin}pg_restore" --file=/dev/null "$dump.part"
sum=$(sha256sum "$dump.part" | cut -d' ' -f1)
mv "$dump.part" "$dump"
printf '%s  %s\n' "$sum" "$(basename "$dump")" > "$dump.sha256"
if [ -n "$keep" ]; then
    ls -1t "$folder"/cupilot-*.dump | tail -n +"$((keep + 1))" | while read -r old; do rm -f "$old" "$old.sha256"; done
fi
printf '%s\n' "$dump"
