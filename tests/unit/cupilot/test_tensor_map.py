"""Tensor maps of a plan: what they become, and every rule that refuses one before anything is built."""

from __future__ import annotations

from typing import Any

import pytest
from cuda.bindings import driver as cu
from pydantic import ValidationError

from cupilot.domain.errors import InvalidPlan, InvalidTensorMap
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, ResolvedTensorMap, Tunable, Workspace, resolve
from cupilot.domain.problem import DType, NumericsPolicy, ProblemFacts, Role, Target, TensorSpec
from cupilot.domain.tensor_map import Fill, L2Promotion, MapElement, Swizzle, TensorMap
from cupilot.exports.runtime._launch_cuda import MAP_CHOICES
from gpu_worker.targets.cuda import tensor_maps
from tests.unit.cupilot.factories import facts

WIDE = {"TILE": Tunable(value=32, choices=(32, 64, 512))}


def tensor(name: str, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType = DType.FLOAT32) -> TensorSpec:
    return TensorSpec(name=name, role=Role.INPUT, dtype=dtype, shape=shape, strides=strides)


X = tensor("x", (100, 204), (204, 1))
TENSORS = (
    X,
    tensor("odd", (100, 7), (7, 1)),
    tensor("turned", (100, 8), (1, 100)),
    tensor("image", (2, 3, 5, 6, 7, 8), (5040, 1680, 336, 56, 8, 1)),
    tensor("number", (), ()),
    tensor("index", (64, 32), (32, 1), DType.INT32),
    tensor("flags", (64, 32), (32, 1), DType.BOOL),
)
SCRATCH = Workspace(name="scratch", bytes="64 * 64 * 4")


def kernel(*maps: TensorMap, target: Target = Target.CUDA) -> Kernel:
    launch = Launch(kernel="k", args=("x", *(tensor_map.name for tensor_map in maps)), grid=("1",), block=("32",))
    bare = Launch(kernel="k", args=("x",))
    plan = LaunchPlan(
        launches=(launch if target is Target.CUDA else bare,), tunables=WIDE, workspace=(SCRATCH,), tensor_maps=maps
    )
    return Kernel(target=target, source="//", plan=plan)


def problem(policy: NumericsPolicy = NumericsPolicy.FP32) -> ProblemFacts:
    return facts(*TENSORS).model_copy(update={"policy": policy})


def of(policy: NumericsPolicy = NumericsPolicy.FP32, values: dict[str, int] | None = None, **told: Any) -> Any:
    made = TensorMap.model_validate({"name": "tiles", "tensor": "x", "box": ("TILE", "8"), **told})
    (launch,) = resolve(kernel(made).tuned(values or {}), problem(policy)).launches
    assert launch.args == ("x", "tiles")
    return launch.tensor_maps["tiles"]


def test_a_map_is_the_tensors_own_innermost_first() -> None:
    assert of() == ResolvedTensorMap(
        tensor="x", dtype=MapElement.FLOAT32, dims=(204, 100), strides=(816,), box=(32, 8), element_strides=(1, 1)
    )


def test_boxes_follow_the_tunables() -> None:
    assert of(values={"TILE": 64}).box == (64, 8)
    with pytest.raises(InvalidTensorMap, match=r"box\[0\] is 512; it must be 1 to 256"):
        of(values={"TILE": 512})


def test_a_map_may_see_a_tensor_in_other_dimensions() -> None:
    seen = of(
        dims=("4", "51", "X_ROWS"), strides=("4", "X_STRIDE0"), box=("4", "51", "2"), element_strides=("1", "3", "1")
    )
    assert (seen.dims, seen.strides, seen.box, seen.element_strides) == ((4, 51, 100), (16, 816), (4, 51, 2), (1, 3, 1))
    assert of(dims=("X_SIZE",), box=("256",)).strides == ()
    assert of(dims=("8", "2", "3"), box=("8", "2", "3")).strides == (32, 64), "without gaps unless strides are given"
    turned = of(tensor="turned", dims=("TURNED_DIM0", "TURNED_DIM1"), strides=("TURNED_STRIDE1",))
    assert (turned.dims, turned.strides) == ((100, 8), (400,))


def test_a_workspace_is_told_its_elements() -> None:
    seen = of(tensor="scratch", dtype="bfloat16", dims=("128", "64"), box=("64", "8"), swizzle="128B", fill="nan")
    assert (seen.dtype, seen.strides, seen.swizzle, seen.fill) == (MapElement.BFLOAT16, (256,), Swizzle.B128, Fill.NAN)


