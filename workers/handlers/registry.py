"""The handler of each kind of step.

Importable by every role: a handler imports agents, or the judge, only where it asks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cupilot.domain.states import StepKind
from workers.handlers.ablate import ABLATE
from workers.handlers.attribute import ATTRIBUTE
from workers.handlers.candidate import ASKED, JUDGED
from workers.handlers.confirm import CONFIRM
from workers.handlers.handler import Handler
from workers.handlers.initialise import INITIALISE
from workers.handlers.prepare import PREPARE

HANDLERS: Mapping[StepKind, Handler[Any, Any]] = {
    StepKind.PREPARE: PREPARE,
    StepKind.INITIALISE: INITIALISE,
    StepKind.CROSS: ASKED,
    StepKind.TRANSLATE: ASKED,
    StepKind.MERGE: ASKED,
    StepKind.CONVERT: ASKED,
    StepKind.CHECK: JUDGED,
    StepKind.WRITE: ASKED,
    StepKind.ACT: ASKED,
    StepKind.EVALUATE: JUDGED,
    StepKind.REVISE: ASKED,
    StepKind.IMPROVE: ASKED,
    StepKind.ALIGN: ASKED,
    StepKind.CONFIRM: CONFIRM,
    StepKind.ABLATE: ABLATE,
    StepKind.ATTRIBUTE: ATTRIBUTE,
}
