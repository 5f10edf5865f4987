"""Landlock: what a process may read, execute and write, and (from ABI 4 and 6) TCP, signals and abstract sockets.

Bits and structures: include/uapi/linux/landlock.h of Linux 6.18. Everything the running ABI can handle is handled, so
what no rule allows is refused. A path that is missing only lessens what is allowed; any other failure is an OSError.
"""

from __future__ import annotations

import ctypes
import os
import stat

from forge_tui.sandbox.syscalls import syscall

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ = EXECUTE | READ_FILE | READ_DIR
WRITE = READ_FILE | READ_DIR | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER | TRUNCATE
DEVICE = READ_FILE | WRITE_FILE | IOCTL_DEV
SCOPE_ABI = 6  # signals and abstract sockets stay inside the domain from here on

_CREATE_VERSION = 1
_RULE_PATH_BENEATH = 1


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi() -> int:
    """Landlock ABI version of the running kernel. Raises OSError where there is none."""
    return syscall("landlock_create_ruleset", ctypes.c_void_p(None), ctypes.c_size_t(0), _CREATE_VERSION)


def handled(version: int) -> tuple[int, int, int]:
    """Access bits (file system, TCP, scopes) that ABI `version` can handle."""
    last = 12 + (version >= 2) + (version >= 3) + (version >= 5)
    return (1 << (last + 1)) - 1, 3 if version >= 4 else 0, 3 if version >= SCOPE_ABI else 0


def restrict(rules: list[tuple[str, int]]) -> int:
    """Confine the calling thread for good to (path, access bits); needs no_new_privs. Returns the ABI in force.

    Raises OSError when any step fails.
    """
    version = abi()
    fs, net, scoped = handled(version)
    attributes = _Ruleset(fs, net, scoped)
    size = 8 if version < 4 else 16 if version < SCOPE_ABI else 24
    ruleset = syscall("landlock_create_ruleset", ctypes.byref(attributes), ctypes.c_size_t(size), 0)
    try:
        for path, access in rules:
            _allow(ruleset, path, access & fs)
        syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return version


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(parent).st_mode):
            access &= _FILE_RIGHTS
        rule = _PathBeneath(access, parent)
        syscall("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)
