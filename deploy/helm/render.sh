#!/bin/sh
# Renders the chart into build/helm with Helm's library, which uv fetches. Ends with 2 where that cannot be had.
set -eu
cd "$(dirname "$0")/../.."
UV=$(command -v uv || ls .venv/bin/uv 2>/dev/null || true)
with_helm() { UV_HTTP_TIMEOUT=15 "$UV" run --quiet --no-project --with helm-python-sdk==0.2.2 --with pyyaml python "$@"; }

if [ -n "$UV" ] && with_helm -c 'import helm_python' 2>/dev/null; then
    with_helm deploy/helm/render.py build/helm
else
    echo "CHART NOT RENDERED, its tests are skipped: Helm's library (helm-python-sdk) cannot be had"
    exit 2
fi
