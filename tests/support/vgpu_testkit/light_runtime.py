"""A container runtime whose containers are only said to run: their processes stand in a fake host's folders.

CDI edits, NRI calls, their order and what follows from a refusal are those of the stand-in runtime; nothing is executed, so that
a test makes thousands of containers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vgpu_proto import nri
from vgpu_testkit import cdi_apply, cri_config, oci
from vgpu_testkit.cri_config import KubeletFolders
from vgpu_testkit.fake_host import FakeHost
from vgpu_testkit.nri_container import ContainerView, Templates
from vgpu_testkit.nri_plugin_link import PluginRefused
from vgpu_testkit.nri_runtime import NriRuntime, NriTimeouts
from vgpu_testkit.pods import ContainerSpec, ContainerState, Pod

VERSION = "2.1.9"

_NRI_STATES = {
    ContainerState.UNKNOWN: nri.CONTAINER_UNKNOWN,
    ContainerState.CREATED: nri.CONTAINER_CREATED,
    ContainerState.RUNNING: nri.CONTAINER_RUNNING,
    ContainerState.EXITED: nri.CONTAINER_STOPPED,
}


class MountMissing(Exception):
    """Raised when a container cannot start since a mount's source is not there, as runc says of it."""


@dataclass(slots=True, kw_only=True, eq=False)
class LightContainer:
    """A container from its creation to its removal; `pids` are its processes, the first one first."""

    id: str
    pod: Pod
    spec: ContainerSpec
    config: oci.Config
    state: ContainerState = ContainerState.UNKNOWN
    pids: list[int] = field(default_factory=list)
    is_stop_told: bool = False
    is_present: bool = True  # in the runtime's store

    @property
    def is_alive(self) -> bool:
        """It runs, or may still be started."""
        return self.is_present and self.state in (ContainerState.CREATED, ContainerState.RUNNING)

    @property
    def cgroup(self) -> str:
        return self.pod.cgroup_of(self.id)

    def source_of(self, destination: str) -> str:
        """The host path that is mounted at a destination."""
        return next(str(mount["source"]) for mount in self.config["mounts"] if mount["destination"] == destination)

    def view(self, *, labels: Mapping[str, str] | None = None) -> ContainerView:
        """What NRI is shown now; containerd labels what is in its store."""
        return ContainerView(
            id=self.id,
            pod=self.pod,
            name=self.spec.name,
            state=_NRI_STATES[self.state],
            pid=self.pids[0] if self.pids else 0,
            labels={"io.cri-containerd.kind": "container"} if labels is None else labels,
            config=self.config,
        )


