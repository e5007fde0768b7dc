"""The kernel's own refusal of writes outside a folder, where it offers one (Linux 5.13 and later, "Landlock").

Rust and C++ code (tokenizers, pyarrow, HDF5) opens files behind Python's back; this is what still stops it, and it
binds the programs a script starts, too. Where the kernel has no Landlock the function answers False and only
Python's own writes are caught.

Source  Documentation/userspace-api/landlock.rst in the Linux kernel.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same number on every architecture
ASK_VERSION = 1
PATH_BENEATH = 1
NO_NEW_PRIVILEGES = 38
WRITE_FILE, REMOVE_DIR, REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
MAKE_ANYTHING = sum(1 << bit for bit in range(6, 13))
REFER, TRUNCATE = 1 << 13, 1 << 14
REFER_SINCE, TRUNCATE_SINCE = 2, 3


def refuse_writes_outside(folders: Iterable[str]) -> bool:
    """Binds this thread and every thread and process it starts from now on."""
    if not hasattr(os, "O_PATH"):
        return False
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    version = call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(ASK_VERSION))
    if version < 1:
        return False
    rights = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_ANYTHING
    rights |= REFER if version >= REFER_SINCE else 0
    rights |= TRUNCATE if version >= TRUNCATE_SINCE else 0
    handled = ctypes.create_string_buffer(struct.pack("=Q", rights), 8)
    rules = call(CREATE_RULESET, handled, ctypes.c_size_t(8), ctypes.c_uint32(0))
    if rules < 0:
        return False
    try:
        for folder in folders:
            if os.path.isdir(folder):
                descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
                rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, descriptor), 12)
                call(ADD_RULE, ctypes.c_int(rules), ctypes.c_int(PATH_BENEATH), rule, ctypes.c_uint32(0))
                os.close(descriptor)
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        if prctl(NO_NEW_PRIVILEGES, ctypes.c_ulong(1), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)):
            return False
        return bool(call(RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0)) == 0)
    finally:
        os.close(rules)
