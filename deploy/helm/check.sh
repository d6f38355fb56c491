#!/bin/sh
# Renders the chart into build/helm and checks what came out: make check-deploy. Needs uv, which fetches Helm's library
# and a parser of PromQL, and promtool (Debian: prometheus). Says what is missing, and fails if anything is.
set -eu
cd "$(dirname "$0")/../.."
missing=0
UV=$(command -v uv || ls .venv/bin/uv 2>/dev/null || true)

sh deploy/helm/render.sh || missing=$?
[ "$missing" -ne 1 ] || exit 1
.venv/bin/python -m pytest -q tests/unit/deploy
if [ -n "$UV" ] && "$UV" run --quiet --no-project --with promql-parser==0.12.0 python -c 'import promql_parser'; then
    "$UV" run --quiet --no-project --with promql-parser==0.12.0 --with pyyaml python deploy/helm/promql.py
else
    echo "NOT PARSED: PromQL (promql-parser cannot be had)"; missing=2
fi
PROMTOOL=$(command -v promtool || true)
if [ -n "$PROMTOOL" ]; then
    (cd deploy/helm/cupilot/files && "$PROMTOOL" check rules alerts.yaml && "$PROMTOOL" test rules alerts_test.yaml)
else
    echo "NOT TESTED: what alert rules do with series (no promtool)"; missing=2
fi
exit "$missing"
