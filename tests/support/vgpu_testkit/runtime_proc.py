"""What the host's /proc and /sys/fs/cgroup would show of stand-in containers, as folders that services are pointed at.

Only processes of containers are in it. The cgroups have the shape of a hybrid host with kubelet's cgroupfs driver; their
members are kept right by looking: the kernel's own cgroups are not touched, which takes no privilege.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_CONTROLLERS = ("devices", "cpu,cpuacct", "pids", "memory")
_LINKED = ("stat", "status", "cmdline", "comm", "environ", "fd", "ns", "root", "exe", "maps", "task")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A process, told apart from a later one of the same number by its start time."""

    pid: int
    started_ticks: str


class Kinship:
    """What tells a container's processes from others, whoever their parents are: their mount namespace and session.

    A process is asked once, when it is first seen: what it inherited is what counts.
    """

    def __init__(self) -> None:
        self._of: dict[str, frozenset[str]] = {}

    def members(self, marks: frozenset[str]) -> list[int]:
        """The processes that have one of the marks."""
        alive = [entry for entry in os.listdir("/proc") if entry.isdigit()]
        self._of = {pid: self._of.get(pid) or _marks_of(pid) for pid in alive}
        return [int(pid) for pid, found in self._of.items() if found & marks]


class CgroupView:
    """One container's processes. Those that one of them starts join, and stay when their parents end.

    A process that was started and left alone between two looks is found by its mount namespace where the container has one
    of its own, else by its session; one that left its session at once as well is then not found.
    """

    def __init__(self, tree: ProcTree, cgroup_path: str, mountinfo: str | None) -> None:
        self._tree = tree
        self._path = cgroup_path
        self._mountinfo = mountinfo
        self._marks: frozenset[str] = frozenset()
        self._members: dict[int, _Member] = {}
        self._write()

    @property
    def pids(self) -> tuple[int, ...]:
        """Those known to be alive at the last look, ascending."""
        return tuple(sorted(self._members))

    def add(self, pid: int) -> None:
        """Takes a process in, before it runs a program."""
        self._join([pid])
        self._marks |= {f"session {pid}"} if self._mountinfo is not None else {_namespace_of(str(pid))}
        self._write()

    def look(self) -> None:
        """Takes in what the members have started, and drops what has ended."""
        before = dict(self._members)
        for pid in [pid for pid, member in self._members.items() if _read_member(pid) != member]:
            self._tree.hide_process(pid)
            del self._members[pid]
        self._join(_descendants(self._members))
        self._join(self._tree.kinship.members(self._marks))
        if self._members != before:
            self._write()

    def remove(self) -> None:
        """Takes the cgroup and all its processes out of the view."""
        for pid in self._members:
            self._tree.hide_process(pid)
        self._members = {}
        self._tree.remove_cgroup(self._path)

    def _join(self, pids: Iterable[int]) -> None:
        for pid in pids:
            member = _read_member(pid)
            if member is not None and pid not in self._members:
                self._tree.show_process(pid, cgroup_path=self._path, mountinfo=self._mountinfo)
                self._members[pid] = member

    def _write(self) -> None:
        self._tree.write_cgroup(self._path, self.pids)


class ProcTree:
    """The two folders; `proc_root` and `cgroup_root` are what services take as --proc-root and --cgroup-root."""

    def __init__(self, folder: Path) -> None:
        self.kinship = Kinship()
        self.proc_root = folder / "proc"
        self.cgroup_root = folder / "cgroup"
        random = self.proc_root / "sys/kernel/random"
        random.mkdir(parents=True)
        (random / "boot_id").symlink_to("/proc/sys/kernel/random/boot_id")
        (self.proc_root / "self").symlink_to("/proc/self")
        for controller in _CONTROLLERS:
            (self.cgroup_root / controller).mkdir(parents=True)
            (self.cgroup_root / controller / "cgroup.procs").touch()

    def add_cgroup(self, path: str, *, mountinfo: str | None = None) -> CgroupView:
        """Makes an empty cgroup; `mountinfo` is what its processes' mount table reads, None for the kernel's own."""
        return CgroupView(self, path, mountinfo)

    def show_process(self, pid: int, *, cgroup_path: str, mountinfo: str | None) -> None:
        """Lists a process."""
        folder = self.proc_root / str(pid)
        shutil.rmtree(folder, ignore_errors=True)
        partial = self.proc_root / f".{pid}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        lines = [f"{number}:{name}:{cgroup_path}" for number, name in enumerate((*_CONTROLLERS, "name=systemd"), start=1)]
        (partial / "cgroup").write_text("\n".join([*reversed(lines), "0::/", ""]))
        for name in _LINKED:
            (partial / name).symlink_to(f"/proc/{pid}/{name}")
        if mountinfo is None:
            (partial / "mountinfo").symlink_to(f"/proc/{pid}/mountinfo")
        else:
            (partial / "mountinfo").write_text(mountinfo)
        partial.rename(folder)

    def hide_process(self, pid: int) -> None:
        """Takes a process off the list."""
        shutil.rmtree(self.proc_root / str(pid), ignore_errors=True)

    def write_cgroup(self, path: str, pids: Iterable[int]) -> None:
        """Says which processes are in a cgroup."""
        text = "".join(f"{pid}\n" for pid in pids)
        for controller in _CONTROLLERS:
            folder = self._cgroup(controller, path)
            folder.mkdir(parents=True, exist_ok=True)
            partial = folder / ".cgroup.procs"
            partial.write_text(text)
            partial.rename(folder / "cgroup.procs")

    def remove_cgroup(self, path: str) -> None:
        """Takes a cgroup away, and those above it that hold nothing else, up to the pods' root."""
        for controller in _CONTROLLERS:
            folder = self._cgroup(controller, path)
            shutil.rmtree(folder, ignore_errors=True)
            for parent in folder.parents:
                if parent == self.cgroup_root / controller or any(one.is_dir() for one in parent.iterdir()):
                    break
                shutil.rmtree(parent)

    def _cgroup(self, controller: str, path: str) -> Path:
        return self.cgroup_root / controller / path.lstrip("/")


def _marks_of(pid: str) -> frozenset[str]:
    try:
        session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3]
    except OSError:
        return frozenset()
    return frozenset((f"session {session}", _namespace_of(pid)))


def _namespace_of(pid: str) -> str:
    """The mount namespace of a process; one that ended, or is another user's, has one of its own."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return f"unknown {pid}"


def _descendants(pids: Iterable[int]) -> Iterator[int]:
    pending = list(pids)
    while pending:
        for child in _children(pending.pop()):
            yield child
            pending.append(child)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            found += [int(child) for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
        except OSError:
            continue
    return found


def _read_member(pid: int) -> _Member | None:
    """The process of that number that runs; None where it has ended, its parent told or not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else _Member(pid=pid, started_ticks=fields[19])
