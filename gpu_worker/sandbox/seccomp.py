"""Seccomp filters as raw BPF programs, and a way to install one. Standard library only: the runner uses it too.

Three filters; filters of one process add up, and the strictest answer counts.

``base_filter``     around every sandboxed program: refuses what none of them needs (tracing, mounting, new namespaces,
                    network sockets, memory that no limit counts, optionally new processes).
``kernel_filter``   around a loaded cpu kernel: an allow list of what computing threads need; any other call kills the
                    process with SIGSYS, which the supervisor reports as a policy breach. No memory becomes executable.
``loading_filter``  around a cpu kernel while its library is loaded and the library's constructors run: the allow list
                    and what the dynamic loader needs, which is reading files and mapping the library's own code.

Instruction encoding: linux/bpf_common.h, linux/seccomp.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping, Sequence
from functools import cache

from gpu_worker.sandbox.system_calls import number

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_GREATER = 0x25  # BPF_JMP | BPF_JGT | BPF_K
_JUMP_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000

_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_PROT_WRITE, _PROT_EXEC = 0x2, 0x4
_MAP_SHARED = 0x01  # also a bit of MAP_SHARED_VALIDATE
_MAP_ANONYMOUS = 0x20
_MAP_GROWSDOWN = 0x0100
_MADV_REMOVE = 9  # makes shared memory a hole, so that whoever reads it next makes and clears its pages
_ADDR_NO_RANDOMIZE = 0x0040000
_ASK_PERSONALITY = 0xFFFFFFFF
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_MODE_FILTER = 1
_PRIO_PROCESS = 0
_SIGKILL, _SIGCHLD, _SIGCONT = 9, 17, 18
_RLIMIT_CPU = 0
_EXIT_SIGNAL = 0xFF  # the bits of clone's flags that name it

_DESCRIPTOR_COMMANDS = (
    0, 1, 2, 3, 5, 36,  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_GETLK, F_OFD_GETLK
    1027, 1030, 1032, 1033, 1034,  # F_DUPFD_QUERY, F_DUPFD_CLOEXEC, F_GETPIPE_SZ, F_ADD_SEALS, F_GET_SEALS
)  # fmt: skip
"""Of fcntl, allowed whatever their argument. Not those by which the kernel sends signals for a program: F_SETOWN,
F_SETOWN_EX, F_SETSIG, F_SETLEASE, F_NOTIFY."""

_SET_FLAGS, _ASYNC = 4, 0x2000  # F_SETFL, O_ASYNC
_SET_LOCKS = (6, 7, 37, 38)  # F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW
_LARGEST_OWN_CODE = 128
"""Larger exit codes are how bubblewrap and shells say that a signal ended a program."""

_CLONE_THREAD = 0x00010000
_CLONE_NEW_ANY = 0x7E020000  # every CLONE_NEW* flag but CLONE_NEWTIME, which shares bits with the exit signal
_AF_UNIX = 1
_FIONBIO = 0x5421  # Python's sockets set their blocking mode with it
_SIGNALLING_CONTROLS = (0x5452, 0x8901, 0x8902)  # FIOASYNC, FIOSETOWN, SIOCSPGRP: as fcntl's
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_NEVER = (
    "ptrace", "process_vm_readv", "process_vm_writev", "mount", "umount2", "pivot_root", "add_key", "request_key",
    "keyctl", "bpf", "perf_event_open", "unshare", "setns", "userfaultfd", "io_uring_setup", "open_by_handle_at",
    "pidfd_open", "pidfd_getfd", "pidfd_send_signal",
    # memory and queues of the system that outlive a process, or that no limit of a process counts
    "shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop", "msgget", "msgsnd", "msgrcv",
    "msgctl", "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr", "memfd_secret",
    # the machine's administration, which needs capabilities that no sandboxed program has
    "reboot", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "swapon", "swapoff",
    "acct", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname", "iopl",
    "ioperm", "quotactl", "quotactl_fd", "syslog", "chroot", "fanotify_init", "lookup_dcookie", "nfsservctl",
    "vhangup", "uselib", "modify_ldt", "fsopen", "fsconfig", "fsmount", "fspick", "move_mount", "open_tree",
    "open_tree_attr", "mount_setattr", "name_to_handle_at", "io_uring_enter", "io_uring_register",
    # other processes
    "process_madvise", "process_mrelease", "kcmp", "ioprio_set",
)  # fmt: skip

_OWN_ONLY = (
    "sched_setaffinity", "prlimit64", "sched_setscheduler", "sched_setparam", "sched_setattr", "migrate_pages",
    "move_pages",
)  # fmt: skip
"""Calls whose first argument is a process or thread id: allowed with 0, which is the caller.

