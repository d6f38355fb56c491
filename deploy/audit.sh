#!/bin/sh
# Known holes in the pinned dependencies: make audit. Exits 1 where one is found that is not accepted below, and 2, with
# a sentence, where the advisory database cannot be reached: an audit that did not happen is not a passed one.
set -u
cd "$(dirname "$0")/.."
# Accepted: what cannot reach us, with the reason. Look again when the package moves.
#   CVE-2026-45829, GHSA-f4j7-r4q5-qw2c  chromadb: in its Python server, which is not what runs here; never published.
output=$(mktemp)
trap 'rm -f "$output"' EXIT
.venv/bin/python -m pip_audit --requirement constraints.txt --no-deps --disable-pip --progress-spinner off \
    --ignore-vuln CVE-2026-45829 --ignore-vuln GHSA-f4j7-r4q5-qw2c >"$output" 2>&1
code=$?
if grep -q 'could not be audited' "$output"; then
    echo "NOT AUDITED: $(grep -c 'could not be audited' "$output") packages; the advisory database cannot be reached from here" >&2
    exit 2
fi
if [ "$code" -ne 0 ] && grep -qE 'ConnectionError|ServiceError|Max retries|Network is unreachable|ProxyError' "$output"; then
    echo "NOT AUDITED: the advisory database cannot be reached from here" >&2
    exit 2
fi
cat "$output"
exit "$code"
