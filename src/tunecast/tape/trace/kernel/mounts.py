"""Mounts of its own for a process: every disk read-only but one folder, and an empty shared memory.

What is left in /dev/shm goes with the process, and the second wall stands where a kernel has no Landlock. It takes
the right to mount: root's, or that of a user who may make namespaces, which containers and some distributions withhold.

Source  mount_setattr(2), user_namespaces(7).
"""

from __future__ import annotations

import ctypes
import os
import struct

from tunecast.tape.trace.kernel.calls import call

NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV, MS_NOEXEC = 4096, 16384, 1 << 18, 2, 4, 8
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
READ_ONLY = 1
SHARED_MEMORY = "/dev/shm"


def separate(folder: str, shared_memory_bytes: int) -> bool:
    """For this process and all it starts. Tried in another first: half of it would be worse than nothing."""
    if not hasattr(os, "fork") or not os.path.isdir("/proc/self"):
        return False
    trial = os.fork()
    if trial == 0:
        try:
            _separate(folder, shared_memory_bytes)
            os.mkdir(os.path.join(folder, "trial"))
            os.rmdir(os.path.join(folder, "trial"))
            os._exit(0)
        except BaseException:
            os._exit(1)
    if os.waitpid(trial, 0)[1] != 0:
        return False
    _separate(folder, shared_memory_bytes)
    return True


def _separate(folder: str, shared_memory_bytes: int) -> None:
    here = os.getcwd()
    user, group = os.getuid(), os.getgid()
    if user == 0:
        _require(call("unshare", NEW_MOUNTS))
    else:
        _require(call("unshare", NEW_MOUNTS | NEW_USER))
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _set_read_only("/", True, AT_RECURSIVE)
    _mount(folder, folder, None, MS_BIND)
    _set_read_only(folder, False, 0)
    if os.path.isdir(SHARED_MEMORY) and not folder.startswith(SHARED_MEMORY):
        options = f"size={shared_memory_bytes},nr_inodes=10000,mode=1777"
        _mount("tmpfs", SHARED_MEMORY, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options)
    os.chdir(here)  # by its path: into the mounts made since, not those beneath them


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if each is None else ctypes.c_char_p(os.fsencode(each)) for each in (source, target, kind, options)]
    _require(call("mount", texts[0], texts[1], texts[2], flags, texts[3]))


def _set_read_only(path: str, on: bool, flags: int) -> None:
    """struct mount_attr: to set, to clear, propagation, user namespace."""
    text = struct.pack("=QQQQ", READ_ONLY if on else 0, 0 if on else READ_ONLY, 0, 0)
    attributes = ctypes.create_string_buffer(text, len(text))
    _require(call("mount_setattr", AT_FDCWD, ctypes.c_char_p(os.fsencode(path)), flags, attributes, len(text)))


def _require(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
