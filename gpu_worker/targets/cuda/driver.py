"""A thin layer over the CUDA driver API: checked calls, device memory that can be shared, cubins, launches, events.

Used by the runner (which has no torch) and by the judge (which has). Knows nothing of problems, plans or verdicts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as cu

from gpu_worker.targets.cuda.tensor_maps import Encoded


class DriverError(Exception):
    """A driver call that did not succeed; ``code`` is the name without its prefix, e.g. ``ILLEGAL_ADDRESS``."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(f"{what}: CUDA_ERROR_{code}")
        self.code = code
        self.what = what


def check(result: tuple[Any, ...], what: str) -> Any:
    """Return the values of a driver call's result; raises :class:`DriverError` where it failed."""
    status, *values = result
    if int(status) != 0:
        raise DriverError(getattr(status, "name", str(status)).removeprefix("CUDA_ERROR_"), what)
    return values[0] if len(values) == 1 else tuple(values)


def start() -> None:
    """Load and start the driver's library; more calls do nothing."""
    check(cu.cuInit(0), "starting the driver")


class Context:
    """The primary context of one GPU, found by UUID (``GPU-...``) or the first one; current in this thread."""

    def __init__(self, uuid: str | None = None) -> None:
        start()
        self.device = _device(uuid)
        check(cu.cuCtxSetCurrent(check(cu.cuDevicePrimaryCtxRetain(self.device), "creating a context")), "its use")

    def attribute(self, name: str) -> int:
        """Return a device attribute, e.g. ``L2_CACHE_SIZE``."""
        key = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(cu.cuDeviceGetAttribute(key, self.device), f"reading {name}"))

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Major and minor."""
        return self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR")

    def synchronize(self) -> None:
        """Wait for everything that was launched; a kernel's fault shows here."""
        check(cu.cuCtxSynchronize(), "running the kernel")


def _device(uuid: str | None) -> Any:
    count = check(cu.cuDeviceGetCount(), "counting devices")
    devices = [check(cu.cuDeviceGet(ordinal), "finding a device") for ordinal in range(count)]
    for device in devices:
        if uuid is None or uuid == device_uuid(device):
            return device
    raise DriverError("NO_DEVICE", f"finding GPU {uuid}")


def device_uuid(device: Any) -> str:
    """Return ``GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx``, as nvidia-smi prints it."""
    text = bytes(check(cu.cuDeviceGetUuid(device), "reading the UUID").bytes).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def device_name(device: Any) -> str:
    """Return the model, e.g. ``NVIDIA H200``."""
    name: bytes = check(cu.cuDeviceGetName(128, device), "reading the name")
    return name.split(b"\0")[0].decode()


def memory_bytes(device: Any) -> int:
    """Return all of the device's memory."""
    return int(check(cu.cuDeviceTotalMem(device), "reading the memory size"))


def exercise() -> None:
    """Fill memory on the device and read it back; raises :class:`DriverError` where the device is not sound."""
    pattern, nbytes = 0xA5, 2**20
    pointer = allocate(nbytes)
    check(cu.cuMemsetD8(pointer, pattern, nbytes), "filling memory")
    back = bytearray(nbytes)
    check(cu.cuMemcpyDtoH(back, pointer, nbytes), "reading memory")
    free(pointer)
    if back != bytes([pattern]) * nbytes:
        raise DriverError("UNKNOWN", "reading back what was written")


def allocate(nbytes: int) -> int:
    """Return device memory of this process; the address is aligned to 256 bytes at least."""
    return int(check(cu.cuMemAlloc(nbytes), f"allocating {nbytes} bytes"))


def free(pointer: int) -> None:
    """Free what :func:`allocate` returned."""
    check(cu.cuMemFree(pointer), "freeing memory")


def write(pointer: int, pattern: bytes, nbytes: int) -> None:
    """Fill device memory with a repeated pattern from the host."""
    for start in range(0, nbytes, len(pattern)):
        size = min(len(pattern), nbytes - start)
        check(cu.cuMemcpyHtoD(pointer + start, pattern[:size], size), "writing memory")


_DESCRIPTOR = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


