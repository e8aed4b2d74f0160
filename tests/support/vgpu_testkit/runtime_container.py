"""One container of the stand-in runtime: its files, its processes, where it is in its life.

Knows neither NRI nor CRI. Its processes are made by `runtime_process`, shown by `runtime_proc`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vgpu_proto import nri
from vgpu_testkit import oci, runtime_paths, runtime_process
from vgpu_testkit.nri_container import ContainerView
from vgpu_testkit.pods import ContainerEntry, ContainerSpec, ContainerState, ContainerStatus, ExecResult, Pod
from vgpu_testkit.runtime_paths import PathMap
from vgpu_testkit.runtime_proc import CgroupView, ProcTree
from vgpu_testkit.runtime_process import HeldProcess, Isolation, OutputPipe

_NRI_STATES = {
    ContainerState.CREATED: nri.CONTAINER_CREATED,
    ContainerState.RUNNING: nri.CONTAINER_RUNNING,
    ContainerState.EXITED: nri.CONTAINER_STOPPED,
    ContainerState.UNKNOWN: nri.CONTAINER_UNKNOWN,
}
_NO_SUCH_PROGRAM = 128  # the exit code that containerd gives a container which could not be started
_ALL_ENDED_POLL_S = 0.01


@dataclass(slots=True, kw_only=True)
class Container:
    """A container, from its creation to its removal."""

    id: str
    pod: Pod
    spec: ContainerSpec
    labels: Mapping[str, str]
    config: oci.Config
    bundle: Path
    state: ContainerState = ContainerState.UNKNOWN
    pid: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    stop_told: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    cgroup: CgroupView | None = None
    paths: PathMap | None = None
    output: OutputPipe | None = None

    @property
    def rootfs(self) -> Path:
        """Its root folder on the host."""
        return self.bundle / "rootfs"

    def view(self) -> ContainerView:
        """What NRI is shown now."""
        return ContainerView(
            id=self.id,
            pod=self.pod,
            name=self.spec.name,
            state=_NRI_STATES[self.state],
            pid=self.pid,
            labels=self.labels,
            config=self.config,
        )

    def status(self) -> ContainerStatus:
        """What a CRI client is shown."""
        return ContainerStatus(
            id=self.id,
            state=self.state,
            pid=self.pid,
            exit_code=self.exit_code,
            reason=self.reason,
            message=self.message,
            oci_spec=self.config,
        )

    def entry(self) -> ContainerEntry:
        """Its line in the runtime's list."""
        return ContainerEntry(id=self.id, pod_id=self.pod.id, name=self.spec.name, attempt=self.spec.attempt, state=self.state)

    def close_output(self) -> None:
        """Stops to listen to what it says."""
        if self.output is not None:
            self.output.close()

    def fail_start(self, message: str) -> None:
        """Notes that it could not be started."""
        self.state, self.pid = ContainerState.EXITED, 0
        self.exit_code, self.reason, self.message = _NO_SUCH_PROGRAM, "StartError", message
        self.ended.set()

    def note_end(self, return_code: int) -> None:
        """Notes that its first process ended; `return_code` is negative for a signal."""
        self.state, self.pid = ContainerState.EXITED, 0
        self.exit_code = exit_code_of(return_code)
        self.reason = "Completed" if return_code == 0 else "Error"
        self.ended.set()


def exit_code_of(return_code: int) -> int:
    """As a shell shows it: `return_code` is negative for the number of a signal."""
    return return_code if return_code >= 0 else 128 - return_code


