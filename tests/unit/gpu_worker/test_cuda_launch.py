"""Encoding of launches for the driver, and names of its errors: no GPU and no driver needed."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cuda.bindings import driver as cu

from cupilot.domain.errors import Unavailable
from cupilot.domain.evaluation import LACKS_MEMORY, FailureKind
from gpu_worker.targets.base import RunnerError
from gpu_worker.targets.cuda import driver, installation, nvml, runner, tensor_maps
from gpu_worker.targets.cuda.head_start import RECENT, HeadStart


def prepared(pointers: list[int | tensor_maps.Encoded], geometry: driver.Geometry) -> driver.PreparedLaunch:
    function = cast(driver.Function, SimpleNamespace(name="k", handle=None))
    stream = cast(driver.Stream, SimpleNamespace(handle=cu.CUstream(0)))
    return driver.PreparedLaunch(function, stream, pointers, geometry)


def test_a_plain_launch_has_its_sizes_and_no_attributes() -> None:
    config = prepared([1], driver.Geometry(grid=(7, 2, 1), block=(128, 1, 1), shared_bytes=64))._config
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (7, 2, 1)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (128, 1, 1)
    assert config.sharedMemBytes == 64
    assert config.numAttrs == 0


def test_clusters_and_cooperation_are_attributes() -> None:
    geometry = driver.Geometry(grid=(8, 1, 1), block=(32, 1, 1), cluster=(4, 2, 1), cooperative=True)
    config = prepared([], geometry)._config
    cluster, cooperative = config.attrs
    assert config.numAttrs == 2
    assert (cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z) == (4, 2, 1)
    assert cooperative.id == cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    assert cooperative.value.cooperative == 1


def test_parameters_are_addresses_of_pointers() -> None:
    pointers: list[int | tensor_maps.Encoded] = [0x7F0000000000, 0x7F0000001000, 3]
    launch = prepared(pointers, driver.Geometry(grid=(1, 1, 1), block=(1, 1, 1)))
    addresses = (ctypes.c_void_p * 3).from_address(launch._address)
    assert [ctypes.c_void_p.from_address(cast(int, address)).value for address in addresses] == pointers


TILES = {
    "tensor": "x", "dtype": "bfloat16", "dims": [64, 32], "strides": [128], "box": [64, 8], "element_strides": [1, 2],
    "swizzle": "128B", "l2_promotion": "256B", "fill": "nan",
}  # fmt: skip


class Encoder:
    """The driver's cuTensorMapEncodeTiled, which writes into the map and remembers what it was told."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.told: list[Any] = []

    def __call__(self, place: Any, *told: Any) -> int:
        assert place.value % 64 == 0, "the driver wants the map aligned"
        ctypes.memset(place.value, 0xAB, tensor_maps.BYTES)
        self.told = [list(item) if isinstance(item, ctypes.Array) else item.value for item in told]
        return self.status


def test_a_tensor_map_is_encoded_in_the_drivers_order(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder()
    monkeypatch.setattr(tensor_maps, "_encoder", lambda: encoder)
    made = tensor_maps.encode(TILES, 0x7F0000001000)
    assert encoder.told == [9, 2, 0x7F0000001000, [64, 32], [128], [64, 8], [1, 2], 0, 3, 3, 1]
    launch = prepared([7, made], driver.Geometry(grid=(1, 1, 1), block=(1, 1, 1)))
    pointer, by_value = (ctypes.c_void_p * 2).from_address(launch._address)
    assert ctypes.c_void_p.from_address(pointer).value == 7
    assert ctypes.string_at(by_value, tensor_maps.BYTES) == b"\xab" * tensor_maps.BYTES


def test_a_map_that_the_driver_refuses_is_the_plans_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_maps, "_encoder", lambda: Encoder(status=1))
    subject = runner.CudaRunner()
    subject.adopt(0x1000)
    with pytest.raises(RunnerError, match="tensor map 'tiles': the driver refuses") as caught:
        subject._argument({"tensor_maps": {"tiles": TILES}}, {"x": 256}, "tiles")
    assert caught.value.kind == FailureKind.INVALID_PLAN.value
    assert subject._argument({"tensor_maps": {"tiles": TILES}}, {"x": 256}, "x") == 0x1100


def test_a_geometry_reads_well_in_a_message() -> None:
    geometry = driver.Geometry(grid=(1, 2, 3), block=(4, 5, 6), shared_bytes=7, cluster=(2, 1, 1), cooperative=True)
    assert str(geometry) == (
        "grid (1, 2, 3), block (4, 5, 6), 7 bytes of dynamic shared memory, cluster (2, 1, 1), cooperative"
    )


def test_a_failed_call_names_its_error() -> None:
    with pytest.raises(driver.DriverError, match=r"loading: CUDA_ERROR_INVALID_IMAGE") as caught:
        driver.check((cu.CUresult.CUDA_ERROR_INVALID_IMAGE, None), "loading")
    assert caught.value.code == "INVALID_IMAGE"


