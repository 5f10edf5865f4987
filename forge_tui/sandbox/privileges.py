"""What a process gives up for good before a target is executed: limits, capabilities, user id, privileges, namespaces.

Each function does one thing to the calling (single-threaded) process and raises OSError when it can't.
Constants: include/uapi/linux/{prctl,capability,securebits,sched,mount}.h of Linux 6.18.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal

from forge_tui.sandbox.syscalls import LIBC, last_error, prctl

_SET_PDEATHSIG, _SET_DUMPABLE, _CAPBSET_DROP, _SET_SECUREBITS, _SET_SUBREAPER = 1, 4, 24, 28, 36
_SET_NO_NEW_PRIVS, _CAP_AMBIENT, _AMBIENT_CLEAR_ALL = 38, 47, 4
_CAPABILITY_VERSION_3, _LAST_CAPABILITY = 0x20080522, 63
# NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE, each locked: user id 0 brings no capability back at execve.
_SECUREBITS = 0xCF
NAMESPACES = {
    "user": 0x10000000, "net": 0x40000000, "ipc": 0x08000000, "pid": 0x20000000, "mount": 0x00020000,
}  # fmt: skip
_MS_REC, _MS_PRIVATE, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x4000, 0x40000, 2, 4, 8
OTHER_UID = 64731  # no account has it; used where root can make no user namespace


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def limit_resources(cpu_s: int, memory: int, address: int, file_bytes: int, open_files: int, processes: int) -> None:
    """Hard limits. memory: private writable bytes; address: whole address space; processes: 0 leaves the number alone."""
    limits = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_AS, address),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, open_files),
    ]
    if processes:
        limits.append((resource.RLIMIT_NPROC, processes))
    for which, value in limits:
        hard = resource.getrlimit(which)[1]
        bounded = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (bounded, bounded))


def drop_capabilities() -> None:
    """Empty every capability set; execve brings none back."""
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            prctl(_CAPBSET_DROP, capability)
        except OSError:  # EINVAL past the last one; EPERM for a plain user, who has none to lose
            break
    with contextlib.suppress(OSError):  # needs CAP_SETPCAP: a plain user outside a namespace has none to give up
        prctl(_SET_SECUREBITS, _SECUREBITS)
    prctl(_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    empty = (ctypes.c_uint32 * 6)()
    ctypes.set_errno(0)
    if LIBC.capset(ctypes.byref(header), ctypes.byref(empty)) != 0:
        raise last_error("capset")


def become(uid: int) -> None:
    """Root only: take another user and group id in all places."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def no_new_privileges() -> None:
    """execve grants nothing from now on (set-user-id programs, file capabilities)."""
    prctl(_SET_NO_NEW_PRIVS, 1)


def die_with_parent(parent: int) -> None:
    """SIGKILL when the parent dies; exits at once when it has died already. Call after changes of credentials."""
    prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def hide_memory() -> None:
    """Other processes of the same user can't read our memory, environment or descriptors (not capable root, though)."""
    prctl(_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (child subreaper)."""
    prctl(_SET_SUBREAPER, 1)


def unshare(names: list[str]) -> None:
    """Enter new namespaces. With "user" the ids map to themselves; a new pid namespace holds the next child on."""
    uid, gid = os.getuid(), os.getgid()
    flags = 0
    for name in names:
        flags |= NAMESPACES[name]
    ctypes.set_errno(0)
    if LIBC.unshare(ctypes.c_int(flags)) != 0:
        raise last_error("unshare " + "+".join(names))
    if "user" in names:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")


def mount_own_proc() -> None:
    """A /proc that shows this pid namespace only; needs a new mount namespace."""
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    ctypes.set_errno(0)
    if LIBC.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None) != 0:
        raise last_error(f"mount {target}")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
