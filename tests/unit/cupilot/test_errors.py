"""Domain errors: stable codes that clients may rely on."""

from __future__ import annotations

from cupilot.domain import errors


def test_codes_are_stable_and_distinct() -> None:
    found = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    kinds = [kind for kind in found if issubclass(kind, errors.CupilotError)]
    assert {kind.code: kind.status for kind in kinds} == {
        "internal_error": 500,
        "invalid_input": 422,
        "invalid_problem": 422,
        "invalid_plan": 422,
        "invalid_tensor_map": 422,
        "not_found": 404,
        "conflict": 409,
        "pruned": 410,
        "unauthorized": 401,
        "unavailable": 503,
        "busy": 429,
    }


def test_an_error_carries_its_mend_and_place() -> None:
    error = errors.InvalidPlan("no", hint="do this", where="plan.launches[0]")
    assert (str(error), error.hint, error.where) == ("no", "do this", "plan.launches[0]")