def test_types_without_a_name_of_the_drivers_are_taken_for_one_as_wide() -> None:
    assert of(tensor="flags").dtype is MapElement.UINT8
    assert of(tensor="index", dtype="uint32").dtype is MapElement.UINT32
    assert of(NumericsPolicy.TF32, dtype="tfloat32").dtype is MapElement.TFLOAT32
    assert {element.itemsize for element in MapElement} == {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("told", "rule", "field", "message"),
    [
        ({"tensor": "y"}, "tensor", "tensor", "unknown tensor 'y'"),
        ({"tensor": "number"}, "rank", "dims", "0 dimensions"),
        ({"tensor": "image", "box": ("8",) * 6}, "rank", "dims", "6 dimensions; 1 to 5"),
        ({"box": ("32",)}, "rank", "box", "box has 1 entries; 2 are expected"),
        ({"strides": ("4", "4")}, "rank", "strides", "strides has 2 entries; 1 are expected"),
        ({"element_strides": ("1",)}, "rank", "element_strides", "1 entries; 2 are expected"),
        ({"tensor": "scratch", "dtype": "float32"}, "rank", "dims", "needs dims"),
        ({"tensor": "scratch", "dims": ("64", "64")}, "element", "dtype", "needs a dtype"),
        ({"dtype": "bfloat16"}, "element", "dtype", "not as wide"),
        ({"tensor": "index", "fill": "nan"}, "element", "fill", "no NaN"),
        ({"dtype": "tfloat32"}, "policy", "dtype", "the policy fp32 does not allow"),
        ({"dims": ("0", "8")}, "dimension", "dims", r"dims\[0\] is 0"),
        ({"tensor": "turned", "box": ("4", "4")}, "inner_stride", "dims", "lie 100 apart"),
        ({"tensor": "odd", "box": ("4", "4")}, "stride", "strides", "28 bytes; it must be a multiple of 16"),
        ({"strides": ("0 - 204",)}, "stride", "strides", "-816 bytes"),
        ({"box": ("32", "257")}, "box", "box", r"box\[1\] is 257"),
        ({"box": ("256", "0")}, "box", "box", r"box\[1\] is 0"),
        ({"box": ("256", "256")}, "box", "box", "262144 bytes; shared memory holds"),
        ({"box": ("6", "8")}, "inner_box", "box", "24 bytes; it must be a multiple of 16"),
        ({"swizzle": "64B"}, "swizzle", "box", "128 bytes; at most 64 with swizzle 64B"),
        ({"element_strides": ("1", "9")}, "element_stride", "element_strides", "is 9; it must be 1 to 8"),
        ({"dims": ("X_COLS", "X_ROWS + 1")}, "reach", "dims", "reaches 82416 bytes from .* 'x', which has 81600"),
        ({"dims": ("X_COLS + 1", "X_ROWS"), "strides": ("X_COLS",)}, "reach", "dims", "reaches 81604"),
        ({"strides": ("208",)}, "reach", "dims", "which has 81600"),
    ],
)  # fmt: skip
def test_a_map_that_could_not_be_used_names_rule_and_field(
    told: dict[str, Any], rule: str, field: str, message: str
) -> None:
    with pytest.raises(InvalidTensorMap, match=message) as caught:
        of(**told)
    assert (caught.value.rule, caught.value.where) == (rule, f"tensor_maps.tiles.{field}")
    assert isinstance(caught.value, InvalidPlan)


def test_names_are_apart_and_only_a_gpu_has_maps() -> None:
    tiles = TensorMap(name="x", tensor="x", box=("32", "8"))
    with pytest.raises(InvalidPlan, match="name of another argument"):
        resolve(kernel(tiles), problem())
    with pytest.raises(InvalidPlan, match="a cpu kernel has no tensor maps"):
        resolve(kernel(tiles, target=Target.CPU), problem())
    with pytest.raises(ValidationError, match="not a C identifier"):
        TensorMap(name="a b", tensor="x", box=("32",))
    with pytest.raises(ValidationError, match="none"):
        TensorMap.model_validate({"name": "a", "tensor": "x", "box": ["32"], "interleave": "16B"})


def test_plans_without_maps_keep_the_hashes_they_had() -> None:
    plain = Kernel(
        target=Target.CUDA, source="//",
        plan=LaunchPlan(launches=(Launch(kernel="k", args=("x",), grid=("1",), block=("1",)),)),
    )  # fmt: skip
    assert plain.content_hash() == "2f48b1bdb79232c17328ebeeac9db269134ab96ccba381541633d7084ad88985"
    assert kernel(TensorMap(name="a", tensor="x", box=("32", "8"))).content_hash() != kernel().content_hash()


def test_numbers_are_those_of_the_drivers_enumerations() -> None:
    """In the runner, which has no cuda-bindings' enumerations at hand, and in exported code."""
    elements = {
        element.value: int(cu.CUtensorMapDataType[f"CU_TENSOR_MAP_DATA_TYPE_{element.name}"]) for element in MapElement
    }
    swizzles = {
        swizzle.value: int(cu.CUtensorMapSwizzle[f"CU_TENSOR_MAP_SWIZZLE_{_driver(swizzle)}"]) for swizzle in Swizzle
    }
    prefix = "CU_TENSOR_MAP_L2_PROMOTION_"
    promotions = {
        promotion.value: int(
            cu.CUtensorMapL2promotion[prefix + ("" if promotion is L2Promotion.NONE else "L2_") + _driver(promotion)]
        )
        for promotion in L2Promotion
    }
    assert elements == tensor_maps.ELEMENTS == _counted("dtype")
    assert swizzles == tensor_maps.SWIZZLES == _counted("swizzle")
    assert promotions == tensor_maps.PROMOTIONS == _counted("l2_promotion")
    assert set(tensor_maps.FILLS) == {fill.value for fill in Fill}
    assert _counted("fill") == tensor_maps.FILLS


def _driver(one: Swizzle | L2Promotion) -> str:
    return one.value.upper()


def _counted(name: str) -> dict[str, int]:
    return {value: number for number, value in enumerate(MAP_CHOICES[name])}
