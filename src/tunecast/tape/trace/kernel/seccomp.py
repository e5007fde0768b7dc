"""A filter of system calls (seccomp-BPF): what Landlock does not know of.

    modes, owners, times      answered as done, and not done: a path cannot be told from here, and a script that copies
                              a file with its mode goes on; of the user's files nothing changes, of its own neither
    extended attributes       refused as of a disk that has none
    network                   sockets of TCP can be made and bound (to find a free port), none connects or listens;
                              datagrams and raw sockets are refused; pairs of local sockets work
    processes                 a forked process forks no more (`refuse_forks`), so nothing multiplies; threads can be
                              made, and children whose parent waits until they start a program (vfork, posix_spawn)
    sessions, groups          answered as done: all that a script starts stays in its group, and is ended with it
    other processes           of the same user's none is slowed or moved to other cores; no signal goes to one
    the system                mounts, namespaces, modules, clocks, keys, memory of others, lasting shared memory
    io_uring, clone3, openat2 not there: they would do any of these unseen, and their callers know another way

Filters are inherited by every thread and program, and nobody can take them off.

Source  Documentation/userspace-api/seccomp_filter.rst and linux/bpf_common.h in the Linux kernel.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Iterator, Sequence

from tunecast.tape.trace.kernel.calls import AUDIT_ARCH, call, machine, number, prctl

SET_MODE_FILTER, NO_NEW_PRIVILEGES = 1, 38
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
ALLOW, FAIL = 0x7FFF0000, 0x00050000
"""`FAIL | errno`; with errno 0 the call is answered as done."""
X32 = 0x40000000
"""Calls of x86_64's other numbering."""

AS_DONE = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes",
    "futimesat", "utimensat", "setsid", "setpgid", "listen",
)  # fmt: skip
NO_ATTRIBUTES = (
    "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr",
    "removexattrat", "file_setattr",
)  # fmt: skip
REFUSED = (
    "mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "mount_setattr", "move_mount", "open_tree",
    "open_tree_attr", "fsopen", "fsconfig", "fsmount", "fspick", "ptrace", "process_vm_writev", "process_madvise",
    "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot", "swapon", "swapoff",
    "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname", "acct", "quotactl",
    "quotactl_fd", "bpf", "perf_event_open", "fanotify_init", "add_key", "request_key", "keyctl", "open_by_handle_at",
    "pidfd_getfd", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "mq_open", "mq_unlink", "shmget",
    "semget", "msgget", "shmctl", "semctl", "msgctl", "execveat", "migrate_pages", "move_pages",
)  # fmt: skip
NOT_THERE = ("io_uring_setup", "io_uring_enter", "io_uring_register", "clone3", "openat2")

AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
SOCK_STREAM, SOCK_SEQPACKET, SOCK_KIND = 1, 5, 0xF
IPPROTO_TCP = 6
MSG_FASTOPEN = 0x20000000
NEW_NAMESPACES, CLONE_VFORK, CLONE_THREAD = 0x7E020000, 0x4000, 0x10000
PR_SET_PDEATHSIG = 1
PRIO_PROCESS, PRIO_GROUP, IOPRIO_PROCESS = 0, 1, 1
F_SETOWN, F_SETOWN_EX = 8, 15
O_ACCMODE, O_TRUNC = 3, 0x200
HARMLESS_IOCTLS = (
    0x5401, 0x802C542A, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451,  # terminals told apart, sizes, non-blocking
    0x8912, 0x8913, 0x8915, 0x8927, 0x8933, 0x80086601,  # addresses of interfaces, flags of files: read
)  # fmt: skip
NVIDIA_IOCTLS = 0x4600
"""`nvidia-smi` asks its driver by these."""

Instruction = tuple[int, int, int, int]
"""Operation, instructions to skip where it is true, where it is false, operand."""


def refuse_calls(*, signals: bool, truncation: bool) -> bool:
    """From now on, for this process and all it starts. With `signals` none goes to another process, with `truncation`
    no file is cut by its path: where Landlock does not see to that. False where kernel or processor are not known."""
    return _add(lambda: program(machine(), os.getpid(), signals=signals, truncation=truncation))