class Launcher:
    """Starts processes of containers in one of the two ways."""

    def __init__(self, isolation: Isolation, tree: ProcTree) -> None:
        self._isolation = isolation
        self._tree = tree

    async def hold_init(self, container: Container) -> HeldProcess:
        """The container's first process, in its cgroup, with all its mounts, before its program runs.

        Raises:
            ProcessRefused: a mount or the program cannot be had.
        """
        mountinfo = None
        if self._isolation is Isolation.PATHS_MAPPED:
            mapped = runtime_paths.map_container(container.config, rootfs=container.rootfs, scratch=container.bundle / "scratch")
            container.paths, mountinfo = mapped.paths, mapped.mountinfo
        output = container.output = await OutputPipe.open()
        try:
            held = await runtime_process.hold(self._init_task(container), stdout=output.write_end, stderr=output.write_end)
        except BaseException:
            output.close()
            raise
        output.seal()
        container.pid = held.pid
        container.cgroup = self._tree.add_cgroup(container.pod.cgroup_of(container.id), mountinfo=mountinfo)
        container.cgroup.add(held.pid)
        return held

    async def run_in(self, container: Container, command: tuple[str, ...], *, timeout_s: float) -> ExecResult:
        """Runs a program in a running container.

        Raises:
            ProcessRefused: the program cannot be had.
            TimeoutError: it did not end in time; it is killed.
        """
        assert container.cgroup is not None
        stdout, stderr = await OutputPipe.open(), await OutputPipe.open()
        try:
            task = self._exec_task(container, command)
            held = await runtime_process.hold(task, stdout=stdout.write_end, stderr=stderr.write_end)
            stdout.seal()
            stderr.seal()
            container.cgroup.add(held.pid)
            process = await held.run()
            try:
                async with asyncio.timeout(timeout_s):
                    said, complained = await stdout.reader.read(), await stderr.reader.read()
                    return_code = await process.wait()
            finally:
                await runtime_process.end(process)
                container.cgroup.look()
        finally:
            stdout.close()
            stderr.close()
        return ExecResult(
            exit_code=exit_code_of(return_code),
            stdout=said.decode(errors="replace"),
            stderr=complained.decode(errors="replace"),
        )

    def _init_task(self, container: Container) -> dict[str, Any]:
        if container.paths is not None:
            return self._mapped_task(container, container.paths, container.config["process"]["args"])
        return runtime_process.task_for(
            container.config,
            args=container.config["process"]["args"],
            do="make",
            rootfs=str(container.rootfs),
            readonly=container.config["root"]["readonly"],
            mounts=container.config["mounts"],
            devices=_nodes_for(container),
        )

    def _exec_task(self, container: Container, command: tuple[str, ...]) -> dict[str, Any]:
        if container.paths is not None:
            return self._mapped_task(container, container.paths, command)
        return runtime_process.task_for(container.config, args=command, do="join", pid=container.pid)

    def _mapped_task(self, container: Container, paths: PathMap, command: Any) -> dict[str, Any]:
        args = paths.map_args(command, container.config["process"]["env"])
        task = runtime_process.task_for(container.config, args=args, do="stay")
        if not task["may_set_groups"]:
            task |= {"uid": os.geteuid(), "gid": os.getegid()}
        return task | {"cwd": str(container.rootfs)}


async def end_all(container: Container) -> None:
    """Kills what is left of a container's processes, until nothing is; its cgroup goes."""
    cgroup = container.cgroup
    if cgroup is None:
        return
    cgroup.look()
    while cgroup.pids:
        for pid in cgroup.pids:
            runtime_process.send(pid, signal.SIGKILL)
        # Others than our own children send no notice of their end.
        await asyncio.sleep(_ALL_ENDED_POLL_S)
        cgroup.look()
    if container.cgroup is not None:  # else another who waits for the same end has done it
        container.cgroup = None
        cgroup.remove()


async def keep_log(container: Container, log: Path) -> None:
    """Writes what a container says in CRI's log format, a line at a time, until it says no more."""
    assert container.output is not None
    stream = container.output.reader
    with await asyncio.to_thread(log.open, "a", encoding="utf-8") as file:
        while line := await stream.readline():
            text = line.decode(errors="replace").removesuffix("\n")
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
            file.write(f"{stamp}.000000000Z stdout F {text}\n")
            file.flush()


def remove_files(bundle: Path) -> None:
    """Removes a container's files."""
    shutil.rmtree(bundle, ignore_errors=True)


def _nodes_for(container: Container) -> list[dict[str, str]]:
    """A node on the host for each device: the host's own, else one made here, else an empty file in its place."""
    folder = container.bundle / "nodes"
    folder.mkdir(exist_ok=True)
    nodes = []
    for number, device in enumerate(container.config["linux"]["devices"]):
        source = _host_node(device) or _made_node(folder / str(number), device)
        nodes.append({"path": device["path"], "source": source})
    return nodes


def _host_node(device: Mapping[str, Any]) -> str | None:
    kind = {"c": "char", "b": "block"}.get(device["type"], "none")
    try:
        described = Path(f"/sys/dev/{kind}/{device['major']}:{device['minor']}/uevent").read_text()
    except OSError:
        return None
    name = next((line[8:] for line in described.splitlines() if line.startswith("DEVNAME=")), None)
    return f"/dev/{name}" if name and os.path.exists(f"/dev/{name}") else None


def _made_node(path: Path, device: Mapping[str, Any]) -> str:
    kinds = {"c": 0o020000, "b": 0o060000}
    with contextlib.suppress(PermissionError):
        if device["type"] in kinds:
            os.mknod(path, kinds[device["type"]], os.makedev(device["major"], device["minor"]))
            path.chmod(0o666)
            return str(path)
    path.touch()
    return str(path)