The kernel takes these ids as 32-bit integers, so the low half of the argument is all of it.
"""

_SIGNAL_ARGUMENTS = {"kill": 1, "tkill": 1, "tgkill": 2, "rt_sigqueueinfo": 1, "rt_tgsigqueueinfo": 2}

_KERNEL_ALLOWED = (
    "read", "write", "readv", "writev", "close", "fstat", "lseek", "poll", "ppoll", "select",
    "munmap", "brk", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack",
    "sched_yield", "sched_getaffinity", "nanosleep", "clock_nanosleep", "clock_gettime",
    "clock_getres", "gettimeofday", "time", "getpid", "getppid", "gettid", "getcpu", "getrandom", "getrusage",
    "getrlimit", "sysinfo", "uname", "sendto", "recvfrom", "sendmsg", "recvmsg", "exit",
    "exit_group", "tgkill", "futex", "futex_waitv", "set_tid_address", "set_robust_list", "get_robust_list", "rseq",
    "arch_prctl", "membarrier", "restart_syscall",
)  # fmt: skip
"""``restart_syscall`` is how a thread that was stopped goes on to wait in ``poll`` or ``nanosleep``: runners are."""

_KERNEL_HIDDEN = ("stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat")
"""Looking at the file system fails softly: libraries do it to tune themselves."""

_Instruction = tuple[int, int, int, int]


def supported() -> bool:
    """Return whether this machine's architecture is known here."""
    return platform.machine() in _AUDIT_ARCH


@cache
def base_filter(
    *,
    subprocesses: bool,
    memory_files: bool = False,
    file_locks: bool = False,
    sets_affinity: bool = True,
    accountable: bool = False,
    namespaces: bool = True,
) -> bytes:
    """Return the filter around every sandboxed program, as ``struct sock_filter[]``.

    memory_files: allow memory that no limit on private memory counts (memfd_create, shared anonymous mappings).
    file_locks: allow locks of parts of files, which are memory that nothing counts.
    sets_affinity: allow the program's threads to choose their CPUs.
    accountable: keep the program from ending as if the system had killed it, and from going on while it is stopped.
    namespaces: namespaces keep its processes together and hide other programs' sockets; without, this filter does.
    """
    program = _prologue()
    if not sets_affinity:
        program += _on("sched_setaffinity", [_answer(_ERRNO | errno.EPERM)])
    if accountable:
        program += _own_endings()
    if not namespaces:
        program += _on("connect", [_answer(_ERRNO | errno.EACCES)])
        for name in ("setsid", "setpgid"):  # they stay in the group that is killed in the end, and are told otherwise
            program += _on(name, [_answer(_ERRNO)])
    program += _on("fcntl", _descriptor_commands(_ERRNO | errno.EPERM, locks=file_locks))
    for control in _SIGNALLING_CONTROLS:
        program += _on("ioctl", [_load(1), (_JUMP_EQUAL, 0, 1, control), _answer(_ERRNO | errno.EPERM), _reload()])
    # it may not outlive its starter
    program += _on("prctl", [_load(0), (_JUMP_EQUAL, 0, 3, _PR_SET_PDEATHSIG), *_only(1, _SIGKILL), _reload()])
    for name in _NEVER:
        program += _on(name, [_answer(_ERRNO | errno.EPERM)])
    program += _own_only()
    program += _on("setpriority", _when_all_equal({0: _PRIO_PROCESS, 1: 0}, _ALLOW, _ERRNO | errno.EPERM))
    program += _on("personality", _personality())
    program += _on("mmap", _unlimited_mappings(_ERRNO | errno.EPERM, shared=not memory_files))
    program += _on("madvise", _when_equal(2, _MADV_REMOVE, _ERRNO | errno.EPERM, _ALLOW))
    if not memory_files:
        program += _on("memfd_create", [_answer(_ERRNO | errno.ENOSYS)])
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


