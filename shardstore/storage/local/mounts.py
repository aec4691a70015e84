"""Find the file system of a path, and find out whether other machines may have mounted it too."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

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

    @property
    def is_network(self) -> bool:
        """True if other machines may write there too, without this one's locks being theirs."""
        kind, _, below = self.kind.partition(".")
        if kind == "fuse":
            return below not in _LOCAL_FUSE
        return kind in _NETWORK

    def __str__(self) -> str:
        return f"{self.point} ({self.kind})"


def parse(mountinfo: bytes) -> list[Mount]:
    """Return the mounts that a file in the format of ``/proc/self/mountinfo`` lists (proc(5)), in its order; lines that cannot be parsed
    are skipped.
    """
    found = []
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(b" - ")
        fields = before.split(b" ")
        kind = after.split(b" ")[0]
        if separator and kind and len(fields) >= 5:
            point = _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), fields[4])
            found.append(Mount(os.fsdecode(point), os.fsdecode(kind)))
    return found


def mount_of(path: str, mountinfo: str = _MOUNTS) -> Mount | None:
    """Return the mount that ``path``, which need not exist, lies on; ``None`` if the system does not show it."""
    try:
        with open(mountinfo, "rb") as file:
            mounts = parse(file.read())
    except OSError:  # not Linux, or /proc is not mounted
        return None
    real = os.path.realpath(path)
    best: Mount | None = None
    for mount in mounts:
        if mount.point not in ("/", real) and not real.startswith(mount.point + "/"):
            continue
        # Of several mounts at one point, the last one covers the others.
        if best is None or len(mount.point) >= len(best.point):
            best = mount
    return best
