"""What /proc and the cgroup file systems say of a process, through roots that a test or a container view may move."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from vgpu_state import cgroup, mountinfo
from vgpu_state.ids import RuntimeId

# Where a path of /proc/<pid>/cgroup may be found: the unified tree, or one hierarchy of cgroup v1. All hold the same processes;
# the first that has the directory is asked.
_V1_FIRST = ("memory", "pids", "devices", "cpu,cpuacct", "cpu", "systemd", "freezer")
_REMEMBERED = 4096
_GPU_NODES = "/dev/nvidia"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A process, told apart from a later one with the same PID by its start time in clock ticks since boot."""

    pid: int
    started_ticks: int


class Procfs:
    """Reads below `proc_root` and `cgroup_root`. A process or directory that is gone reads as None or as empty."""

    def __init__(self, *, proc_root: Path, cgroup_root: Path) -> None:
        self._proc = proc_root
        self._cgroups = cgroup_root
        self._found: dict[RuntimeId, Path] = {}

    def identify(self, pid: int) -> ProcessIdentity | None:
        """The process that now has `pid`, None when there is none."""
        raw = self._read(pid, "stat")
        if raw is None:
            return None
        # The command's name may hold spaces and parentheses: fields count from the last one. Start time is field 22.
        fields = raw.rpartition(")")[2].split()
        return ProcessIdentity(pid=pid, started_ticks=int(fields[19])) if len(fields) > 19 else None

    def locate(self, pid: int) -> cgroup.ContainerCgroup | cgroup.AmbiguousCgroup | None:
        """The pod and container that the kernel has the process in."""
        raw = self._read(pid, "cgroup")
        return None if raw is None else cgroup.locate(raw)

    def mounts(self, pid: int | str) -> tuple[mountinfo.MountEntry, ...]:
        """The process's mount table; pid "self" is our own."""
        raw = self._read(pid, "mountinfo")
        return () if raw is None else mountinfo.parse_mountinfo(raw)

    def holds_gpu(self, pid: int) -> bool:
        """Whether the process has a /dev/nvidia* node open."""
        try:
            with os.scandir(self._proc / str(pid) / "fd") as entries:
                return any(_link(e.path).startswith(_GPU_NODES) for e in entries)
        except OSError:
            return False

    def cgroup_pids(self, path: str, container_id: RuntimeId) -> tuple[int, ...]:
        """Ascending host PIDs in a container's cgroup and all below it; () when it is empty or gone.

        `path` is what /proc showed. From inside a cgroup namespace it is relative (`/../…`), or not known yet (""): then the
        directory is looked for by the container's id.
        """
        directory = self._cgroup_directory(path, container_id)
        pids: set[int] = set()
        if directory is not None:
            for folder, _, files in os.walk(directory):
                if "cgroup.procs" in files:
                    pids.update(_pids_in(Path(folder, "cgroup.procs")))
        return tuple(sorted(pids - {0}))

    def _cgroup_directory(self, path: str, container_id: RuntimeId) -> Path | None:
        roots = [self._cgroups, *(self._cgroups / name for name in _V1_FIRST)]
        if path and ".." not in path.split("/"):
            for root in roots:
                if (candidate := root / path.lstrip("/")).is_dir():
                    return candidate
            return None
        known = self._found.get(container_id)
        if known is not None and known.is_dir():
            return known
        self._found.pop(container_id, None)
        for root in roots:
            if (root / "cgroup.procs").exists() and (found := _find_container(root, container_id)) is not None:
                if len(self._found) >= _REMEMBERED:
                    self._found.clear()
                self._found[container_id] = found  # the walk over a full node's cgroups is worth remembering
                return found
        return None

    def _read(self, pid: int | str, name: str) -> str | None:
        try:
            # Not read_text(): it turns CR, which a name may hold, into the end of a line.
            return (self._proc / str(pid) / name).read_bytes().decode(errors="replace")
        except OSError:
            return None


def boot_id(proc_root: Path) -> str:
    """The kernel's random id of this boot."""
    return (proc_root / "sys/kernel/random/boot_id").read_text().strip()


def _find_container(root: Path, container_id: RuntimeId) -> Path | None:
    for folder, below, _ in os.walk(root):
        for name in below:
            if container_id in name and _is_container(f"{folder[len(str(root)) :]}/{name}", container_id):
                return Path(folder, name)
    return None


def _is_container(path: str, container_id: RuntimeId) -> bool:
    """Whether this very cgroup is the container's: a container may make some below its own, named after another."""
    place = cgroup.locate_path(path)
    return place is not None and place.path == path and place.container_id == container_id


def _pids_in(file: Path) -> list[int]:
    try:
        return [int(line) for line in file.read_text().split()]
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
