"""Seccomp filters as raw BPF programs, and a way to install one. Standard library only: the runner uses it too.

Two filters. ``base_filter`` surrounds every sandboxed program and refuses what none of them needs (tracing, mounting,
new namespaces, network sockets, optionally new processes). ``kernel_filter`` surrounds a loaded cpu kernel: an allow
list of what computing threads need; anything else kills the process with SIGSYS, which the supervisor reports as a
policy breach.

Instruction encoding: linux/bpf_common.h, linux/seccomp.h; syscall numbers: asm/unistd_64.h and asm-generic/unistd.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000

_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_CLONE_THREAD = 0x00010000
_CLONE_NEW_ANY = 0x7E020000  # every CLONE_NEW* flag but CLONE_NEWTIME, which shares bits with the exit signal
_AF_UNIX = 1
_FIONBIO = 0x5421  # Python's sockets set their blocking mode with it
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

# name: (x86_64, aarch64); -1 where the architecture has none
_NUMBERS: dict[str, tuple[int, int]] = {
    "read": (0, 63), "write": (1, 64), "open": (2, -1), "close": (3, 57), "stat": (4, -1), "fstat": (5, 80),
    "lstat": (6, -1), "poll": (7, -1), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215),
    "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "ioctl": (16, 29), "readv": (19, 65), "writev": (20, 66), "access": (21, -1), "select": (23, -1),
    "sched_yield": (24, 124), "mremap": (25, 216), "madvise": (28, 233), "nanosleep": (35, 101), "getpid": (39, 172),
    "socket": (41, 198), "sendto": (44, 206), "recvfrom": (45, 207), "sendmsg": (46, 211), "recvmsg": (47, 212),
    "clone": (56, 220), "fork": (57, -1), "vfork": (58, -1), "exit": (60, 93), "uname": (63, 160), "fcntl": (72, 25),
    "readlink": (89, -1), "gettimeofday": (96, 169), "getrlimit": (97, 163), "getrusage": (98, 165),
    "sysinfo": (99, 179), "ptrace": (101, 117), "getppid": (110, 173), "sigaltstack": (131, 132),
    "arch_prctl": (158, -1), "pivot_root": (155, 41), "mount": (165, 40), "umount2": (166, 39), "gettid": (186, 178),
    "time": (201, -1), "futex": (202, 98), "sched_setaffinity": (203, 122), "sched_getaffinity": (204, 123),
    "set_tid_address": (218, 96), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "exit_group": (231, 94), "tgkill": (234, 131), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "openat": (257, 56), "newfstatat": (262, 79),
    "readlinkat": (267, 78), "faccessat": (269, 48), "ppoll": (271, 73), "unshare": (272, 97),
    "set_robust_list": (273, 99), "get_robust_list": (274, 100), "perf_event_open": (298, 241),
    "prlimit64": (302, 261), "open_by_handle_at": (304, 265), "getcpu": (309, 168), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "setns": (308, 268), "getrandom": (318, 278), "bpf": (321, 280),
    "userfaultfd": (323, 282), "membarrier": (324, 283), "statx": (332, 291), "rseq": (334, 293),
    "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "io_uring_setup": (425, 425), "clone3": (435, 435), "faccessat2": (439, 439), "futex_waitv": (449, 449),
}  # fmt: skip

_NEVER = (
    "ptrace", "process_vm_readv", "process_vm_writev", "mount", "umount2", "pivot_root", "add_key", "request_key",
    "keyctl", "bpf", "perf_event_open", "unshare", "setns", "userfaultfd", "io_uring_setup", "open_by_handle_at",
    "pidfd_open", "pidfd_getfd", "pidfd_send_signal",
)  # fmt: skip

_KERNEL_ALLOWED = (
    "read", "write", "readv", "writev", "close", "fstat", "lseek", "poll", "ppoll", "select", "mmap", "mprotect",
    "munmap", "mremap", "madvise", "brk", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack",
    "sched_yield", "sched_getaffinity", "sched_setaffinity", "nanosleep", "clock_nanosleep", "clock_gettime",
    "clock_getres", "gettimeofday", "time", "getpid", "getppid", "gettid", "getcpu", "getrandom", "getrusage",
    "getrlimit", "prlimit64", "sysinfo", "uname", "sendto", "recvfrom", "sendmsg", "recvmsg", "fcntl", "exit",
    "exit_group", "tgkill", "futex", "futex_waitv", "set_tid_address", "set_robust_list", "get_robust_list", "rseq",
    "arch_prctl", "membarrier",
)  # fmt: skip

_KERNEL_HIDDEN = ("stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat")
"""Looking at the file system fails softly: libraries do it to tune themselves."""

_Instruction = tuple[int, int, int, int]


def supported() -> bool:
    """Whether this machine's architecture is known here."""
    return platform.machine() in _AUDIT_ARCH


