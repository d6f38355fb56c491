"""``python -m agents.llm``: try the configured models, and print what was found as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from agents.llm.check import examine
from agents.llm.models import from_environment
from cupilot.domain.errors import InvalidInput


def main() -> int:
    """Return 0 where every model works; 1 where one does not, or none is configured."""
    try:
        models = from_environment()
    except InvalidInput as error:
        sys.stdout.write(json.dumps({"error": error.message, "checks": []}) + "\n")
        return 1
    if models is None:
        sys.stdout.write(json.dumps({"error": "no model is configured", "checks": []}) + "\n")
        return 1
    checks = examine(models)
    sys.stdout.write(json.dumps({"error": None, "checks": [asdict(check) for check in checks]}) + "\n")
    return 0 if all(check.works for check in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
