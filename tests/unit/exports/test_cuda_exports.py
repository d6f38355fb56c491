"""Exports for GPUs on a machine without one: imported, compiled by NVRTC, refused where a form cannot carry them."""

from __future__ import annotations

import ast
import ctypes
import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cupilot.domain.kernel import Launch
from cupilot.exports import ExportFormat, ExportRefused, Winner, files, refusals
from cupilot.exports.texts import literal
from tests.gpu import kernels
from tests.unit.exports.cuda_cases import CUDA_CASES, GELU, cuda_winner
from tests.unit.exports.installed import imported, write
from tests.unit.exports.winners import EXTREMES, GELU_CPU, source, winner

HEAD = "import torch\nimport torch.nn as nn\n"


@pytest.fixture(params=CUDA_CASES, ids=lambda name: name.replace(" ", "_"))
def made(request: pytest.FixtureRequest) -> Winner:
    return cuda_winner(request.param)


def test_the_package_imports_compiles_and_leaves_other_devices_to_the_reference(made: Winner, tmp_path: Path) -> None:
    with imported(write(made, ExportFormat.TORCH, tmp_path), f"cupilot_{made.slug}") as package:
        launcher = package.launcher
        runtime = sys.modules[f"{package.__name__}._launch_cuda"]
        binary = runtime.compile_source(launcher._source, launcher._headers, package.spec["options"])
        assert binary[:4] == b"\x7fELF"
        for launch in package.spec["launches"]:
            assert launch["kernel"].encode() in binary
        arguments = package.reference.get_inputs()
        with torch.no_grad():
            fast, slow = package.Model(), package.reference.Model()
            with pytest.warns(UserWarning, match="not for cpu"):
                got = fast(*arguments)
            torch.testing.assert_close(got, slow(*arguments))
            assert "CUDA devices" in " ".join(fast.why_not(*arguments))


def test_a_launch_is_given_the_addresses_of_its_own_arguments_each_time(tmp_path: Path) -> None:
    made = cuda_winner("everything")
    with imported(write(made, ExportFormat.TORCH, tmp_path), "cupilot_everything") as package:
        runtime = sys.modules["cupilot_everything._launch_cuda"]
        seen: list[tuple[int, list[int]]] = []

        def launch(config: Any, function: str, parameters: int, extra: int) -> tuple[int]:
            assert (function, extra) == ("function", 0)
            pointers = (ctypes.c_void_p * 3).from_address(parameters)
            seen.append((config.hStream, [ctypes.c_uint64.from_address(pointer).value for pointer in pointers]))
            return (0 if config.hStream else 1,)

        wanted = runtime.places(package.spec)
        assert wanted == [[0, 3], [3, 1, 2]], "x; partial is the workspace, after both outputs"
        second = runtime._Launch("write_out", "function", SimpleNamespace(hStream=0), wanted[1])
        second._driver_launch = launch
        second.start([10, 20, 30, 2**48 + 40], 7)
        second.start([11, 21, 31, 41], 8)
        assert seen == [(7, [2**48 + 40, 20, 30]), (8, [41, 21, 31])]
        with pytest.raises(RuntimeError, match="launching write_out"):
            second.start([1, 2, 3, 4], 0)


def test_a_tensor_map_follows_its_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cuda_winner("tensor maps")
    told: list[tuple[int, int]] = []
    with imported(write(made, ExportFormat.TORCH, tmp_path), "cupilot_tensor_maps") as package:
        runtime = sys.modules["cupilot_tensor_maps._launch_cuda"]

        def encode(place: Any, dtype: Any, rank: Any, address: Any, dims: Any, *_: Any) -> int:
            assert place.value % 64 == 0
            told.append((place.value, address.value))
            assert (dtype.value, rank.value, list(dims)) == (7, 2, [204, 129])
            return 0 if address.value < 90 else 1

        monkeypatch.setattr(
            runtime.ctypes, "CDLL", lambda _: SimpleNamespace(cuTensorMapEncodeTiled=encode), raising=True
        )
        (wanted,), (launch,) = runtime.places(package.spec), package.spec["launches"]
        assert wanted == [0, 1], "a map stands where its tensor does"
        maps = runtime._maps(launch)
        started = runtime._Launch("gelu", "function", SimpleNamespace(hStream=0), wanted, maps)
        passed: list[list[int]] = []
        started._driver_launch = lambda _, __, parameters, ___: (
            passed.append(list((ctypes.c_void_p * 2).from_address(parameters))) or (0,)
        )
        for addresses in ([10, 20], [10, 20], [10, 30]):
            started.start(addresses, 7)
        assert [address for _, address in told] == [10, 20, 30], "encoded again only for another address"
        assert passed == [[maps[0].place, maps[1].place]] * 3
        with pytest.raises(RuntimeError, match="refuses a tensor map over out"):
            started.start([10, 99], 7)


