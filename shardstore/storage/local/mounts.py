"""Find the file system of a path, find out whether other machines may have mounted it too, and which file systems are mounted below it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

# Network and cluster file systems, and the directories that a virtual machine shares with its host.
_NETWORK = frozenset(
    {"9p", "acfs", "afs", "auristorfs", "beegfs", "beegfs_nodev", "ceph", "cifs", "coda", "cvfs", "dvs", "fhgfs", "gfs2", "glusterfs"}
    | {"gpfs", "lustre", "mmfs", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs"}
    | {"vboxsf", "virtiofs", "vmhgfs", "wekafs"}
)

# A FUSE file system that is not known here may lead anywhere: sshfs, s3fs, JuiceFS. These lead to this machine's own disks.
_LOCAL_FUSE = frozenset(
    {"archivemount", "bindfs", "cryfs", "encfs", "exfat", "fuse-overlayfs", "fuseext2", "gocryptfs", "lxcfs", "mergerfs", "ntfs-3g"}
    | {"rofiles-fuse", "squashfuse", "unionfs", "unionfs-fuse", "veracrypt"}
)

_MOUNTS = "/proc/self/mountinfo"
_ESCAPE = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system: its place, and its type as the system names it."""

    point: str
    kind: str
    device: str = field(default="", compare=False)
    """The numbers of the device, equal for all mounts of one file system; empty where the system does not tell. Of a network file system
    with the directory on the server, since several of them can have the same numbers.
    """
    root: str = field(default="/", compare=False)
    """The path, in its own file system, of the directory that is mounted: after ``mount --bind`` it has another place too."""

    @property
    def is_network(self) -> bool:
        """True if other machines may write there too, without this one's locks being theirs."""
        kind, _, below = self.kind.partition(".")
        if kind == "fuse":
            return below not in _LOCAL_FUSE
        return kind in _NETWORK

    def name_of(self, path: str) -> str | None:
        """Return a name for the directory ``path``, at ``point`` or below it, that it has by all mounts of it; below it, names begin with
        this one and ``/``.
        """
        inside = os.path.normpath(os.path.join(self.root, os.path.relpath(path, self.point))).rstrip("/")
        return f"{self.device}:{inside}" if self.device else None

    def __str__(self) -> str:
        return f"{self.point} ({self.kind})"


@lru_cache(maxsize=4)
def parse(mountinfo: bytes) -> Sequence[Mount]:
    """Return the mounts that a file like ``/proc/self/mountinfo`` lists (proc(5)), in its order; other lines are skipped."""
    found = []
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(b" - ")
        fields = before.split(b" ")
        kind, _, source = after.partition(b" ")
        if separator and kind and len(fields) >= 5:
            mount = Mount(_path(fields[4]), os.fsdecode(kind), os.fsdecode(fields[2]), _path(fields[3]))
            on_server = f"{mount.device} {os.fsdecode(source.split(b' ')[0])}"
            found.append(replace(mount, device=on_server) if mount.kind in _NETWORK else mount)
    return found


def _path(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field))


class Mounts:
    """All mounts of this machine, at the time when this is made."""

    def __init__(self, mountinfo: str = _MOUNTS) -> None:
        try:
            with open(mountinfo, "rb") as file:
                mounts = parse(file.read())
        except OSError:  # not Linux, or /proc is not mounted
            mounts = []
        self._at = {mount.point: mount for mount in mounts}  # of several mounts at one point, the last one covers the rest

    @property
    def are_known(self) -> bool:
        """True where the system reports them."""
        return bool(self._at)

    def of(self, real: str) -> Mount | None:
        """Return the mount that a path without links, which need not exist, lies on; ``None`` where the system does not show it."""
        return next((self._at[above] for above in _with_parents(real) if above in self._at), None)

    def below(self, real: Iterable[str]) -> list[Mount]:
        """Return the mounts strictly below paths without links. Where the system does not tell them, the directories are searched for
        those of another device; what is mounted there is not known then.
        """
        tops = set(real)
        if not self.are_known:
            return [Mount(point, "") for top in sorted(tops) for point in _other_devices(top)]
        return [mount for point, mount in self._at.items() if any(above in tops for above in _with_parents(point) if above != point)]


def _with_parents(path: str) -> Iterator[str]:
    yield path
    while (above := os.path.dirname(path)) != path:
        path = above
        yield path


def _other_devices(top: str) -> Iterator[str]:
    """Yield the directories below ``top`` that lie on another device than the directory above them."""
    for directory, names, _ in os.walk(top):
        try:
            device = os.lstat(directory).st_dev
            yield from (path for name in names if os.lstat(path := os.path.join(directory, name)).st_dev != device)
        except FileNotFoundError:  # removed since then
            continue


def mount_of(path: str, mountinfo: str = _MOUNTS) -> Mount | None:
    """Return the mount that ``path``, which need not exist, lies on; ``None`` if the system does not show it."""
    return Mounts(mountinfo).of(os.path.realpath(path))