class Adoptable:
    """Device memory as bytes, in the form that PyTorch adopts without a copy."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (pointer, False),
            "shape": (size,),
            "typestr": "|u1",
            "strides": None,
            "version": 3,
        }


class SharedMemory:
    """Device memory that two processes map, handed over as a file descriptor.

    Not CUDA IPC: that tells processes apart by their process ids, which are equal in two sandboxes with process id name
    spaces of their own (the driver then answers INVALID_CONTEXT).
    """

    def __init__(self, handle: Any, size: int, unit: int) -> None:
        self._handle = handle
        self._size = size
        self.pointer = int(check(cu.cuMemAddressReserve(size, unit, 0, 0), "reserving addresses"))
        check(cu.cuMemMap(self.pointer, size, 0, handle, 0), "mapping shared memory")
        access = cu.CUmemAccessDesc()
        access.location = _properties().location
        access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        check(cu.cuMemSetAccess(self.pointer, size, [access], 1), "opening shared memory")

    @classmethod
    def create(cls, nbytes: int) -> SharedMemory:
        """Return new memory of at least this many bytes, in whole pages that hold nothing else."""
        unit = _sharing_unit()
        size = -(-max(nbytes, 1) // unit) * unit
        return cls(check(cu.cuMemCreate(size, _properties(), 0), f"allocating {size} bytes"), size, unit)

    @classmethod
    def attach(cls, descriptor: int, nbytes: int) -> SharedMemory:
        """Attach memory that another process made for ``nbytes`` and exported; the descriptor may be closed then."""
        unit = _sharing_unit()
        handle = check(cu.cuMemImportFromShareableHandle(descriptor, _DESCRIPTOR), "attaching shared memory")
        return cls(handle, -(-max(nbytes, 1) // unit) * unit, unit)

    def export(self) -> int:
        """Return a new file descriptor by which another process can attach the memory."""
        return int(check(cu.cuMemExportToShareableHandle(self._handle, _DESCRIPTOR, 0), "sharing memory"))

    def close(self) -> None:
        """Unmap it; the memory lives until the last process has."""
        check(cu.cuMemUnmap(self.pointer, self._size), "unmapping shared memory")
        check(cu.cuMemAddressFree(self.pointer, self._size), "freeing addresses")
        check(cu.cuMemRelease(self._handle), "releasing shared memory")


def _properties() -> Any:
    properties = cu.CUmemAllocationProp()
    properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = int(check(cu.cuCtxGetDevice(), "asking for the device"))
    properties.requestedHandleTypes = _DESCRIPTOR
    return properties


def _sharing_unit() -> int:
    flag = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    return int(check(cu.cuMemGetAllocationGranularity(_properties(), flag), "asking for the page size"))


class Function:
    """One entry point of a loaded cubin."""

    def __init__(self, module: Module, name: str) -> None:
        self.name = name
        self.handle = check(cu.cuModuleGetFunction(module.handle, name.encode()), f"finding kernel {name!r}")

    def attribute(self, name: str) -> int:
        """Return a function attribute, e.g. ``NUM_REGS`` or ``LOCAL_SIZE_BYTES``."""
        key = getattr(cu.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(check(cu.cuFuncGetAttribute(key, self.handle), f"reading {name}"))

    def allow_shared_bytes(self, nbytes: int) -> None:
        """Raise the limit of dynamic shared memory, which is 48 KiB unless asked."""
        key = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(cu.cuFuncSetAttribute(self.handle, key, nbytes), f"{nbytes} bytes of dynamic shared memory")

    def allow_large_clusters(self) -> None:
        """Permit clusters of more than 8 blocks."""
        key = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        check(cu.cuFuncSetAttribute(self.handle, key, 1), "clusters of more than 8 blocks")

    def parameter_sizes(self) -> list[int]:
        """Return bytes of each parameter, in order."""
        sizes: list[int] = []
        while True:
            status, _, size = cu.cuFuncGetParamInfo(self.handle, len(sizes))
            if int(status) != 0:
                return sizes
            sizes.append(int(size))

    def blocks_per_unit(self, threads: int, shared_bytes: int) -> int:
        """Return blocks of this shape that fit on one multiprocessor at once."""
        result = cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.handle, threads, shared_bytes)
        return int(check(result, "computing occupancy"))


class Module:
    """A cubin loaded into the current context, with its global variables in their initial state."""

    def __init__(self, cubin: bytes) -> None:
        self.handle = check(cu.cuModuleLoadData(cubin), "loading the cubin")

    def function(self, name: str) -> Function:
        """Return the entry point of this name; a C++ function is found by its plain name where that is unambiguous."""
        names = self.entry_points()
        if name not in names:
            mangled = [entry for entry in names if entry.startswith(f"_Z{len(name)}{name}")]
            if len(mangled) != 1:
                raise DriverError("NOT_FOUND", f"finding kernel {name!r} among {', '.join(names) or 'none'}")
            name = mangled[0]
        return Function(self, name)

    def entry_points(self) -> list[str]:
        """Return mangled names of the ``__global__`` functions."""
        count = check(cu.cuModuleGetFunctionCount(self.handle), "counting kernels")
        handles = check(cu.cuModuleEnumerateFunctions(count, self.handle), "listing kernels") if count else []
        return sorted(check(cu.cuFuncGetName(handle), "naming a kernel").decode() for handle in handles)

    def unload(self) -> None:
        """Unload the module; its functions must not be used afterwards."""
        check(cu.cuModuleUnload(self.handle), "unloading the cubin")


def reset_persisting_cache() -> None:
    """Make cache lines that kernels asked to keep evictable again; devices before sm_80 keep none, and say so."""
    result = cu.cuCtxResetPersistingL2Cache()
    if result[0] != cu.CUresult.CUDA_ERROR_NOT_SUPPORTED:
        check(result, "resetting the cache")


class Stream:
    """A stream that does not wait for the default stream."""

    def __init__(self) -> None:
        self.handle = check(cu.cuStreamCreate(int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)), "creating a stream")

    def fill(self, pointer: int, nbytes: int, value: int = 0) -> None:
        """Set bytes, asynchronously."""
        check(cu.cuMemsetD8Async(pointer, value, nbytes, self.handle), "filling memory")

    def synchronize(self) -> None:
        """Wait for what was put on this stream."""
        check(cu.cuStreamSynchronize(self.handle), "running the kernel")


class Graph:
    """Work of a stream as one object, which the device goes through without waiting for the host."""

    def __init__(self, stream: Stream, submit: Callable[[], None]) -> None:
        """Capture what ``submit`` puts on the stream; nothing runs. DriverError where it cannot be captured."""
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(cu.cuStreamBeginCapture(stream.handle, mode), "beginning a capture")
        try:
            submit()
        except DriverError:
            cu.cuStreamEndCapture(stream.handle)
            raise
        captured = check(cu.cuStreamEndCapture(stream.handle), "capturing launches")
        try:
            self._handle = check(cu.cuGraphInstantiate(captured, 0), "making a graph")
        finally:
            cu.cuGraphDestroy(captured)
        self._stream = stream
        check(cu.cuGraphUpload(self._handle, stream.handle), "uploading a graph")
        stream.synchronize()

    def launch(self) -> None:
        """Put all of it on its stream."""
        check(cu.cuGraphLaunch(self._handle, self._stream.handle), "launching a graph")

    def close(self) -> None:
        """Destroy the graph."""
        check(cu.cuGraphExecDestroy(self._handle), "freeing a graph")


class Event:
    """A point in a stream's time."""

    def __init__(self) -> None:
        self.handle = check(cu.cuEventCreate(int(cu.CUevent_flags.CU_EVENT_DEFAULT)), "creating an event")

    def record(self, stream: Stream) -> None:
        """Mark the present end of the stream."""
        check(cu.cuEventRecord(self.handle, stream.handle), "recording an event")

    def microseconds_since(self, earlier: Event) -> float:
        """Return device time between two recorded events that have passed."""
        return float(check(cu.cuEventElapsedTime(earlier.handle, self.handle), "reading events")) * 1e3