def test_a_launch_that_does_not_fit_the_device_is_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver

    room = {"blocks": 1, "clusters": 1, "units": 2}
    names = {
        "cuOccupancyMaxActiveBlocksPerMultiprocessor": "blocks",
        "cuOccupancyMaxActiveClusters": "clusters",
        "cuDeviceGetAttribute": "units",
    }
    for name, kind in names.items():
        monkeypatch.setattr(driver, name, lambda *_, kind=kind: (0, room[kind]))
    monkeypatch.setattr(driver, "cuCtxGetDevice", lambda: (0, 0))
    made = cuda_winner("everything")
    with imported(write(made, ExportFormat.TORCH, tmp_path), "cupilot_everything") as package:
        runtime = sys.modules["cupilot_everything._launch_cuda"]
        clusters, cooperative = package.spec["launches"]

        def check(launch: dict[str, Any], **changes: int) -> None:
            room.update(changes)
            runtime._check_room("function", "config", launch)

        check(clusters)
        check(cooperative)
        with pytest.raises(RuntimeError, match=r"2 blocks of reduce_rows must run at once, .* room for 0"):
            check(clusters, clusters=0)
        with pytest.raises(RuntimeError, match=r"2 blocks of write_out must run at once, .* room for 1"):
            check(cooperative, units=1)
        both = {**clusters, "cooperative": True}
        check(both, clusters=128)
        with pytest.raises(RuntimeError, match="256 blocks"):
            check(both, clusters=127)
        check({**cooperative, "cooperative": False}, units=0)


def test_what_nvcc_built_is_exported_with_nvrtcs_options() -> None:
    made = cuda_winner("gelu")
    assert made.evaluation.build is not None
    flags = ("--gpu-architecture=sm_90a", "--std=c++17", "--expt-relaxed-constexpr", "--ptxas-options=-v")
    build = made.evaluation.build.model_copy(update={"compiler": "nvcc 13.0.88", "flags": flags})
    other = replace(made, evaluation=made.evaluation.model_copy(update={"build": build}))
    assert other.options() == ["--gpu-architecture=sm_90a", "--std=c++17", "--device-as-default-execution-space"]
    assert "measured was compiled by nvcc" in files(other, ExportFormat.TORCH)["README.md"]


def test_every_feature_of_a_plan_is_carried() -> None:
    made = cuda_winner("everything")
    spec = json.loads(files(made, ExportFormat.TORCH)["cupilot_everything/spec.json"])
    first, second = spec["launches"]
    assert (first["grid"], first["block"], first["shared_bytes"]) == ([256, 1, 1], [128, 1, 1], 65536)
    assert (first["cluster"], first["cooperative"], second["cooperative"]) == ([2, 1, 1], False, True)
    assert second["grid"] == [2, 1, 1]
    assert spec["workspace"] == {"partial": 2048}
    assert "--gpu-architecture=sm_90a" in spec["options"]
    assert [item["name"] for item in spec["outputs"]] == ["out0", "out1"]
    header = files(made, ExportFormat.TORCH)["cupilot_everything/include/problem.h"]
    assert "constexpr int CLUSTER = 2;" in header