def base_filter(*, subprocesses: bool) -> bytes:
    """The filter around every sandboxed program, as ``struct sock_filter[]``."""
    program = _prologue()
    for name in _NEVER:
        program += _on(name, [_answer(_ERRNO | errno.EPERM)])
    program += _on("socket", _when_equal(0, _AF_UNIX, _ALLOW, _ERRNO | errno.EACCES))
    # clone3's flags are behind a pointer, where no filter can look; libc falls back to clone
    program += _on("clone3", [_answer(_ERRNO | errno.ENOSYS)])
    program += _on("clone", _when_bits(0, _CLONE_NEW_ANY, _ERRNO | errno.EPERM, None))
    if not subprocesses:
        program += _on("fork", [_answer(_ERRNO | errno.EPERM)])
        program += _on("vfork", [_answer(_ERRNO | errno.EPERM)])
        program += _on("clone", _when_bits(0, _CLONE_THREAD, _ALLOW, _ERRNO | errno.EPERM))
    program += [_answer(_ALLOW)]
    return _pack(program)


def kernel_filter() -> bytes:
    """The filter around a loaded cpu kernel: an allow list, everything else is SIGSYS."""
    program = _prologue()
    for name in _KERNEL_ALLOWED:
        program += _on(name, [_answer(_ALLOW)])
    for name in _KERNEL_HIDDEN:
        program += _on(name, [_answer(_ERRNO | errno.EACCES)])
    program += _on("ioctl", _when_equal(1, _FIONBIO, _ALLOW, _ERRNO | errno.ENOTTY))
    program += _on("clone3", [_answer(_ERRNO | errno.ENOSYS)])
    program += _on("clone", _when_bits(0, _CLONE_THREAD, _ALLOW, _KILL_PROCESS))
    program += _on("open", _when_bits(1, _WRITE_FLAGS, _KILL_PROCESS, _ERRNO | errno.EACCES))
    program += _on("openat", _when_bits(2, _WRITE_FLAGS, _KILL_PROCESS, _ERRNO | errno.EACCES))
    program += [_answer(_KILL_PROCESS)]
    return _pack(program)


def install(program: bytes) -> None:
    """Confine all threads of this process by a filter, for good."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(program, len(program))

    class SockFprog(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    header = SockFprog(len(program) // 8, ctypes.addressof(buffer))
    if libc.prctl(38, 1, 0, 0, 0) != 0:  # PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    number = 317 if platform.machine() == "x86_64" else 277  # seccomp(2)
    # SECCOMP_SET_MODE_FILTER with SECCOMP_FILTER_FLAG_TSYNC, for threads that the binary's constructors started
    if libc.syscall(number, 1, 1, ctypes.byref(header)) != 0:
        raise OSError(ctypes.get_errno(), "seccomp(SECCOMP_SET_MODE_FILTER)")


def _prologue() -> list[_Instruction]:
    machine = platform.machine()
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCH_OFFSET),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        _answer(_KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]
    if machine == "x86_64":
        program += [(_JUMP_ANY_BIT, 0, 1, _X32_BIT), _answer(_KILL_PROCESS)]
    return program


def _on(name: str, actions: Sequence[_Instruction]) -> list[_Instruction]:
    """Run ``actions`` if the call is ``name``; the number is in the accumulator before and after."""
    x86_64, aarch64 = _NUMBERS[name]
    number = x86_64 if platform.machine() == "x86_64" else aarch64
    if number < 0:
        return []
    return [(_JUMP_EQUAL, 0, len(actions), number), *actions]


def _when_equal(argument: int, value: int, then: int, otherwise: int) -> list[_Instruction]:
    return [_load(argument), (_JUMP_EQUAL, 0, 1, value), _answer(then), _answer(otherwise)]


def _when_bits(argument: int, mask: int, then: int, otherwise: int | None) -> list[_Instruction]:
    """``then`` if any bit of ``mask`` is set; else ``otherwise``, or go on with the number reloaded."""
    last = (_LOAD, 0, 0, _NUMBER_OFFSET) if otherwise is None else _answer(otherwise)
    return [_load(argument), (_JUMP_ANY_BIT, 0, 1, mask), _answer(then), last]


def _load(argument: int) -> _Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument)  # low half; both architectures are little endian


def _answer(action: int) -> _Instruction:
    return (_RETURN, 0, 0, action)


def _pack(program: Sequence[_Instruction]) -> bytes:
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
