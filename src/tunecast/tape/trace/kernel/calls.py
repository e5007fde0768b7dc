"""System calls that `ctypes` makes: the C library has no functions for most of these.

Source  asm/unistd_64.h and asm-generic/unistd.h of Linux 6.17. Numbers from 424 on are the same everywhere.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

AUDIT_ARCH: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3}
"""linux/audit.h, by the name `uname` has."""

NUMBERS: Mapping[str, tuple[int | None, int | None]] = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "capset": (126, 91),
    "chmod": (90, None), "chown": (92, None), "chroot": (161, 51), "clock_adjtime": (305, 266),
    "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435), "connect": (42, 203),
    "delete_module": (176, 106), "execveat": (322, 281), "fanotify_init": (300, 262), "fork": (57, None),
    "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "fchown": (93, 55), "fchownat": (260, 54),
    "fcntl": (72, 25), "file_setattr": (469, 469), "finit_module": (313, 273), "fremovexattr": (199, 16),
    "fsconfig": (431, 431), "fsetxattr": (190, 7), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "futimesat": (261, None), "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "ioctl": (16, 29), "kexec_file_load": (320, 294), "ioprio_set": (251, 30),
    "kexec_load": (246, 104), "keyctl": (250, 219), "kill": (62, 129), "lchown": (94, None), "listen": (50, 201),
    "lremovexattr": (198, 15), "lsetxattr": (189, 6), "migrate_pages": (256, 238), "mount": (165, 40),
    "mount_setattr": (442, 442), "move_mount": (429, 429), "move_pages": (279, 239), "mq_open": (240, 180),
    "mq_unlink": (241, 181), "msgctl": (71, 187), "msgget": (68, 186), "open": (2, None),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "open_tree_attr": (467, 467), "openat": (257, 56),
    "openat2": (437, 437), "perf_event_open": (298, 241), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41), "prctl": (157, 167), "prlimit64": (302, 261), "process_madvise": (440, 440),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "reboot": (169, 142), "removexattr": (197, 14), "removexattrat": (466, 466), "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "seccomp": (317, 277),
    "semctl": (66, 191), "semget": (64, 190), "sendmmsg": (307, 269), "sendmsg": (46, 211), "sendto": (44, 206),
    "setdomainname": (171, 162), "sethostname": (170, 161), "setns": (308, 268), "setpgid": (109, 154),
    "setpriority": (141, 140), "setsid": (112, 157), "settimeofday": (164, 170), "setxattr": (188, 5),
    "setxattrat": (463, 463), "shmctl": (31, 195), "shmget": (29, 194), "socket": (41, 198), "socketpair": (53, 199),
    "swapoff": (168, 225), "swapon": (167, 224), "tgkill": (234, 131), "tkill": (200, 130), "truncate": (76, 45),
    "umount2": (166, 39), "unshare": (272, 97), "utime": (132, None), "utimensat": (280, 88), "utimes": (235, None),
}  # fmt: skip
"""On x86_64, and on the architectures that came later. None: there is no such call."""


def machine() -> str:
    return os.uname().machine if hasattr(os, "uname") else ""


def number(name: str, architecture: str) -> int | None:
    return NUMBERS[name][0 if architecture == "x86_64" else 1]


def call(name_or_number: str | int, *arguments: object) -> int:
    """What the system call returns; -1 where it failed, or there is none of that name."""
    which = number(name_or_number, machine()) if isinstance(name_or_number, str) else name_or_number
    if which is None or sys.platform != "linux":
        return -1
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    whole = (ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)
    return int(function(ctypes.c_long(which), *whole))


def prctl(option: int, value: int = 0) -> bool:
    if sys.platform != "linux":
        return False
    function = ctypes.CDLL(None, use_errno=True).prctl
    return bool(function(option, ctypes.c_ulong(value), *(ctypes.c_ulong(0) for _ in range(3))) == 0)
