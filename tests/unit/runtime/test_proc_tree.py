"""The proc- and cgroup-shaped folders show a container's processes as the host's would."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from vgpu_testkit.pods import ContainerSpec, Mount, Pod, PodSpec
from vgpu_testkit.runtime import StandInRuntime

Until = Callable[[Callable[[], bool]], Awaitable[None]]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text()
_UID = "0b7e4a1c-2f63-4d0e-9b5a-000000000001"
_FORKING = ("/bin/sh", "-c", "sleep 1000 & sleep 1000 & wait")


def _runs(pid: int) -> bool:
    """Whether a process still runs; one that nobody has buried yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def _pod(runtime: StandInRuntime) -> Pod:
    return await runtime.run_pod(PodSpec(uid=_UID))


def _procs(runtime: StandInRuntime, container: str) -> Path:
    return runtime.cgroup_root / f"memory/kubepods/besteffort/pod{_UID}/{container}/cgroup.procs"


def _pids(runtime: StandInRuntime, container: str) -> list[int]:
    return [int(line) for line in _procs(runtime, container).read_text().split()]


@pytest.fixture(params=["runtime", "mapped"])
def either(request: pytest.FixtureRequest) -> StandInRuntime:
    """The runtime in each of its two ways."""
    made: StandInRuntime = request.getfixturevalue(request.param)
    return made


async def test_first_process_is_in_its_cgroup(either: StandInRuntime) -> None:
    container = await either.run_container(await _pod(either))
    pid = (await either.status(container)).pid

    lines = (either.proc_root / f"{pid}/cgroup").read_text().splitlines()

    path = f"/kubepods/besteffort/pod{_UID}/{container}"
    assert lines == [
        f"5:name=systemd:{path}", f"4:memory:{path}", f"3:pids:{path}", f"2:cpu,cpuacct:{path}", f"1:devices:{path}", "0::/",
    ]  # fmt: skip
    assert _pids(either, container) == [pid]
    assert (either.proc_root / f"{pid}/stat").read_text().startswith(f"{pid} ")


async def test_tree_has_what_a_reader_of_proc_needs_besides(runtime: StandInRuntime) -> None:
    assert (runtime.proc_root / "sys/kernel/random/boot_id").read_text() == _BOOT_ID
    assert (runtime.proc_root / "self/stat").read_text().startswith(f"{os.getpid()} ")
    assert (runtime.cgroup_root / "memory/cgroup.procs").read_text() == ""


async def test_processes_that_the_workload_starts_join_and_leave(either: StandInRuntime, until: Until) -> None:
    container = await either.run_container(await _pod(either), ContainerSpec(command=_FORKING))
    await until(lambda: len(_pids(either, container)) == 3)
    pids = _pids(either, container)
    assert all((either.proc_root / f"{pid}/cgroup").exists() for pid in pids)
    first = (await either.status(container)).pid
    child = max(pid for pid in pids if pid != first)

    os.kill(child, 9)

    await until(lambda: child not in _pids(either, container))
    assert not (either.proc_root / str(child)).exists()
    assert len(_pids(either, container)) == 2


async def test_exec_is_listed_before_it_runs_and_gone_afterwards(isolated: StandInRuntime, folder: Path) -> None:
    # The program itself looks for its entry.
    mounts = (Mount("/host", isolated.proc_root, readonly=True),)
    container = await isolated.run_container(await _pod(isolated), ContainerSpec(mounts=mounts))

    seen = await isolated.sh(container, "echo $$; cat /host/$$/cgroup")

    pid = int(seen.splitlines()[0])
    assert f"4:memory:/kubepods/besteffort/pod{_UID}/{container}" in seen
    assert not (isolated.proc_root / str(pid)).exists()
    assert pid not in _pids(isolated, container)


async def test_all_entries_are_gone_when_the_container_has_stopped(either: StandInRuntime) -> None:
    container = await either.run_container(await _pod(either), ContainerSpec(command=_FORKING))

    await either.stop(container)

    assert [entry.name for entry in either.proc_root.iterdir() if entry.name.isdigit()] == []
    assert sorted(path.name for path in (either.cgroup_root / "memory").rglob("*")) == ["cgroup.procs"]


async def test_stop_ends_processes_that_left_their_parents(isolated: StandInRuntime, until: Until) -> None:
    container = await isolated.run_container(await _pod(isolated))
    await isolated.sh(container, "(setsid sleep 1000 >/dev/null 2>&1 &)")
    await until(lambda: len(_pids(isolated, container)) == 2)
    pids = _pids(isolated, container)

    await isolated.stop(container)

    assert [pid for pid in pids if _runs(pid)] == []


async def test_mount_table_shows_the_sources_on_top(either: StandInRuntime, folder: Path) -> None:
    (folder / "source").mkdir()
    mounts = (Mount("/etc/app", folder / "source", readonly=True),)
    container = await either.run_container(await _pod(either), ContainerSpec(mounts=mounts))
    pid = (await either.status(container)).pid

    table = (either.proc_root / f"{pid}/mountinfo").read_text()

    line = next(line for line in table.splitlines() if line.split(" ")[4] == "/etc/app")
    status = (folder / "source").stat()
    assert line.split(" ")[2] == f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    assert line.split(" ")[3].endswith("/source")