def refuse_forks() -> bool:
    """From now on this process, and all it starts, makes no copy of itself."""
    return _add(lambda: program_without_forks(machine()))


def _add(filters_of: Callable[[], list[Instruction]]) -> bool:
    if machine() not in AUDIT_ARCH or struct.calcsize("P") != 8:
        return False
    filters = filters_of()
    text = b"".join(struct.pack("=HBBI", *each) for each in filters)
    held = ctypes.create_string_buffer(text, len(text))
    heading = ctypes.create_string_buffer(struct.pack("@HP", len(filters), ctypes.addressof(held)))
    return prctl(NO_NEW_PRIVILEGES, 1) and call("seccomp", SET_MODE_FILTER, 0, heading) == 0


def program(architecture: str, own_pid: int, *, signals: bool, truncation: bool) -> list[Instruction]:
    unknown = [(RETURN, 0, 0, FAIL | errno.ENOSYS)]
    found: list[Instruction] = [(LOAD, 0, 0, ARCHITECTURE_AT), (EQUAL, 1, 0, AUDIT_ARCH[architecture]), *unknown]
    found += [(LOAD, 0, 0, NUMBER_AT)]
    if architecture == "x86_64":
        found += [(AT_LEAST, 0, 1, X32), *unknown]
    for names, code in (
        (AS_DONE, 0),
        (NO_ATTRIBUTES, errno.ENOTSUP),
        (REFUSED, errno.EPERM),
        (NOT_THERE, errno.ENOSYS),
    ):
        for name in names:
            found += _rule(architecture, name, [(RETURN, 0, 0, FAIL | code)])
    for name, body in _by_argument(own_pid, signals=signals, truncation=truncation):
        found += _rule(architecture, name, body)
    return [*found, (RETURN, 0, 0, ALLOW)]


def program_without_forks(architecture: str) -> list[Instruction]:
    refuse, allow = (RETURN, 0, 0, FAIL | errno.EAGAIN), (RETURN, 0, 0, ALLOW)
    return [
        (LOAD, 0, 0, NUMBER_AT),
        *_rule(architecture, "fork", [refuse]),
        *_rule(architecture, "clone", [_low(0), (ANY_BIT, 1, 0, CLONE_VFORK | CLONE_THREAD), refuse, allow]),
        allow,
    ]


def _rule(architecture: str, name: str, body: Sequence[Instruction]) -> list[Instruction]:
    """`body` ends in an answer, whichever way it takes: after it the number of the call is still loaded."""
    which = number(name, architecture)
    return [] if which is None else [(EQUAL, 0, len(body), which), *body]


