"""What /proc and the cgroup file systems say of a process, through roots that a test or a container view may move."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from vgpu_daemon import cgroup_walk
from vgpu_daemon.cgroup_walk import Step
from vgpu_state import cgroup, mountinfo
from vgpu_state.cgroup import ContainerCgroup
from vgpu_state.ids import PodUid, RuntimeId

# Where a path of /proc/<pid>/cgroup may be found: the unified tree, or one hierarchy of cgroup v1. All hold the same processes;
# the first that has the directory is asked.
_V1_FIRST = ("memory", "pids", "devices", "cpu,cpuacct", "cpu", "systemd", "freezer")
_REMEMBERED = 4096
_GPU_NODES = "/dev/nvidia"
_FILES_LOOKED_AT = 256
_DEEPEST_CONTAINER = 16  # levels; kubelet's, below a slice or a container of its own, are under ten


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A process, told apart from a later one with the same PID by its start time in clock ticks since boot."""

    pid: int
    started_ticks: int


@dataclass(frozen=True, slots=True)
class _Place:
    """A container's directory, or None; not certain: where it may be could not all be looked at."""

    directory: Path | None
    is_certain: bool = True


@dataclass(frozen=True, slots=True)
class _Pids:
    pids: set[int]
    is_complete: bool


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
        """Whether one of the process's first 256 open files is a /dev/nvidia* node.

        No more are looked at: processes that share a huge table of files would otherwise cost a read of all of it each.
        """
        try:
            with os.scandir(self._proc / str(pid) / "fd") as entries:
                return any(_link(e.path).startswith(_GPU_NODES) for e in islice(entries, _FILES_LOOKED_AT))
        except OSError:
            return False

    def cgroup_pids(self, path: str, container_id: RuntimeId) -> tuple[int, ...]:
        """Ascending host PIDs in a container's cgroup and all below it; () when it is empty or gone.

        `path` is what /proc showed. From inside a cgroup namespace it is relative (`/../…`), or not known yet (""): then the
        directory is looked for by the container's id. What could not be read is missing: `has_processes` says whether a
        container has ended.
        """
        place = self._cgroup_directory(path, container_id)
        return tuple(sorted(_all_pids(place.directory).pids - {0})) if place.directory is not None else ()

    def has_processes(self, path: str, container_id: RuntimeId) -> bool:
        """Whether a process may be left in a container's cgroup or below it: False only when the kernel was asked to the end.

        `path` as for `cgroup_pids`.
        """
        place = self._cgroup_directory(path, container_id)
        if place.directory is None:
            return not place.is_certain
        return _may_have_processes(place.directory)

    def pod_has_processes(self, pod_uid: PodUid) -> bool:
        """Whether a process may be left anywhere in the pod: False only when the kernel was asked to the end."""
        is_certain = True
        for root in [self._cgroups, *(self._cgroups / name for name in _V1_FIRST)]:
            if not (root / "cgroup.procs").exists():
                continue
            found, is_complete = _find_pods(root, pod_uid)
            is_certain &= is_complete
            if any(_may_have_processes(directory) for directory in found):
                return True
            if found:
                return False  # every hierarchy has the same processes
        return not is_certain

    def _cgroup_directory(self, path: str, container_id: RuntimeId) -> _Place:
        roots = [self._cgroups, *(self._cgroups / name for name in _V1_FIRST)]
        if path and ".." not in path.split("/"):
            return _first_directory(root / path.lstrip("/") for root in roots)
        known = self._found.pop(container_id, None)
        place = _Place(None) if known is None else _first_directory([known])
        is_certain = True
        for root in roots:
            if place.directory is not None:
                break
            if (root / "cgroup.procs").exists():
                place = _find_container(root, container_id)
                is_certain &= place.is_certain
        if place.directory is None:
            return _Place(None, is_certain)
        if len(self._found) >= _REMEMBERED:
            self._found.clear()
        self._found[container_id] = place.directory  # the walk over a full node's cgroups is worth remembering
        return place

    def _read(self, pid: int | str, name: str) -> str | None:
        try:
            # Not read_text(): it turns CR, which a name may hold, into the end of a line.
            return (self._proc / str(pid) / name).read_bytes().decode(errors="replace")
        except OSError:
            return None


