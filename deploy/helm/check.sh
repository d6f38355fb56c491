#!/bin/sh
# Renders the chart and checks what came out: make check-deploy. Needs Go with sprig (Debian: golang-go,
# golang-github-masterminds-sprig-dev, golang-gopkg-yaml.v3-dev), kubernetes-validate (from PyPI) and promtool (Debian:
# prometheus). Says what is missing, and fails if anything is.
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
if .venv/bin/python -c 'import kubernetes_validate' 2>/dev/null; then
    .venv/bin/python -m pytest -q tests/unit/deploy/test_chart.py
else
    echo "NOT VALIDATED against Kubernetes' schemas: pip install kubernetes-validate"; missing=1
fi
PROMTOOL=$(command -v promtool || true)
if [ -n "$PROMTOOL" ]; then
    (cd deploy/helm/cupilot/files && "$PROMTOOL" check rules alerts.yaml && "$PROMTOOL" test rules alerts_test.yaml)
else
    echo "NOT CHECKED: alert rules (no promtool)"; missing=1
fi
exit $missing
