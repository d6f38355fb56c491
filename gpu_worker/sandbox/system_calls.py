"""Numbers of Linux's system calls: asm/unistd_64.h and asm-generic/unistd.h. Standard library only."""

from __future__ import annotations

import platform

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
    "set_tid_address": (218, 96), "restart_syscall": (219, 128), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "exit_group": (231, 94), "tgkill": (234, 131),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "openat": (257, 56),
    "newfstatat": (262, 79), "readlinkat": (267, 78), "faccessat": (269, 48), "ppoll": (271, 73),
    "unshare": (272, 97), "set_robust_list": (273, 99), "get_robust_list": (274, 100), "perf_event_open": (298, 241),
    "prlimit64": (302, 261), "open_by_handle_at": (304, 265), "getcpu": (309, 168), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "setns": (308, 268), "getrandom": (318, 278), "bpf": (321, 280),
    "userfaultfd": (323, 282), "membarrier": (324, 283), "statx": (332, 291), "rseq": (334, 293),
    "pread64": (17, 67), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "shmdt": (67, 197), "msgget": (68, 186), "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187), "syslog": (103, 116), "uselib": (134, -1), "personality": (135, 92),
    "setpriority": (141, 140), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "vhangup": (153, 58),
    "modify_ldt": (154, -1), "prctl": (157, 167), "adjtimex": (159, 171), "chroot": (161, 51), "acct": (163, 89),
    "settimeofday": (164, 170), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142),
    "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, -1), "ioperm": (173, -1),
    "init_module": (175, 105), "delete_module": (176, 106), "quotactl": (179, 60), "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18), "semtimedop": (220, 192), "clock_settime": (227, 112), "mq_open": (240, 180),
    "mq_unlink": (241, 181), "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183), "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185), "kexec_load": (246, 104), "ioprio_set": (251, 30), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "fanotify_init": (300, 262), "name_to_handle_at": (303, 264),
    "clock_adjtime": (305, 266), "kcmp": (312, 272), "finit_module": (313, 273), "sched_setattr": (314, 274),
    "seccomp": (317, 277), "memfd_create": (319, 279), "kexec_file_load": (320, 294), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "process_madvise": (440, 440),
    "mount_setattr": (442, 442), "quotactl_fd": (443, 443), "memfd_secret": (447, 447), "process_mrelease": (448, 448),
    "open_tree_attr": (467, 467), "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "connect": (42, 203), "kill": (62, 129), "setpgid": (109, 154), "setsid": (112, 157), "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "io_uring_setup": (425, 425),
    "setrlimit": (160, 164), "timer_create": (222, 107),
    "clone3": (435, 435), "faccessat2": (439, 439), "futex_waitv": (449, 449),
}  # fmt: skip
"""By name, on x86_64 and aarch64; -1 where the architecture has none."""


def number(name: str) -> int:
    """Return a call's number on this machine; -1 where it has none."""
    x86_64, aarch64 = _NUMBERS[name]
    return x86_64 if platform.machine() == "x86_64" else aarch64
