"""A host's /proc and /sys/fs/cgroup as two folders of plain files, all of one file system: what dra-plugin is to find there.

For tests that need no running container. Says nothing about how real mount tables look; the stand-in runtime does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from vgpu_state import mountinfo

_DISK = "8:1"
_TMPFS = "0:77"


class FakeHost:
    """The folders; `proc_root` and `cgroup_root` are what services take as --proc-root and --cgroup-root."""

    def __init__(self, folder: Path) -> None:
        self.proc_root = folder / "proc"
        self.cgroup_root = folder / "cgroup"
        (self.proc_root / "self").mkdir(parents=True)
        self.cgroup_root.mkdir()
        (self.cgroup_root / "cgroup.procs").touch()
        (self.proc_root / "self/mountinfo").write_text(_line(1, 0, _DISK, "/", "/"))
        self.boot("11111111-1111-4111-8111-111111111111")

    def boot(self, boot_id: str) -> None:
        """The kernel's id of this boot is `boot_id`."""
        file = self.proc_root / "sys/kernel/random/boot_id"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{boot_id}\n")

    def show_process(self, pid: int, *, cgroup: str, mounts: Mapping[str, str]) -> None:
        """A process that sees `mounts`: host path by destination, "tmpfs" for a fresh one; its root is an image's."""
        folder = self.proc_root / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        (folder / "mountinfo").write_text("".join(_container_table(mounts)))

    def populate(self, cgroup: str, pids: Sequence[int]) -> None:
        """The cgroup has exactly these processes."""
        folder = self.cgroup_root / cgroup.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


def _container_table(mounts: Mapping[str, str]) -> list[str]:
    lines = [_line(1, 0, _DISK, "/image", "/")]
    for number, (destination, source) in enumerate(sorted(mounts.items()), start=2):
        parent = mountinfo.visible_mount(mountinfo.parse_mountinfo("".join(lines)), destination)
        assert parent is not None
        device, root = (f"{_TMPFS}{number}", "/") if source == "tmpfs" else (_DISK, os.path.realpath(source))
        lines.append(_line(number, parent.mount_id, device, root, destination, kind="tmpfs" if source == "tmpfs" else "ext4"))
    return lines


def _line(number: int, parent: int, device: str, root: str, destination: str, *, kind: str = "ext4") -> str:
    return f"{number} {parent} {device} {root} {destination} rw - {kind} none rw\n"