@cache
def kernel_filter() -> bytes:
    """Return the filter around a loaded cpu kernel: an allow list, everything else is SIGSYS."""
    program = _computing(())
    for name in _KERNEL_HIDDEN:
        program += _on(name, [_answer(_ERRNO | errno.EACCES)])
    program += _on("open", _when_bits(1, _WRITE_FLAGS, _KILL_PROCESS, _ERRNO | errno.EACCES))
    program += _on("openat", _when_bits(2, _WRITE_FLAGS, _KILL_PROCESS, _ERRNO | errno.EACCES))
    program += [_answer(_KILL_PROCESS)]
    return _pack(program)


@cache
def loading_filter(code: tuple[tuple[int, int], ...]) -> bytes:
    """Return the filter around a cpu kernel that is being loaded: as :func:`kernel_filter`, and files may be read.

    ``code``: file offset and length of the mappings with machine code that the library has; others are refused, so that
    a constructor cannot map the library's data as code.

    It also lets :func:`install` add the stricter filter. A constructor may keep the loader from doing that; it then
    still has no more than what is allowed here.
    """
    program = _computing(code)
    for name in (*_KERNEL_HIDDEN, "pread64"):
        program += _on(name, [_answer(_ALLOW)])
    program += _on("open", _when_bits(1, _WRITE_FLAGS, _KILL_PROCESS, _ALLOW))
    program += _on("openat", _when_bits(2, _WRITE_FLAGS, _KILL_PROCESS, _ALLOW))
    program += _on("prctl", _when_equal(0, _PR_SET_NO_NEW_PRIVS, _ALLOW, _KILL_PROCESS))
    program += _on("seccomp", _when_equal(0, _SECCOMP_SET_MODE_FILTER, _ALLOW, _KILL_PROCESS))
    program += [_answer(_KILL_PROCESS)]
    return _pack(program)


def _computing(code: Sequence[tuple[int, int]]) -> list[_Instruction]:
    """Allow what a kernel may do both while it is loaded and while it runs; ``code`` may be mapped as executable."""
    program = _prologue()
    for name in _KERNEL_ALLOWED:
        program += _on(name, [_answer(_ALLOW)])
    program += _own_only()
    program += _on("fcntl", _descriptor_commands(_KILL_PROCESS, locks=False))
    program += _on("mprotect", _when_bits(2, _PROT_EXEC, _KILL_PROCESS, _ALLOW))
    program += _on("mmap", [*_unlimited_mappings(_KILL_PROCESS, shared=True), *_code_mappings(code), _answer(_ALLOW)])
    program += _on("madvise", _when_equal(2, _MADV_REMOVE, _KILL_PROCESS, _ALLOW))
    # with an old size of 0, mremap doubles a shared mapping
    program += _on("mremap", _when_zero(1, _KILL_PROCESS, _ALLOW))
    program += _on("ioctl", _when_equal(1, _FIONBIO, _ALLOW, _ERRNO | errno.ENOTTY))
    # a thread that gives itself a name is told that it has it; what reads names need not expect any
    program += _on("prctl", [_load(0), (_JUMP_EQUAL, 0, 1, _PR_SET_NAME), _answer(_ERRNO), _reload()])
    program += _on("clone3", [_answer(_ERRNO | errno.ENOSYS)])
    program += _on("clone", _when_bits(0, _CLONE_THREAD, _ALLOW, _KILL_PROCESS))
    return program