def boot_id(proc_root: Path) -> str:
    """The kernel's random id of this boot."""
    return (proc_root / "sys/kernel/random/boot_id").read_text().strip()


def has_only_cgroup_v2(cgroup_root: Path) -> bool:
    """Whether the unified tree is all that there is; on a hybrid node it lies below, beside the hierarchies of v1."""
    return (cgroup_root / "cgroup.controllers").is_file()


def _first_directory(candidates: Iterable[Path]) -> _Place:
    is_certain = True
    for candidate in candidates:
        try:
            if stat.S_ISDIR(candidate.stat().st_mode):
                return _Place(candidate)
        except OSError as exc:
            is_certain &= exc.errno in {*cgroup_walk.GONE, errno.ENOTDIR}
    return _Place(None, is_certain)


def _find_container(root: Path, container_id: RuntimeId) -> _Place:
    found: list[Path] = []

    def judge(place: ContainerCgroup, directory: Path) -> Step:
        if place.container_id is None:
            return Step.DESCEND
        if place.container_id != container_id:
            return Step.SKIP  # what is below a container's own cgroup it has made itself, and may have named after another
        found.append(directory)
        return Step.STOP

    is_complete = _walk_places(root, judge)
    return _Place(found[0] if found else None, is_complete)


def _find_pods(root: Path, pod_uid: PodUid) -> tuple[list[Path], bool]:
    """The pod's own directory, or those of its containers where each stands beside the others; whether all was looked at."""
    found: list[Path] = []

    def judge(place: ContainerCgroup, directory: Path) -> Step:
        if place.pod_uid == pod_uid:
            found.append(directory)
        return Step.SKIP

    return found, _walk_places(root, judge)


def _walk_places(root: Path, judge: Callable[[ContainerCgroup, Path], Step]) -> bool:
    """Asks `judge` where to go on at the cgroup of each pod and each container; whether all that it wanted was looked at."""

    def visit(_: int, names: Sequence[str]) -> Step:
        if not names:
            return Step.DESCEND
        if len(names) > _DEEPEST_CONTAINER or names[-1] == "user.slice":
            return Step.SKIP
        path = "/" + "/".join(names)
        place = cgroup.locate_path(path)
        if place is None or place.path != path:
            return Step.DESCEND
        return judge(place, root.joinpath(*names))

    return cgroup_walk.walk(root, visit)


def _may_have_processes(directory: Path) -> bool:
    populated = _populated(directory)
    if populated is not None:
        return populated
    found = _all_pids(directory)
    return bool(found.pids) or not found.is_complete  # PID 0, a process that we cannot see, counts


def _all_pids(directory: Path) -> _Pids:
    pids: set[int] = set()
    is_complete = True

    def visit(fd: int, names: Sequence[str]) -> Step:
        nonlocal is_complete
        try:
            pids.update(map(int, _read_in(fd, "cgroup.procs").split()))
        except OSError as exc:
            # A threaded cgroup refuses: its processes stand in the one above it, which is ours unless it is the topmost.
            is_complete &= exc.errno in cgroup_walk.GONE or (exc.errno == errno.EOPNOTSUPP and bool(names))
        return Step.DESCEND

    has_all = cgroup_walk.walk(directory, visit)
    return _Pids(pids, is_complete and has_all)


def _populated(directory: Path) -> bool | None:
    """What cgroup v2 says of a cgroup and all below it; None where it says nothing: v1, or the directory is gone."""
    try:
        words = (directory / "cgroup.events").read_text().split()
    except OSError:
        return None
    values = dict(zip(words[::2], words[1::2], strict=False))
    return values["populated"] != "0" if "populated" in values else None


def _read_in(directory_fd: int, name: str) -> bytes:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory_fd), "rb") as file:
        return file.read()


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