class LightRuntime:
    """The runtime with its NRI socket, while its context is entered."""

    def __init__(self, root: Path, *, cdi_dir: Path, nri_socket: Path, host: FakeHost) -> None:
        """`root` is for the few files that kubelet and the runtime give to containers."""
        self._cdi = cdi_apply.CdiCache(cdi_dir)
        self._socket = nri_socket
        self._host = host
        self._kubelet = KubeletFolders(logs=root / "logs", pods=root / "pods")
        self._sandbox = oci.SandboxFiles(hostname=root / "hostname", resolv_conf=root / "resolv.conf", shm=root / "shm")
        self._next_pid = 5_000_000  # above what the kernel gives, which registry must be able to tell apart
        self._containers: dict[str, LightContainer] = {}
        self.nri = NriRuntime(Templates("2"), version=VERSION, timeouts=NriTimeouts(), now_alive=self._now_alive)
        self._sandbox.shm.mkdir(parents=True)
        for file in (self._sandbox.hostname, self._sandbox.resolv_conf):
            file.touch()

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._hang_up()

    async def restart(self) -> None:
        """Every plugin's session ends, and the socket is another one. Containers live on."""
        await self._hang_up()
        await self._listen()

    @property
    def containers(self) -> tuple[LightContainer, ...]:
        """All that are not removed."""
        return tuple(self._containers.values())

    async def create(self, pod: Pod, spec: ContainerSpec) -> LightContainer:
        """Makes a container that does not run yet.

        Raises:
            RefusedConfig: a CDI device is not to be had; no plugin was asked.
            PluginRefused: a plugin refused; nothing is left of the container.
        """
        config = oci.new_config(pod, cri_config.container_config(self._kubelet, pod.spec, spec), self._sandbox)
        if spec.cdi_devices:
            cdi_apply.inject(config, self._cdi.now(), spec.cdi_devices, lookup=_numbers)
        container = LightContainer(id=secrets.token_hex(32), pod=pod, spec=spec, config=config)
        try:
            await self.nri.create_container(container.view())
        except PluginRefused:
            for event in (nri.STOP_CONTAINER, nri.REMOVE_CONTAINER):
                await self.nri.event(event, pod=pod, view=container.view(labels={}))
            raise
        container.state = ContainerState.CREATED
        self._containers[container.id] = container
        return container

    async def start(self, container: LightContainer) -> None:
        """Starts a container that was created.

        Raises:
            MountMissing: a mount's source does not exist; no plugin was asked.
            PluginRefused: a plugin refused the start. In both cases the container has ended.
        """
        if missing := _missing_sources(container.config):
            container.state = ContainerState.EXITED
            raise MountMissing(f'error mounting "{missing[0]}" to rootfs: no such file or directory')
        self.run_process(container, self.new_pid())
        try:
            await self.nri.event(nri.START_CONTAINER, pod=container.pod, view=container.view())
        except PluginRefused:
            # containerd tells of the end before it ends the process that waits in runc.
            await self._tell_stop(container)
            self.vanish(container)
            raise
        container.state = ContainerState.RUNNING

    def new_pid(self) -> int:
        """A PID that no process has had."""
        self._next_pid += 1
        return self._next_pid

    def run_process(self, container: LightContainer, pid: int) -> None:
        """`pid` is a process of the container, as the host shows it."""
        container.pids.append(pid)
        mounts = {m["destination"]: _shown_source(m) for m in container.config["mounts"] if _is_bind(m) or m["type"] == "tmpfs"}
        self._host.show_process(pid, cgroup=container.cgroup, mounts=mounts)
        (self._host.proc_root / str(pid) / "stat").write_text(f"{pid} (sleep) S {'0 ' * 18}{pid} 0\n")
        self._host.populate(container.cgroup, container.pids)

    def end_process(self, container: LightContainer, pid: int) -> None:
        """One process of a container that runs on has ended."""
        container.pids.remove(pid)
        self._host.populate(container.cgroup, container.pids)
        shutil.rmtree(self._host.proc_root / str(pid))

    async def end(self, container: LightContainer) -> None:
        """All processes of the container end, by themselves or not; plugins are told once."""
        self.vanish(container)
        await self._tell_stop(container)

    def vanish(self, container: LightContainer) -> None:
        """All processes of the container are gone and nobody was told: the machine went down."""
        for pid in container.pids:
            shutil.rmtree(self._host.proc_root / str(pid))
        container.pids.clear()
        shutil.rmtree(self._host.cgroup_root / container.cgroup.lstrip("/"), ignore_errors=True)
        container.state = ContainerState.EXITED

    async def remove(self, container: LightContainer) -> None:
        """Removes a container, running or not."""
        if container.state is not ContainerState.EXITED:
            self.vanish(container)
        await self._tell_stop(container)
        del self._containers[container.id]
        container.is_present = False
        await self.nri.event(nri.REMOVE_CONTAINER, pod=container.pod, view=container.view())

    async def _tell_stop(self, container: LightContainer) -> None:
        if not container.is_stop_told:
            container.is_stop_told = True
            await self.nri.event(nri.STOP_CONTAINER, pod=container.pod, view=container.view())

    async def _listen(self) -> None:
        ready = asyncio.Event()
        self._serving = asyncio.create_task(self.nri.serve(self._socket, ready), name="light runtime")
        await ready.wait()

    async def _hang_up(self) -> None:
        self._serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._serving

    def _now_alive(self) -> tuple[tuple[Pod, ...], tuple[ContainerView, ...]]:
        alive = [c for c in self._containers.values() if c.is_alive]
        return tuple({c.pod.id: c.pod for c in alive}.values()), tuple(c.view() for c in alive)


def _missing_sources(config: oci.Config) -> list[str]:
    return [m["source"] for m in config["mounts"] if _is_bind(m) and not os.path.exists(m["source"])]


def _is_bind(mount: Mapping[str, Any]) -> bool:
    return mount["type"] == "bind" or bool({"bind", "rbind"} & set(mount["options"]))


def _shown_source(mount: Mapping[str, Any]) -> str:
    return "tmpfs" if mount["type"] == "tmpfs" else str(mount["source"])


def _numbers(path: str) -> tuple[str, int, int]:
    """The numbers that NVIDIA's driver gives its nodes; the fake node's are those of /dev/null."""
    minor = os.path.basename(path).removeprefix("nvidia")
    return "c", 195, int(minor) if minor.isdigit() else 255