def test_a_call_gives_its_values() -> None:
    success: Any = cu.CUresult.CUDA_SUCCESS
    assert driver.check((success,), "x") == ()
    assert driver.check((success, 5), "x") == 5
    assert driver.check((success, 5, 6), "x") == (5, 6)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ILLEGAL_ADDRESS", FailureKind.ILLEGAL_ACCESS),
        ("MISALIGNED_ADDRESS", FailureKind.ILLEGAL_ACCESS),
        ("LAUNCH_FAILED", FailureKind.CRASH),
        ("OUT_OF_MEMORY", FailureKind.OUT_OF_MEMORY),
        ("INVALID_VALUE", FailureKind.LAUNCH_ERROR),
        ("COOPERATIVE_LAUNCH_TOO_LARGE", FailureKind.LAUNCH_ERROR),
        ("ECC_UNCORRECTABLE", FailureKind.INFRASTRUCTURE),
        ("DEVICE_UNAVAILABLE", FailureKind.INFRASTRUCTURE),
    ],
)
def test_a_driver_error_is_reported_as_the_failure_it_means(code: str, kind: FailureKind) -> None:
    @runner._reported("launch_error")
    def fail() -> None:
        raise driver.DriverError(code, "running the kernel")

    with pytest.raises(RunnerError) as caught:
        fail()
    assert caught.value.kind == kind.value
    assert caught.value.details == {"code": code}


def test_a_card_without_room_for_the_runner_says_nothing_of_the_kernel() -> None:
    @runner._reported_as_machine
    def fail() -> None:
        raise driver.DriverError("OUT_OF_MEMORY", "opening the card")

    with pytest.raises(RunnerError) as caught:
        fail()
    assert (caught.value.kind, caught.value.details) == ("infrastructure", {"code": LACKS_MEMORY})


def test_every_reported_kind_is_one_of_the_domain() -> None:
    assert set(runner._KINDS.values()) <= {kind.value for kind in FailureKind}
    assert all(hasattr(cu.CUresult, f"CUDA_ERROR_{code}") for code in runner._KINDS)


def test_a_head_start_lasts_as_long_as_recent_submissions() -> None:
    start = HeadStart(flush_seconds=25e-6, longest=1e-3)
    assert start.flushes() == 1  # the cache is flushed at any rate
    start.record(100e-6)
    assert start.flushes() * 25e-6 >= 100e-6
    start.record(30e-3)
    assert start.flushes() == 40, "a reference that waits within its calls would be waited for twice"
    for _ in range(RECENT):
        start.record(10e-6)
    assert start.flushes() == 1


@pytest.mark.parametrize(
    ("minor", "cards"),
    [(1, {"nvidia1"}), (None, {"nvidia0", "nvidia1", "nvidia10"}), (7, {"nvidia0", "nvidia1", "nvidia10"})],
    ids=["its own", "unknown", "without a node"],
)
def test_a_process_sees_the_node_of_its_own_card(
    minor: int | None, cards: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {"nvidiactl", "nvidia-uvm"}
    for name in ("nvidia0", "nvidia1", "nvidia10", *shared):
        (tmp_path / name).touch()
    (tmp_path / "nvidia-caps").mkdir()
    monkeypatch.setattr(installation, "DEVICES", tmp_path)
    assert {node.name for node in installation.device_nodes(minor)} == cards | shared


def test_a_kernel_may_use_the_most_shared_memory_of_its_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[int] = []
    function = SimpleNamespace(attribute=lambda _: 1024, allow_shared_bytes=allowed.append, parameter_sizes=lambda: [8])
    module = SimpleNamespace(function=lambda _: function)
    monkeypatch.setattr(driver, "Module", lambda _: module)
    monkeypatch.setattr(runner.CudaRunner, "_facts", lambda *_: {})
    loading = runner.CudaRunner.__new__(runner.CudaRunner)
    loading._module, loading._cubin = None, b""
    launch = {"kernel": "k", "args": ["x"], "tensor_maps": {}, "cluster": (1, 1, 1)}
    loading._load([{**launch, "shared_bytes": 160 * 1024}, {**launch, "shared_bytes": 64 * 1024}])
    assert set(allowed) == {160 * 1024}


def test_a_device_that_keeps_no_cache_lines_has_none_to_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [cu.CUresult.CUDA_SUCCESS, cu.CUresult.CUDA_ERROR_NOT_SUPPORTED, cu.CUresult.CUDA_ERROR_UNKNOWN]
    monkeypatch.setattr(driver.cu, "cuCtxResetPersistingL2Cache", lambda: (answers.pop(0),))
    driver.reset_persisting_cache()
    driver.reset_persisting_cache()
    with pytest.raises(driver.DriverError):
        driver.reset_persisting_cache()


@pytest.mark.parametrize(("visible", "words"), [("-1", "shows no card"), ("MIG-1", "MIG"), (None, "no NVIDIA GPU")])
def test_no_card_is_taken_where_none_may_be_used(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, words: str
) -> None:
    monkeypatch.setattr(nvml, "visible_uuids", list)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(Unavailable, match=words):
        nvml.first_visible()
