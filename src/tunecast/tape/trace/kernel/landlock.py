"""Landlock (Linux 5.13 and later): writes beneath named folders only, named programs only, signals to nobody else.

Rust and C++ code (tokenizers, pyarrow, HDF5) opens files behind Python's back; this is what still stops it, and it
binds the programs a script starts, too.

Left out  attributes of files (modes, owners, times), which Landlock does not know: `seccomp.py`.
Source    Documentation/userspace-api/landlock.rst in the Linux kernel.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from tunecast.records import NamedTuple
from tunecast.tape.trace.kernel.calls import call, prctl

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same number on every architecture
ASK_VERSION = 1
PATH_BENEATH = 1
NO_NEW_PRIVILEGES = 38
EXECUTE, WRITE_FILE, REMOVE_DIR, REMOVE_FILE = 1 << 0, 1 << 1, 1 << 4, 1 << 5
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << bit for bit in range(6, 13))
REFER, TRUNCATE = 1 << 13, 1 << 14
SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL = 1 << 0, 1 << 1
REFER_SINCE, TRUNCATE_SINCE, SCOPE_SINCE = 2, 3, 6
OF_FILES = EXECUTE | WRITE_FILE | TRUNCATE
"""Rights that a rule of a single file may have; all others are of folders."""


class Landlocked(NamedTuple):
    """What holds from now on."""

    writes: bool = False
    truncation: bool = False
    signals: bool = False


def restrict(folders: Iterable[str], files: Iterable[str], programs: Iterable[str]) -> Landlocked:
    """Binds this thread and every thread and process it starts from now on: `folders` and `files` are written to,
    `programs` are started, nothing else."""
    version = call(CREATE_RULESET, None, 0, ASK_VERSION) if hasattr(os, "O_PATH") else -1
    if version < 1:
        return Landlocked()
    made = MAKE_CHAR | MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_BLOCK | MAKE_SYM
    handled = EXECUTE | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | made
    handled |= REFER if version >= REFER_SINCE else 0
    handled |= TRUNCATE if version >= TRUNCATE_SINCE else 0
    scope = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL if version >= SCOPE_SINCE else 0
    text = struct.pack("=QQQ", handled, 0, scope) if scope else struct.pack("=Q", handled)
    rules = call(CREATE_RULESET, ctypes.create_string_buffer(text, len(text)), len(text), 0)
    if rules < 0:
        return Landlocked()
    inside = handled & ~(EXECUTE | MAKE_CHAR | MAKE_BLOCK)  # a device made there would be the disk itself
    try:
        granted = [*((path, inside) for path in folders), *((path, inside & OF_FILES) for path in files)]
        granted += [(path, EXECUTE) for path in programs]
        for path, rights in granted:
            _allow(rules, path, rights)
        if not prctl(NO_NEW_PRIVILEGES, 1) or call(RESTRICT_SELF, rules, 0) != 0:
            return Landlocked()
        return Landlocked(True, version >= TRUNCATE_SINCE, version >= SCOPE_SINCE)
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no rule
    try:
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, descriptor), 12)
        call(ADD_RULE, rules, PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