def _own_endings() -> list[_Instruction]:
    """Refuse SIGKILL, exit codes that stand for signals, and whatever makes the kernel send SIGKILL or SIGCONT.

    SIGCONT wakes a program that was stopped so that it cannot work. A timer's signal is behind a pointer, where no
    filter can look. Beyond its hard limit of processor time a process is killed.
    """
    program: list[_Instruction] = []
    for name, argument in _SIGNAL_ARGUMENTS.items():
        refuse = [(_JUMP_EQUAL, 1, 0, _SIGKILL), (_JUMP_EQUAL, 0, 1, _SIGCONT), _answer(_ERRNO | errno.EPERM)]
        program += _on(name, [_load(argument), *refuse, _reload()])
    for name in ("exit", "exit_group"):
        code = [_load(0), (_AND, 0, 0, 0xFF)]
        program += _on(name, [*code, (_JUMP_GREATER, 0, 1, _LARGEST_OWN_CODE), _answer(_KILL_PROCESS), _reload()])
    program += _on("timer_create", [_answer(_ERRNO | errno.EPERM)])
    child = [(_JUMP_EQUAL, 2, 0, 0), (_JUMP_EQUAL, 1, 0, _SIGCHLD), _answer(_ERRNO | errno.EPERM)]
    program += _on("clone", [_load(0), (_AND, 0, 0, _EXIT_SIGNAL), *child, _reload()])
    asked = [_load(2), (_JUMP_EQUAL, 0, 2, 0), _load_high(2), (_JUMP_EQUAL, 1, 0, 0), _answer(_ERRNO | errno.EPERM)]
    program += _on("prlimit64", [_load(1), (_JUMP_EQUAL, 0, len(asked), _RLIMIT_CPU), *asked, _reload()])
    limit = [_load(0), (_JUMP_EQUAL, 0, 1, _RLIMIT_CPU), _answer(_ERRNO | errno.EPERM)]
    program += _on("setrlimit", [*limit, _reload()])
    return program


def _descriptor_commands(refusal: int, *, locks: bool) -> list[_Instruction]:
    """Answer fcntl: ``refusal`` for what is not known to be harmless; most programs go on without ``locks``."""
    program = [_load(1)]
    for command in _SET_LOCKS:
        program += [(_JUMP_EQUAL, 0, 1, command), _answer(_ALLOW if locks else _ERRNO | errno.ENOLCK)]
    for command in _DESCRIPTOR_COMMANDS:
        program += [(_JUMP_EQUAL, 0, 1, command), _answer(_ALLOW)]
    flags = [_load(2), (_JUMP_ANY_BIT, 0, 1, _ASYNC), _answer(refusal), _answer(_ALLOW)]
    return [*program, (_JUMP_EQUAL, 0, len(flags), _SET_FLAGS), *flags, _answer(refusal)]


def _only(argument: int, value: int) -> list[_Instruction]:
    """Refuse other values of an argument; three instructions."""
    return [_load(argument), (_JUMP_EQUAL, 1, 0, value), _answer(_ERRNO | errno.EPERM)]


def _own_only() -> list[_Instruction]:
    return [step for name in _OWN_ONLY for step in _on(name, _when_equal(0, 0, _ALLOW, _ERRNO | errno.EPERM))]


def _unlimited_mappings(refusal: int, *, shared: bool) -> list[_Instruction]:
    """Refuse mappings of memory that RLIMIT_DATA does not count; go on with the number reloaded after others.

    MAP_GROWSDOWN makes a stack, whose pages are not counted as data. Pages of a ``shared`` anonymous mapping stay
    allocated when the process unmaps all but one of them, so nothing that can be seen from outside counts them.
    """
    program = [_load(3), (_JUMP_ANY_BIT, 0, 1, _MAP_GROWSDOWN), _answer(refusal)]
    if shared:
        program += [(_JUMP_ANY_BIT, 0, 2, _MAP_ANONYMOUS), (_JUMP_ANY_BIT, 0, 1, _MAP_SHARED), _answer(refusal)]
    return [*program, _reload()]


