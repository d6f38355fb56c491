"""Kernels and plans: what is checked before anything is compiled."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cupilot.domain.errors import InvalidPlan
from cupilot.domain.kernel import MAX_SOURCE_BYTES, Kernel, Launch, LaunchPlan, Tunable, Workspace, resolve
from cupilot.domain.problem import Role, Target
from tests.unit.cupilot.factories import facts, kernel, tensor

TUNABLES = {"BLOCK": Tunable(value=256, choices=(128, 256))}


def launch(**changes: object) -> Launch:
    fields = {"kernel": "rows", "grid": ("X_ROWS",), "block": ("BLOCK",), "args": ("x", "out")}
    return Launch.model_validate({**fields, **changes})


def test_a_cuda_plan_resolves_over_header_and_tunables() -> None:
    plan = {
        "launches": (
            launch(grid=("ceil_div(X_SIZE, BLOCK)", "2"), shared_bytes="X_COLS * 4", args=("x", "partial")),
            launch(kernel="finish", args=("partial", "out"), cooperative=True, cluster=("2",)),
        ),
        "tunables": TUNABLES,
        "workspace": (Workspace(name="partial", bytes="X_ROWS * 8"),),
    }
    resolved = resolve(Kernel(target=Target.CUDA, source="//", plan=LaunchPlan.model_validate(plan)), facts())
    first, second = resolved.launches
    assert (first.grid, first.block, first.shared_bytes) == ((64, 2, 1), (256, 1, 1), 1024)
    assert (second.kernel, second.cluster, second.cooperative) == ("finish", (2, 1, 1), True)
    assert resolved.workspace == {"partial": 512}


def test_a_cpu_plan_has_only_functions_and_arguments() -> None:
    resolved = resolve(kernel(Launch(kernel="rows", args=("x", "out")), target=Target.CPU), facts())
    assert resolved.launches[0].args == ("x", "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"args": ("x", "y")}, "unknown argument 'y'"),
        ({"grid": ()}, "needs grid and block"),
        ({"block": ()}, "needs grid and block"),
        ({"grid": ("X_ROWS - 64",)}, "at least 1"),
        ({"grid": ("1", "1", "1", "1")}, "at most 3"),
        ({"shared_bytes": "0 - 4"}, "shared_bytes is -4"),
        ({"grid": ("Y_ROWS",)}, "unknown name 'Y_ROWS'"),
    ],
)
def test_plans_that_do_not_fit_say_why(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidPlan, match=message):
        resolve(kernel(launch(**changes), tunables=TUNABLES), facts())


@pytest.mark.parametrize(
    "changes", [{"grid": ("1",)}, {"block": ("1",)}, {"shared_bytes": "4"}, {"cluster": ("1",)}, {"cooperative": True}]
)
def test_a_cpu_launch_with_a_device_field_is_refused(changes: dict[str, object]) -> None:
    plain = {"kernel": "rows", "args": ("x", "out")}
    bad = Launch.model_validate({**plain, **changes})
    with pytest.raises(InvalidPlan, match="a cpu launch has no grid"):
        resolve(kernel(bad, target=Target.CPU), facts())


@pytest.mark.parametrize(
    ("workspace", "message"),
    [
        ((Workspace(name="x", bytes="4"),), "name of another tensor"),
        ((Workspace(name="a", bytes="4"), Workspace(name="a", bytes="4")), "name of another tensor"),
        ((Workspace(name="a", bytes="0"),), "would have 0 bytes"),
        ((Workspace(name="a", bytes="9 * 1024 * 1024 * 1024"),), "would have 9663676416 bytes"),
    ],
)
def test_workspace_is_bounded_and_named_apart(workspace: tuple[Workspace, ...], message: str) -> None:
    with pytest.raises(InvalidPlan, match=message):
        resolve(kernel(workspace=workspace), facts())


def test_a_tunable_must_not_shadow_the_header() -> None:
    with pytest.raises(InvalidPlan, match="'X_ROWS' has the name of a constant"):
        resolve(kernel(tunables={"X_ROWS": Tunable(value=1, choices=(1,))}), facts())


def test_every_tensor_role_can_be_an_argument() -> None:
    specs = [tensor(role.value, 4, role=role) for role in Role]
    names = tuple(spec.name for spec in specs)
    resolved = resolve(kernel(Launch(kernel="all", grid=("1",), block=("1",), args=names)), facts(*specs))
    assert resolved.launches[0].args == names


def test_other_tunable_values_keep_the_choices() -> None:
    plan = kernel(launch(), tunables=TUNABLES).plan
    changed = plan.with_values({"BLOCK": 128})
    assert changed.values() == {"BLOCK": 128}
    assert changed.tunables["BLOCK"].choices == (128, 256)
    with pytest.raises(InvalidPlan, match="512 is not a choice of the tunable 'BLOCK'"):
        plan.with_values({"BLOCK": 512})
    with pytest.raises(InvalidPlan, match="no such tunable: WARPS"):
        plan.with_values({"WARPS": 4})


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a;b", "a b", "x" * 65, "a\n", 'a"'])
def test_names_that_reach_the_compiler_are_identifiers(name: str) -> None:
    with pytest.raises(ValidationError, match="identifier"):
        Launch(kernel=name, args=())
    with pytest.raises(ValidationError, match="identifier"):
        Workspace(name=name, bytes="4")
    with pytest.raises(ValidationError, match="identifier"):
        LaunchPlan(launches=(launch(),), tunables={name: Tunable(value=1, choices=(1,))})


def test_source_is_bounded_and_text() -> None:
    with pytest.raises(ValidationError, match="larger than"):
        Kernel(target=Target.CPU, source="x" * (MAX_SOURCE_BYTES + 1), plan=kernel().plan)
    with pytest.raises(ValidationError, match="NUL"):
        Kernel(target=Target.CPU, source="a\0b", plan=kernel().plan)


def test_a_kernel_is_its_target_source_and_plan() -> None:
    one = kernel(launch(), tunables=TUNABLES)
    assert one.content_hash() == kernel(launch(), tunables=TUNABLES).content_hash()
    retuned = one.model_copy(update={"plan": one.plan.with_values({"BLOCK": 128})})
    assert one.content_hash() != retuned.content_hash()
    assert Kernel.model_validate_json(one.model_dump_json()) == one