def test_model_new_stands_alone(made: Winner, tmp_path: Path) -> None:
    write(made, ExportFormat.KERNELBENCH, tmp_path)
    text = (tmp_path / f"{made.slug}_modelnew.py").read_text(encoding="utf-8")
    assert made.kernel.source in text or ascii(made.kernel.source)[1:20] in text
    context: dict[str, Any] = {}
    exec(compile(text, "modelnew", "exec", dont_inherit=True), context)
    with torch.no_grad(), pytest.warns(UserWarning, match="not for cpu"):
        context["ModelNew"](*context["get_init_inputs"]())(*context["get_inputs"]())
    assert context["KERNEL_SOURCE"] == made.kernel.source


def test_cupy_refuses_a_cooperative_launch_that_does_not_fit(tmp_path: Path) -> None:
    code = kernels.kernel(
        "__global__ void k(const float* x, float* out) {}",
        Launch(kernel="k", args=("x", "out"), grid=("64",), block=("128",), cooperative=True),
    )
    made = winner("gelu", GELU, code)
    device = FakeCupy()
    with device.installed(), imported(write(made, ExportFormat.CUPY, tmp_path), "gelu_cupy") as module:
        launch, kernel = module.PROVEN["launches"][0], SimpleNamespace(kernel=SimpleNamespace(ptr=1))
        module._check_room(launch, kernel)
        device.units = 31
        with pytest.raises(ValueError, match="64 blocks of k must run at once, and this device has room for 62"):
            module._check_room(launch, kernel)


def test_cupy_is_given_one_source_that_compiles(tmp_path: Path) -> None:
    for name in ("softmax", "layer norm", "gelu", "row sum"):
        made = cuda_winner(name)
        folder = write(made, ExportFormat.CUPY, tmp_path / made.slug)
        device = FakeCupy()
        with device.installed(), imported(folder, f"{made.slug}_cupy") as module:
            function = getattr(module, made.slug)
            given = [np.zeros(item["shape"], item["dtype"]).view(FakeArray) for item in module.PROVEN["given"]]
            function(*given)
            with pytest.raises(ValueError, match="proven for"):
                function(given[0][:3], *given[1:])
            given[0].where = 1
            with pytest.raises(ValueError, match="the current device is"):
                function(*given)
        assert device.launched == [
            (tuple(launch["grid"]), tuple(launch["block"]), len(launch["args"]), launch["shared_bytes"])
            for launch in made.spec()["launches"]
        ]


class FakeArray(np.ndarray[Any, Any]):
    """A NumPy array with CuPy's idea of where it lies."""

    where = 0

    @property
    def device(self) -> Any:  # type: ignore[override]
        return FakeDevice(self.where)

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=256)


@dataclass(frozen=True)
class FakeDevice:
    id: int = 0
    units: int = 32
    compute_capability = "90"

    @property
    def attributes(self) -> dict[str, int]:
        return {"MultiProcessorCount": self.units}


