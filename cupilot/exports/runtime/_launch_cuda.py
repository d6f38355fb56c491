"""Compile the kernel with NVRTC on first use and launch it on PyTorch's current stream.

Needs cuda-bindings, NVRTC and the CUDA headers (pip: nvidia-cuda-nvrtc, nvidia-cuda-runtime, nvidia-cuda-cccl,
nvidia-cuda-crt). The launches, their sizes and the compiler's options are those that were measured.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ._buffers import places, prepare

SHARED_BYTES_UNASKED = 48 * 1024
PORTABLE_CLUSTER = 8


MAP_BYTES = MAP_ALIGNMENT = 128
"""Of a tensor map, ``CUtensorMap`` in cuda.h."""

MAP_CHOICES = {
    "dtype": [
        "uint8",
        "uint16",
        "uint32",
        "int32",
        "uint64",
        "int64",
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "float32_ftz",
        "tfloat32",
        "tfloat32_ftz",
    ],
    "swizzle": ["none", "32B", "64B", "128B"],
    "l2_promotion": ["none", "64B", "128B", "256B"],
    "fill": ["zeros", "nan"],
}
"""Members of the driver's enumerations of ``cuTensorMapEncodeTiled``, from 0 on."""


class _Map:
    """Tensor map over a call's tensor; encoded again when the address changes."""

    def __init__(self, declared: dict[str, Any]) -> None:
        self._declared = declared
        self._memory = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
        self.place = -(-ctypes.addressof(self._memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        self._over: int | None = None

    def point_to(self, address: int) -> None:
        """Make it a map of the tensor at this address."""
        if address == self._over:
            return
        declared = self._declared

        def array(kind: Any, name: str) -> Any:
            return (kind * max(len(declared[name]), 1))(*declared[name])

        def choice(name: str) -> Any:
            return ctypes.c_int(MAP_CHOICES[name].index(declared[name]))

        sizes, steps = array(ctypes.c_uint64, "dims"), array(ctypes.c_uint64, "strides")
        box, element_steps = array(ctypes.c_uint32, "box"), array(ctypes.c_uint32, "element_strides")
        status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
            ctypes.c_void_p(self.place), choice("dtype"), ctypes.c_uint32(len(declared["dims"])),
            ctypes.c_void_p(address),
            sizes, steps, box, element_steps,
            ctypes.c_int(0), choice("swizzle"), choice("l2_promotion"), choice("fill"),
        )  # fmt: skip
        if status != 0:
            raise RuntimeError(f"the driver refuses a tensor map over {declared['tensor']} with error {status}")
        self._over = address


class _Launch:
    """One launch of the plan: everything but addresses and stream is laid out once. Not for two threads at a time."""

    def __init__(
        self, name: str, function: Any, config: Any, wanted: Sequence[int], maps: dict[int, _Map] | None = None
    ) -> None:
        """Take the places of the tensors to pass (``wanted``), and of those passed as tensor maps, by argument."""
        from cuda.bindings import driver

        self._name = name
        self._function = function
        self._config = config
        self._wanted = wanted
        self._driver_launch = driver.cuLaunchKernelEx
        # The driver copies the arguments while it launches, so that the same memory serves the next call.
        self._values = (ctypes.c_uint64 * len(wanted))()
        size, first = ctypes.sizeof(ctypes.c_uint64), ctypes.addressof(self._values)
        self._maps = maps or {}
        places = [first + size * number for number in range(len(wanted))]
        for number, tensor_map in self._maps.items():
            places[number] = tensor_map.place
        self._pointers = (ctypes.c_void_p * len(wanted))(*places)
        self._parameters = ctypes.addressof(self._pointers)

    def start(self, addresses: Sequence[int], stream: int) -> None:
        """Launch on the stream; ``addresses`` in the order of :func:`places`."""
        self._values[:] = [addresses[place] for place in self._wanted]
        for number, tensor_map in self._maps.items():
            tensor_map.point_to(self._values[number])
        self._config.hStream = stream
        result = self._driver_launch(self._config, self._function, self._parameters, 0)
        if int(result[0]) != 0:
            _check(result, f"launching {self._name}")


class Launcher:
    """One kernel with its launch plan: tensors in, tensors out."""

    def __init__(self, spec: dict[str, Any], source: str, headers: dict[str, str]) -> None:
        """Take the texts that the source may include as ``headers``, by name; put ``prefix`` before the source."""
        self.spec = spec
        self._source = source
        self._headers = headers
        self._loaded: dict[int, list[_Launch]] = {}
        self._lock = threading.Lock()

    def trouble(self, device: torch.device) -> str | None:
        """Return why the kernel cannot run on this device; None where it can (it is compiled and loaded then)."""
        if device.type != "cuda":
            return f"the kernel is for CUDA devices, not for {device.type}"
        major, minor = torch.cuda.get_device_capability(device)
        if f"sm_{major}{minor}" != self.spec["arch"]:
            return f"the kernel is proven on {self.spec['arch']}, and this device is sm_{major}{minor}"
        try:
            self._launches(device)
        except (RuntimeError, ImportError) as error:
            return f"the kernel cannot be prepared: {error}"
        return None

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the outputs, computed on the current stream of the tensors' device."""
        device = tensors[0].device
        if device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self._call(tensors, device)
        return self._call(tensors, device)

    def _call(self, tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        """Compute the outputs on the current device."""
        launches = self._loaded.get(device.index) or self._launches(device)
        buffers, outputs = prepare(self.spec, tensors)
        addresses = [tensor.data_ptr() for tensor in buffers]
        stream = torch.cuda.current_stream(device).cuda_stream
        with self._lock:
            for launch in launches:
                launch.start(addresses, stream)
        return outputs

    def _launches(self, device: torch.device) -> list[_Launch]:
        index = torch.cuda.current_device() if device.index is None else device.index
        with self._lock:
            if index not in self._loaded:
                with torch.cuda.device(index):
                    torch.cuda.current_stream()  # PyTorch makes its context the current one
                    torch.empty(1, device="cuda")
                    binary = compile_source(self._source, self._headers, self.spec["options"])
                    self._loaded[index] = _load(binary, self.spec)
            return self._loaded[index]


def compile_source(source: str, headers: dict[str, str], options: Sequence[str]) -> bytes:
    """Return the source as a cubin; RuntimeError with the compiler's messages where it does not compile."""
    from cuda.bindings import nvrtc

    names, texts = [name.encode() for name in headers], [text.encode() for text in headers.values()]
    program = _check(
        nvrtc.nvrtcCreateProgram(source.encode(), b"unit.cu", len(names), texts, names), "starting the compiler"
    )
    every = [*options, *(f"--include-path={folder}" for folder in include_folders())]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(every), [option.encode() for option in every])
    if int(status) != 0:
        log = _fresh_bytes(_check(nvrtc.nvrtcGetProgramLogSize(program), "reading the compiler's messages"))
        _check(nvrtc.nvrtcGetProgramLog(program, log), "reading the compiler's messages")
        raise RuntimeError(f"the kernel does not compile: {log.decode(errors='replace')[:4000]}")
    code = _fresh_bytes(_check(nvrtc.nvrtcGetCUBINSize(program), "reading the binary"))
    _check(nvrtc.nvrtcGetCUBIN(program, code), "reading the binary")
    return code


def _fresh_bytes(size: int) -> bytes:
    """Return bytes that nobody else has: NVRTC writes into them, and Python keeps one object for each single byte."""
    return bytes(max(size, 2))


def include_folders() -> list[Path]:
    """Return where this machine keeps CUDA's headers: the wheels, else a toolkit."""
    package = importlib.util.find_spec("nvidia")
    wheels = [Path(place) for place in (package.submodule_search_locations or ())] if package else []
    roots = [root for place in wheels for root in sorted(place.glob("cu[0-9]*"), reverse=True)]
    roots += [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for root in [*roots, Path("/usr/local/cuda")]:
        include = root / "include"
        if (include / "cooperative_groups.h").exists() and (include / "cccl" / "cuda" / "std" / "cstdint").exists():
            return [include, include / "cccl"]
    raise RuntimeError("no CUDA headers found; pip install nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cuda-crt")


def _load(binary: bytes, spec: dict[str, Any]) -> list[_Launch]:
    from cuda.bindings import driver

    module = _check(driver.cuModuleLoadData(binary), "loading the kernel")
    count = _check(driver.cuModuleGetFunctionCount(module), "counting kernels")
    handles = _check(driver.cuModuleEnumerateFunctions(count, module), "listing kernels")
    functions = {_check(driver.cuFuncGetName(handle), "naming a kernel").decode(): handle for handle in handles}
    shared: dict[str, int] = {}  # the most that any launch of a kernel asks for: it is allowed once for all of them
    for launch in spec["launches"]:
        shared[launch["kernel"]] = max(launch["shared_bytes"], shared.get(launch["kernel"], 0))
    return [
        _Launch(launch["kernel"], *_configured(functions, launch, shared[launch["kernel"]]), wanted, _maps(launch))
        for launch, wanted in zip(spec["launches"], places(spec), strict=True)
    ]


def _maps(launch: dict[str, Any]) -> dict[int, _Map]:
    declared = launch["tensor_maps"]
    return {number: _Map(declared[name]) for number, name in enumerate(launch["args"]) if name in declared}


def _configured(functions: dict[str, Any], launch: dict[str, Any], shared_bytes: int) -> tuple[Any, Any]:
    from cuda.bindings import driver

    name = launch["kernel"]
    # A C++ function is found by its plain name.
    mangled = [entry for entry in functions if entry == name or entry.startswith(f"_Z{len(name)}{name}")]
    if len(mangled) != 1:
        raise RuntimeError(f"the binary has {len(mangled)} kernels called {name}")
    function = functions[mangled[0]]
    allow, query = driver.cuFuncSetAttribute, driver.CUfunction_attribute
    static = _check(driver.cuFuncGetAttribute(query.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function), "shared memory")
    if shared_bytes + static > SHARED_BYTES_UNASKED:
        wanted = query.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _check(allow(function, wanted, shared_bytes), "asking for shared memory")
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch["grid"]
    config.blockDimX, config.blockDimY, config.blockDimZ = launch["block"]
    config.sharedMemBytes = launch["shared_bytes"]
    attributes = []
    x, y, z = launch["cluster"]
    if x * y * z > 1:
        item = driver.CUlaunchAttribute()
        item.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        item.value.clusterDim.x, item.value.clusterDim.y, item.value.clusterDim.z = x, y, z
        attributes.append(item)
    if x * y * z > PORTABLE_CLUSTER:
        _check(allow(function, query.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1), "a large cluster")
    if launch["cooperative"]:
        item = driver.CUlaunchAttribute()
        item.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        item.value.cooperative = 1
        attributes.append(item)
    config.attrs, config.numAttrs = attributes, len(attributes)
    _check_room(function, config, launch)
    return function, config


def _check_room(function: Any, config: Any, launch: dict[str, Any]) -> None:
    """Raise RuntimeError where a cluster, or all blocks of a cooperative launch, cannot run at once on this device.

    Devices of one architecture differ in their number of multiprocessors, as do the slices of a divided one.
    """
    from cuda.bindings import driver

    cluster = math.prod(launch["cluster"])
    if cluster > 1:
        room = cluster * _check(driver.cuOccupancyMaxActiveClusters(function, config), "counting clusters")
    elif launch["cooperative"]:
        threads, shared_bytes = math.prod(launch["block"]), launch["shared_bytes"]
        each = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared_bytes)
        units = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        device = _check(driver.cuCtxGetDevice(), "naming the device")
        count = _check(driver.cuDeviceGetAttribute(units, device), "counting multiprocessors")
        room = count * _check(each, "counting blocks")
    else:
        return
    needed = math.prod(launch["grid"]) if launch["cooperative"] else cluster
    if room < needed:
        raise RuntimeError(
            f"{needed} blocks of {launch['kernel']} must run at once, and this device has room for {room}"
        )


def _check(result: tuple[Any, ...], what: str) -> Any:
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"{what}: {getattr(status, 'name', status)}")
    return values[0] if len(values) == 1 else tuple(values)
