"""A stand-in for containerd: what tests and the demo run containers with where the real one cannot run.

It answers the calls of `cri.Cri` and speaks NRI to real plugins with messages that a real containerd sent. It refuses what
containerd refuses, with its words, and goes on where containerd goes on. It cannot: networks, cgroup limits, hooks, images
from a registry; in a container that is not isolated by namespaces nothing is read-only.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from pathlib import Path
from types import TracebackType
from typing import Self

from grpclib.const import Status

from vgpu_proto import nri
from vgpu_testkit import cdi_spec, oci, runtime_container, runtime_process, runtime_refusals
from vgpu_testkit.cri_config import KubeletFolders
from vgpu_testkit.nri_container import ContainerView, Templates
from vgpu_testkit.nri_plugin_link import PluginRefused
from vgpu_testkit.nri_runtime import NriRuntime, NriTimeouts
from vgpu_testkit.pods import ContainerEntry, ContainerSpec, ContainerState, ContainerStatus, ExecResult, Pod, PodSpec
from vgpu_testkit.runtime_container import Container, Launcher
from vgpu_testkit.runtime_creation import ContainerMaker
from vgpu_testkit.runtime_images import Images
from vgpu_testkit.runtime_proc import ProcTree
from vgpu_testkit.runtime_process import Isolation, ProcessRefused
from vgpu_testkit.runtime_refusals import RuntimeRefused

_LOOK_EVERY_S = 0.02
_LOG_WITHIN_S = 1.0


class StandInRuntime:
    """A runtime with its NRI socket, while its context is entered.

    `proc_root` and `cgroup_root` show its containers' processes as the host's would. `version` is "1.7.24" or "2.1.9".
    """

    def __init__(
        self,
        root: Path,
        *,
        cdi_dir: Path,
        nri_socket: Path,
        version: str = "2.1.9",
        timeouts: NriTimeouts | None = None,
        images: Images | None = None,
        isolation: Isolation | None = None,
        node_lookup: oci.NodeLookup = oci.node_numbers,
    ) -> None:
        """`root` holds all its files; no isolation asked for is the best that can be had."""
        is_1_7 = version.startswith("1.7")
        self._root = root
        self._nri_socket = nri_socket
        self._version = version
        self._text_suffix = ": unknown" if is_1_7 else ""
        self._kubelet = KubeletFolders(logs=root / "pod-logs", pods=root / "kubelet-pods")
        self._tree = ProcTree(root / "host")
        self._pods: dict[str, Pod] = {}
        self._ready_pods: set[str] = set()
        self._containers: dict[str, Container] = {}
        self.nri = NriRuntime(
            Templates("1.7" if is_1_7 else "2"),
            version=version,
            timeouts=timeouts or NriTimeouts(),
            now_alive=self._now_alive,
        )
        self.images = images or Images()
        self._maker = ContainerMaker(
            root=root,
            kubelet=self._kubelet,
            images=self.images,
            nri=self.nri,
            cdi_dir=cdi_dir,
            cdi_versions=cdi_spec.KNOWN_TO_0_7 if is_1_7 else cdi_spec.KNOWN_VERSIONS,
            node_lookup=node_lookup,
        )
        self.proc_root = self._tree.proc_root
        self.cgroup_root = self._tree.cgroup_root
        self._wanted_isolation = isolation
        self.isolation = Isolation.PATHS_MAPPED

    async def __aenter__(self) -> Self:
        self.isolation = self._wanted_isolation or await runtime_process.find_isolation(self._root / "probe")
        self._launcher = Launcher(self.isolation, self._tree)
        self._ready = asyncio.Event()
        self._serving = asyncio.create_task(self._serve(), name="stand-in runtime")
        self._serving.add_done_callback(lambda _: self._ready.set())
        await self._ready.wait()
        if self._serving.done():
            await self._serving
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for container in tuple(self._containers.values()):
            await runtime_container.end_all(container)
            if container.state is ContainerState.RUNNING and not self._serving.done():
                await container.ended.wait()
        self._serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._serving

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as self._tasks:
            self._nri_task = self._tasks.create_task(self.nri.serve(self._nri_socket, self._ready))
            while True:
                for container in tuple(self._containers.values()):
                    if container.cgroup is not None:
                        container.cgroup.look()
                await asyncio.sleep(_LOOK_EVERY_S)

    async def restart(self) -> None:
        """What plugins see of a restart of the runtime: the socket is another one. Containers live on."""
        self._nri_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._nri_task
        ready = asyncio.Event()
        self._nri_task = self._tasks.create_task(self.nri.serve(self._nri_socket, ready))
        await ready.wait()

    async def version(self) -> str:
        """What it is and which release's answers it gives, as "stand-in 2.1.9"."""
        return f"stand-in {self._version}"

    async def run_pod(self, spec: PodSpec | None = None) -> Pod:
        """Makes a pod."""
        pod = Pod(id=secrets.token_hex(32), spec=spec or PodSpec())
        await asyncio.to_thread(self._maker.make_sandbox, pod)
        try:
            await self.nri.event(nri.RUN_POD_SANDBOX, pod=pod)
        except PluginRefused as exc:
            raise RuntimeRefused(exc.code, f"NRI RunPodSandbox failed: {exc}") from exc
        self._pods[pod.id] = pod
        self._ready_pods.add(pod.id)
        return pod

    async def create_container(self, pod: Pod, spec: ContainerSpec | None = None) -> str:
        """Makes a container that does not run yet; its id, 64 hex digits."""
        if pod.id not in self._ready_pods:
            raise RuntimeRefused(Status.UNKNOWN, f'sandbox container "{pod.id}" is not running')
        container = await self._maker.make(pod, spec or ContainerSpec(), present=self._containers.values())
        self._containers[container.id] = container
        container.state = ContainerState.CREATED
        await self.nri.event(nri.POST_CREATE_CONTAINER, pod=pod, view=container.view())
        return container.id

    async def start(self, container_id: str) -> None:
        """Starts a container that was created."""
        container = self._known(container_id)
        if container.state is not ContainerState.CREATED:
            raise RuntimeRefused(Status.UNKNOWN, f'container "{container_id}" is in CONTAINER_{container.state.name} state')
        try:
            held = await self._launcher.hold_init(container)
        except ProcessRefused as exc:
            raise self._start_refusal(container, exc) from exc
        try:
            await self.nri.event(nri.START_CONTAINER, pod=container.pod, view=container.view())
            process = await held.run()
        except (PluginRefused, ProcessRefused) as exc:
            # containerd tells of the end before it ends the process that waits in runc.
            await self._tell_stop(container)
            await held.drop()
            await runtime_container.end_all(container)
            container.close_output()
            raise self._start_refusal(container, exc) from exc
        container.state = ContainerState.RUNNING
        self._tasks.create_task(self._follow(container, process))
        await self.nri.event(nri.POST_START_CONTAINER, pod=container.pod, view=container.view())

    async def run_container(self, pod: Pod, spec: ContainerSpec | None = None) -> str:
        """Creates and starts a container; its id."""
        await self.start(container_id := await self.create_container(pod, spec))
        return container_id

    async def exec(self, container_id: str, *command: str, timeout_s: int = 10) -> ExecResult:
        """Runs a program in a running container and waits for its end."""
        container = self._known(container_id)
        if container.state is not ContainerState.RUNNING:
            raise RuntimeRefused(Status.UNKNOWN, f"container is in CONTAINER_{container.state.name} state")
        try:
            return await self._launcher.run_in(container, command, timeout_s=timeout_s)
        except ProcessRefused as exc:
            raise runtime_refusals.of_exec(exc) from exc
        except TimeoutError as exc:
            raise runtime_refusals.of_late_exec(timeout_s) from exc

    async def sh(self, container_id: str, script: str) -> str:
        """What a shell script that succeeds prints in a running container.

        Raises:
            AssertionError: it failed; with what it wrote.
        """
        return (await self.exec(container_id, "/bin/sh", "-c", script)).output_of(script)

    async def stop(self, container_id: str, *, grace_s: int = 0) -> None:
        """Ends a container's processes; succeeds where it has ended or is unknown."""
        container = self._containers.get(container_id)
        if container is None:
            return
        if container.state is not ContainerState.RUNNING:
            await self._tell_stop(container)
            return
        if grace_s:
            runtime_process.send(container.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await container.ended.wait()
        if not container.ended.is_set():
            runtime_process.send(container.pid, signal.SIGKILL)
        await container.ended.wait()

    async def ended(self, container_id: str) -> None:
        """Returns when a container has ended, by itself or not."""
        await self._known(container_id).ended.wait()

    async def remove(self, container_id: str) -> None:
        """Removes a container, running or not; succeeds where it is unknown."""
        await self.stop(container_id)
        container = self._containers.pop(container_id, None)
        if container is not None:
            await runtime_container.end_all(container)  # a start that was given up has left its first process
            container.close_output()
            await self.nri.event(nri.REMOVE_CONTAINER, pod=container.pod, view=container.view())
            runtime_container.remove_files(container.bundle)

    async def stop_pod(self, pod: Pod) -> None:
        """Ends all containers of a pod, and its sandbox."""
        for container in [one for one in self._containers.values() if one.pod.id == pod.id]:
            await self.stop(container.id)
        if pod.id in self._ready_pods:
            self._ready_pods.discard(pod.id)
            await self.nri.event(nri.STOP_POD_SANDBOX, pod=pod)

    async def remove_pod(self, pod: Pod) -> None:
        """Ends a pod and removes it with all that is in it."""
        await self.stop_pod(pod)
        for container in [one for one in self._containers.values() if one.pod.id == pod.id]:
            await self.remove(container.id)
        if self._pods.pop(pod.id, None) is not None:
            await self.nri.event(nri.REMOVE_POD_SANDBOX, pod=pod)

    async def status(self, container_id: str) -> ContainerStatus:
        """A container as the runtime sees it."""
        return self._known(container_id).status()

    async def list(self) -> tuple[ContainerEntry, ...]:
        """All containers that were created, whatever their state."""
        return tuple(one.entry() for one in self._containers.values())

    def log_of(self, pod: Pod, spec: ContainerSpec) -> str:
        """What a container wrote, in CRI's log format."""
        return self._kubelet.log_of(pod.spec, spec).read_text()

    async def _follow(self, container: Container, process: asyncio.subprocess.Process) -> None:
        """Stays with a running container until its end."""
        log = self._kubelet.log_of(container.pod.spec, container.spec)
        keeping = self._tasks.create_task(runtime_container.keep_log(container, log))
        return_code = await process.wait()
        await runtime_container.end_all(container)
        # Who still holds the pipe is no process of the container.
        await asyncio.wait([keeping], timeout=_LOG_WITHIN_S)
        keeping.cancel()
        container.close_output()
        await self._tell_stop(container)
        container.note_end(return_code)

    async def _tell_stop(self, container: Container) -> None:
        """Tells plugins of a container's end, once."""
        if not container.stop_told:
            container.stop_told = True
            await self.nri.event(nri.STOP_CONTAINER, pod=container.pod, view=container.view())

    def _start_refusal(self, container: Container, exc: PluginRefused | ProcessRefused) -> RuntimeRefused:
        refusal = runtime_refusals.of_start(exc, suffix=self._text_suffix)
        container.fail_start(refusal.text)
        return refusal

    def _known(self, container_id: str) -> Container:
        if container_id not in self._containers:
            text = f'an error occurred when try to find container "{container_id}": not found'
            raise RuntimeRefused(Status.NOT_FOUND, text)
        return self._containers[container_id]

    def _now_alive(self) -> tuple[tuple[Pod, ...], tuple[ContainerView, ...]]:
        alive = (ContainerState.CREATED, ContainerState.RUNNING)
        views = tuple(one.view() for one in self._containers.values() if one.state in alive)
        return tuple(pod for pod in self._pods.values() if pod.id in self._ready_pods), views