class FakeCupy:
    """CuPy's interface over NumPy, with the real compiler and no launches; CuPy itself needs a GPU to be imported."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.units = 32

    def installed(self) -> Any:
        module = ModuleType("cupy")
        driver = SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=lambda *_: 2)
        module.__dict__.update(
            cuda=SimpleNamespace(Device=self.device, driver=driver),
            RawModule=self.raw_module, dtype=np.dtype, uint8=np.uint8,
            empty=lambda shape, dtype: np.empty(shape, dtype).view(FakeArray),
            ndarray=lambda shape, dtype, **_: np.zeros(shape, dtype).view(FakeArray),
        )  # fmt: skip
        return _Installed(module)

    def device(self) -> Any:
        return FakeDevice(units=self.units)

    def raw_module(self, *, code: str, options: Any, name_expressions: Any, enable_cooperative_groups: bool) -> Any:
        from cuda.bindings import nvrtc

        from gpu_worker.targets.cuda import installation

        assert not enable_cooperative_groups
        _, program = nvrtc.nvrtcCreateProgram(code.encode(), b"unit.cu", 0, [], [])
        for name in name_expressions:
            nvrtc.nvrtcAddNameExpression(program, name.encode())
        folders = [f"-I{folder}" for folder in installation.include_folders()]
        every = [option.encode() for option in (*options, "--gpu-architecture=sm_90", *folders)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(every), every)
        size = nvrtc.nvrtcGetProgramLogSize(program)[1]
        log = bytes(max(size, 2))
        nvrtc.nvrtcGetProgramLog(program, log)
        assert int(status) == 0, log.decode()
        for name in name_expressions:
            assert nvrtc.nvrtcGetLoweredName(program, name.encode())[1]
        return SimpleNamespace(get_function=lambda _: self)

    shared_size_bytes = 0

    def __call__(self, grid: Any, block: Any, arguments: Any, *, shared_mem: int) -> None:
        self.launched.append((grid, block, len(arguments), shared_mem))


class _Installed:
    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __enter__(self) -> None:
        sys.modules["cupy"] = self._module

    def __exit__(self, *_: object) -> None:
        del sys.modules["cupy"]


def test_what_a_form_cannot_carry_is_refused_with_the_reason() -> None:
    found = refusals(cuda_winner("everything"))
    assert found[ExportFormat.TORCH] is None
    assert found[ExportFormat.BUNDLE] is None
    assert "clusters" in (found[ExportFormat.CUPY] or "")
    tiles = refusals(cuda_winner("tensor maps"))
    assert "tensor maps" in (tiles.pop(ExportFormat.CUPY) or "")
    assert set(tiles.values()) == {None}
    assert "CPU" in (refusals(winner("gelu", GELU, GELU_CPU))[ExportFormat.CUPY] or "")
    accelerated = kernels.kernel(
        "// wgmma here\n__global__ void k(const float* x, float* out) {}",
        Launch(kernel="k", args=("x", "out"), grid=("1",), block=("1",)),
    )
    with pytest.raises(ExportRefused, match="architecture-specific"):
        files(winner("w", GELU, accelerated), ExportFormat.CUPY)
    template = kernels.kernel(
        "template <int N> __global__ void k(const float* x, float* out) {}\n"
        "template __global__ void k<4>(const float* x, float* out);",
        Launch(kernel="k", args=("x", "out"), grid=("1",), block=("1",)),
    )
    with pytest.raises(ExportRefused, match="template"):
        files(winner("w", GELU, template), ExportFormat.CUPY)


def test_a_reference_that_changes_its_own_state_is_not_replaced() -> None:
    text = source("return self.norm(x)", "torch.randn(8, 16)", "self.norm = nn.BatchNorm1d(16)")
    code = kernels.kernel(
        "__global__ void k(const float* x, float* out) {}",
        Launch(kernel="k", args=("x", "out"), grid=("1",), block=("1",)),
    )
    found = refusals(winner("norm", text, code))
    assert "its own state" in (found[ExportFormat.TORCH] or "")
    assert found[ExportFormat.BUNDLE] is None


def test_names_that_both_need_are_refused_in_the_single_file() -> None:
    text = EXTREMES + "\n\ndef allocate():\n    return 1\n"
    code = kernels.kernel(
        "__global__ void k(const float* x, float* a, long long* b) {}",
        Launch(kernel="k", args=("x", "out0", "out1"), grid=("1",), block=("1",)),
    )
    with pytest.raises(ExportRefused, match="'allocate'"):
        files(winner("max", text, code), ExportFormat.KERNELBENCH)


@pytest.mark.parametrize(
    "text",
    [
        "plain\ntext\n", "", '"""', "'''", 'ends with "', "ends with \\", "\\n is not a newline", "tab\there\r\nand CR",
        "\u2028 separators \x85", "\ud7ff\ue000 \U0001f600", "$dollar ${braces}", "'\"\\\n'''\"\"\"\n",
    ],
)  # fmt: skip
def test_literals_say_what_was_meant(text: str) -> None:
    assert ast.literal_eval(literal(text)) == text


def test_exports_name_no_place_of_this_service(made: Winner) -> None:
    for form, refused in refusals(made).items():
        if refused is None:
            for path, text in files(made, form).items():
                assert not re.search(r"/(home|root|tmp|work)/", text), f"{form}: {path}"