def _by_argument(own_pid: int, *, signals: bool, truncation: bool) -> Iterator[tuple[str, list[Instruction]]]:
    yield "connect", [(RETURN, 0, 0, FAIL | errno.ENETUNREACH)]
    yield "socket", _sockets()
    yield "socketpair", _one_of(1, (SOCK_STREAM, SOCK_SEQPACKET), errno.EACCES, mask=SOCK_KIND)
    yield "sendto", [
        _low(4), (EQUAL, 0, 3, 0), _high(4), (EQUAL, 0, 1, 0), (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, FAIL | errno.ENETUNREACH),
    ]  # fmt: skip
    yield "sendmsg", _no_bit(2, MSG_FASTOPEN, errno.ENETUNREACH)
    yield "sendmmsg", _no_bit(3, MSG_FASTOPEN, errno.ENETUNREACH)
    yield "clone", _no_bit(0, NEW_NAMESPACES, errno.EPERM)
    yield "prctl", [_low(0), (EQUAL, 0, 1, PR_SET_PDEATHSIG), (RETURN, 0, 0, FAIL), (RETURN, 0, 0, ALLOW)]
    yield "ioctl", [
        _low(1), *((EQUAL, len(HARMLESS_IOCTLS) - at + 2, 0, each) for at, each in enumerate(HARMLESS_IOCTLS)),
        (AND, 0, 0, 0xFF00), (EQUAL, 1, 0, NVIDIA_IOCTLS), (RETURN, 0, 0, FAIL | errno.ENOTTY), (RETURN, 0, 0, ALLOW),
    ]  # fmt: skip
    yield "prlimit64", [
        _low(2), (EQUAL, 0, 2, 0), _high(2), (EQUAL, 3, 0, 0),
        _low(0), (EQUAL, 1, 0, 0), (EQUAL, 0, 1, own_pid), (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, FAIL | errno.EPERM),
    ]  # fmt: skip
    for name in ("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"):
        yield name, _one_of(0, (0, own_pid), errno.EPERM)
    yield "setpriority", _of_itself((PRIO_PROCESS, PRIO_GROUP), own_pid)
    yield "ioprio_set", _of_itself((IOPRIO_PROCESS,), own_pid)
    if signals:
        yield "kill", _one_of(0, (0, own_pid), errno.EPERM)
        yield "tgkill", _one_of(0, (own_pid,), errno.EPERM)
        yield "tkill", [(RETURN, 0, 0, FAIL | errno.EPERM)]
        yield "fcntl", _none_of(1, (F_SETOWN, F_SETOWN_EX), errno.EPERM)  # any signal, once a pipe is written to
    if truncation:
        yield "truncate", [(RETURN, 0, 0, FAIL | errno.EPERM)]
        for name, flags in (("open", 1), ("openat", 2)):
            yield name, [
                _low(flags), (ANY_BIT, 0, 3, O_TRUNC), (AND, 0, 0, O_ACCMODE), (EQUAL, 0, 1, 0),
                (RETURN, 0, 0, FAIL | errno.EPERM), (RETURN, 0, 0, ALLOW),
            ]  # fmt: skip


def _sockets() -> list[Instruction]:
    """Local ones and those of TCP, that keep a connection: none of them says where to with each message."""
    refuse, allow = (RETURN, 0, 0, FAIL | errno.EACCES), (RETURN, 0, 0, ALLOW)
    local = [_low(1), (AND, 0, 0, SOCK_KIND), (EQUAL, 1, 0, SOCK_STREAM), (EQUAL, 0, 1, SOCK_SEQPACKET), allow, refuse]
    tcp = [
        _low(1), (AND, 0, 0, SOCK_KIND), (EQUAL, 0, 4, SOCK_STREAM), _low(2), (EQUAL, 1, 0, 0),
        (EQUAL, 0, 1, IPPROTO_TCP), allow, refuse,
    ]  # fmt: skip
    return [
        _low(0), (EQUAL, 0, len(local), AF_UNIX), *local,
        (EQUAL, 1, 0, AF_INET), (EQUAL, 0, len(tcp), AF_INET6), *tcp, refuse,
    ]  # fmt: skip


def _one_of(argument: int, values: Sequence[int], code: int, mask: int = 0xFFFFFFFF) -> list[Instruction]:
    compared = ((EQUAL, len(values) - at, 0, each) for at, each in enumerate(values))
    return [_low(argument), (AND, 0, 0, mask), *compared, (RETURN, 0, 0, FAIL | code), (RETURN, 0, 0, ALLOW)]


def _of_itself(kinds: Sequence[int], own_pid: int) -> list[Instruction]:
    """Of a call that says first whose process, group or user it means, and then which."""
    return [*_one_of(0, kinds, errno.EPERM)[:-1], *_one_of(1, (0, own_pid), errno.EPERM)]


def _none_of(argument: int, values: Sequence[int], code: int) -> list[Instruction]:
    compared = ((EQUAL, len(values) - at, 0, each) for at, each in enumerate(values))
    return [_low(argument), *compared, (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, FAIL | code)]


def _no_bit(argument: int, bits: int, code: int) -> list[Instruction]:
    return [_low(argument), (ANY_BIT, 0, 1, bits), (RETURN, 0, 0, FAIL | code), (RETURN, 0, 0, ALLOW)]


def _low(argument: int) -> Instruction:
    return (LOAD, 0, 0, ARGUMENTS_AT + 8 * argument)


def _high(argument: int) -> Instruction:
    return (LOAD, 0, 0, ARGUMENTS_AT + 8 * argument + 4)
