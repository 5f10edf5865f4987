"""Where sessions live: a folder of the user on a local disk.

Invariant: nothing of a session is put on a file system where SQLite's write-ahead log or flock fail; the caller gets
the folder that is used instead and the line that says so.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from forge_tui.records.problem import MachineProblem

# Shared-memory maps and locks of WAL don't work across hosts (sqlite.org/wal.html, "all processes must be on the same
# host"); names as the kernel's mount table spells them.
NETWORK = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "orangefs", "pvfs2",
        "panfs", "wekafs", "davfs", "ncpfs", "vboxsf", "prl_fs", "drvfs", "glusterfs", "virtiofs",
    }
)  # fmt: skip
NETWORK_FUSE = (
    "sshfs", "glusterfs", "ceph", "beegfs", "s3fs", "rclone", "gcsfuse", "juicefs", "davfs", "smbnetfs", "mountpoint-s3",
    "goofys", "portal", "hdfs", "dfs", "nfs",
)  # fmt: skip


@dataclass(frozen=True)
class Home:
    """The folder of everything that is kept. line: why it is not the usual one, or ""."""

    path: Path
    line: str = ""

    @property
    def sessions(self) -> Path:
        return self.path / "sessions"

    @property
    def library(self) -> Path:
        return self.path / "library.db"


def home(environment: Mapping[str, str] | None = None, mounts: Iterable[tuple[str, str]] | None = None) -> Home:
    """FORGE_HOME, else the user's state folder, else (when that is on a network) a private folder on a local disk.

    Raises MachineProblem when no local folder can be used.
    """
    environment = os.environ if environment is None else environment
    given = environment.get("FORGE_HOME")
    if given:
        wanted = Path(given).expanduser().absolute()
    else:
        import platformdirs

        wanted = Path(platformdirs.user_state_dir("forge-tui", appauthor=False))
    table = list(mounts) if mounts is not None else mount_table()
    kind = network_filesystem(wanted, table)
    if not kind:
        return Home(wanted)
    for base in ("/var/tmp", "/tmp"):  # not the runtime folder, which is emptied at logout
        local = Path(base) / f"forge-tui-{os.getuid()}"
        if not network_filesystem(local, table) and private_folder(local):
            return Home(local, f"{wanted} is on a network file system ({kind}), so sessions are kept in {local}")
    raise MachineProblem(
        f"{wanted} is on a network file system ({kind}), where sessions break; set FORGE_HOME to a local folder"
    )


def private_folder(path: Path) -> bool:
    """Make `path` a folder that only this user can enter. False when someone else owns it or it is a link."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False
        if found.st_mode & 0o077:
            path.chmod(0o700)
    except OSError:
        return False
    return True


def network_filesystem(path: Path, mounts: Iterable[tuple[str, str]] | None = None) -> str:
    """Type of the network file system that holds `path` (or its nearest existing parent), "" for a local one."""
    table = list(mounts) if mounts is not None else mount_table()
    real = os.path.realpath(path)
    best, kind = "", ""
    for point, name in table:
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, name
    return kind if _is_network(kind) else ""


def _is_network(kind: str) -> bool:
    if kind in NETWORK:
        return True
    return kind.startswith("fuse.") and any(name in kind for name in NETWORK_FUSE)


def mount_table() -> list[tuple[str, str]]:
    """(mount point, type) of everything mounted, in order; a later entry hides an earlier one."""
    if sys.platform == "linux":
        try:
            text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return []
        return parse_mountinfo(text)
    import psutil

    return [(part.mountpoint, part.fstype) for part in psutil.disk_partitions(all=True)]


def parse_mountinfo(text: str) -> list[tuple[str, str]]:
    """Lines of /proc/self/mountinfo (proc(5)): field 5 is the mount point, the type follows the " - "."""
    found = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split(" ")
        if separator and len(fields) >= 5 and right:
            found.append((_unescape(fields[4]), right.split(" ")[0]))
    return found


def _unescape(field: str) -> str:
    """Blank, tab, newline and backslash are written \\040, \\011, \\012, \\134."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return field