@dataclass(frozen=True)
class Geometry:
    """Geometry of a launch; sizes are (x, y, z)."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False

    def __str__(self) -> str:
        parts = [f"grid {self.grid}", f"block {self.block}", f"{self.shared_bytes} bytes of dynamic shared memory"]
        if self.cluster != (1, 1, 1):
            parts.append(f"cluster {self.cluster}")
        return ", ".join([*parts, "cooperative"] if self.cooperative else parts)


class PreparedLaunch:
    """A launch whose configuration and arguments are encoded once, so that submitting it is one driver call."""

    def __init__(
        self, function: Function, stream: Stream, arguments: Sequence[int | Encoded], geometry: Geometry
    ) -> None:
        """Encode a launch; ``arguments`` are pointers, and tensor maps, which are copied at each launch."""
        self._function = function
        self._geometry = geometry
        self._config = cu.CUlaunchConfig()
        self._config.gridDimX, self._config.gridDimY, self._config.gridDimZ = geometry.grid
        self._config.blockDimX, self._config.blockDimY, self._config.blockDimZ = geometry.block
        self._config.sharedMemBytes = geometry.shared_bytes
        self._config.hStream = stream.handle
        attributes = _attributes(geometry)
        self._config.attrs = attributes
        self._config.numAttrs = len(attributes)
        self._values = [
            argument if isinstance(argument, Encoded) else ctypes.c_uint64(argument) for argument in arguments
        ]
        addresses = [value.address if isinstance(value, Encoded) else ctypes.addressof(value) for value in self._values]
        self._parameters = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        self._address = ctypes.addressof(self._parameters)

    def submit(self) -> None:
        """Put it on its stream."""
        result = cu.cuLaunchKernelEx(self._config, self._function.handle, self._address, 0)
        if int(result[0]) != 0:
            check(result, f"launching {self._function.name!r} with {self._geometry}")


def _attributes(geometry: Geometry) -> list[Any]:
    attributes = []
    if geometry.cluster != (1, 1, 1):
        item = cu.CUlaunchAttribute()
        item.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        item.value.clusterDim.x, item.value.clusterDim.y, item.value.clusterDim.z = geometry.cluster
        attributes.append(item)
    if geometry.cooperative:
        item = cu.CUlaunchAttribute()
        item.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        item.value.cooperative = 1
        attributes.append(item)
    return attributes
