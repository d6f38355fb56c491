#!/bin/sh
# Renders the chart and checks what came out: make check-deploy. Needs Go with sprig (Debian: golang-go,
# golang-github-masterminds-sprig-dev, golang-gopkg-yaml.v3-dev), uv, which fetches Helm's library, and promtool (Debian:
# prometheus). Says what is missing, and fails if anything is. What was rendered is also checked by make test.
set -eu
cd "$(dirname "$0")/../.."
missing=0
render() { GO111MODULE=off GOPATH=/usr/share/gocode go run deploy/helm/render.go deploy/helm/cupilot "$@"; }

if command -v go >/dev/null && [ -d /usr/share/gocode/src/github.com/Masterminds/sprig ]; then
    mkdir -p deploy/helm/rendered
    render > deploy/helm/rendered/default.yaml
    render deploy/helm/examples/everything.yaml > deploy/helm/rendered/everything.yaml
    .venv/bin/python deploy/helm/digest.py > deploy/helm/rendered/DIGEST
    echo "rendered: deploy/helm/rendered"
else
    echo "NOT RENDERED: no Go with sprig"; missing=1
fi
.venv/bin/python -m pytest -q tests/unit/deploy
UV=$(command -v uv || ls .venv/bin/uv 2>/dev/null || true)
if [ -n "$UV" ] && "$UV" run --quiet --no-project --with helm-python-sdk==0.2.2 --with pyyaml python -c 'import helm_python'; then
    "$UV" run --quiet --no-project --with helm-python-sdk==0.2.2 --with pyyaml python deploy/helm/with_helm.py
else
    echo "NOT COMPARED with Helm's own rendering: helm-python-sdk cannot be had"; missing=1
fi
if [ -n "$UV" ] && "$UV" run --quiet --no-project --with promql-parser==0.12.0 python -c 'import promql_parser'; then
    "$UV" run --quiet --no-project --with promql-parser==0.12.0 --with pyyaml python deploy/helm/promql.py
else
    echo "NOT PARSED: PromQL (promql-parser cannot be had)"; missing=1
fi
PROMTOOL=$(command -v promtool || true)
if [ -n "$PROMTOOL" ]; then
    (cd deploy/helm/cupilot/files && "$PROMTOOL" check rules alerts.yaml && "$PROMTOOL" test rules alerts_test.yaml)
else
    echo "NOT TESTED: what alert rules do with series (no promtool)"; missing=1
fi
exit $missing