def _code_mappings(code: Sequence[tuple[int, int]]) -> list[_Instruction]:
    """Kill at executable mappings but those of a file with one of these offsets and lengths, never writable."""
    known: list[_Instruction] = []
    for offset, length in code:
        known += [_load(5), (_JUMP_EQUAL, 0, 3, offset), _load(1), (_JUMP_EQUAL, 0, 1, length), _answer(_ALLOW)]
    checks = [
        *(_load_high(1), (_JUMP_EQUAL, 1, 0, 0), _answer(_KILL_PROCESS)),
        *(_load_high(5), (_JUMP_EQUAL, 1, 0, 0), _answer(_KILL_PROCESS)),
        *(_load(2), (_JUMP_ANY_BIT, 0, 1, _PROT_WRITE), _answer(_KILL_PROCESS)),
        *(_load(3), (_JUMP_ANY_BIT, 0, 1, _MAP_ANONYMOUS), _answer(_KILL_PROCESS)),
        *known,
        _answer(_KILL_PROCESS),
    ]
    return [_load(2), (_JUMP_ANY_BIT, 0, len(checks), _PROT_EXEC), *checks]


def _personality() -> list[_Instruction]:
    """Allow to ask for it, and to switch address randomisation off, which NVRTC's precompiled headers need."""
    return [
        _load(0),
        (_JUMP_EQUAL, 0, 1, _ASK_PERSONALITY),
        _answer(_ALLOW),
        (_JUMP_ANY_BIT, 0, 1, ~_ADDR_NO_RANDOMIZE & 0xFFFFFFFF),
        _answer(_ERRNO | errno.EPERM),
        _answer(_ALLOW),
    ]


def install(program: bytes) -> None:
    """Confine all threads of this process by a filter, for good."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(program, len(program))

    class SockFprog(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    header = SockFprog(len(program) // 8, ctypes.addressof(buffer))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    # SECCOMP_FILTER_FLAG_TSYNC, for threads that the binary's constructors started
    if libc.syscall(number("seccomp"), _SECCOMP_SET_MODE_FILTER, 1, ctypes.byref(header)) != 0:
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
    call = number(name)
    if call < 0:
        return []
    return [(_JUMP_EQUAL, 0, len(actions), call), *actions]


def _when_equal(argument: int, value: int, then: int, otherwise: int) -> list[_Instruction]:
    return [_load(argument), (_JUMP_EQUAL, 0, 1, value), _answer(then), _answer(otherwise)]


def _when_all_equal(values: Mapping[int, int], then: int, otherwise: int) -> list[_Instruction]:
    """Return ``then`` if each of these arguments has its value."""
    program: list[_Instruction] = []
    for argument, value in values.items():
        program += [_load(argument), (_JUMP_EQUAL, 1, 0, value), _answer(otherwise)]
    return [*program, _answer(then)]


def _when_zero(argument: int, then: int, otherwise: int) -> list[_Instruction]:
    """Return ``then`` if all 64 bits of the argument are 0."""
    return [
        _load(argument),
        (_JUMP_EQUAL, 0, 3, 0),
        _load_high(argument),
        (_JUMP_EQUAL, 0, 1, 0),
        _answer(then),
        _answer(otherwise),
    ]


def _when_bits(argument: int, mask: int, then: int, otherwise: int | None) -> list[_Instruction]:
    """Return ``then`` if any bit of ``mask`` is set; else ``otherwise``, or go on with the number reloaded."""
    last = _reload() if otherwise is None else _answer(otherwise)
    return [_load(argument), (_JUMP_ANY_BIT, 0, 1, mask), _answer(then), last]


def _reload() -> _Instruction:
    return (_LOAD, 0, 0, _NUMBER_OFFSET)


def _load(argument: int) -> _Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument)  # low half; both architectures are little endian


def _load_high(argument: int) -> _Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument + 4)


def _answer(action: int) -> _Instruction:
    return (_RETURN, 0, 0, action)


def _pack(program: Sequence[_Instruction]) -> bytes:
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
