"""A client of a runtime's CRI socket that asks as kubelet asks.

Knows the calls. What they carry is `pods` (plain values) and `cri_config` (their messages). A refusal of the runtime
is grpclib's GRPCError, unchanged.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Self

from grpclib.client import Channel

from vgpu_proto import cri as wire
from vgpu_testkit import cri_config, pod_cgroups
from vgpu_testkit.cri_config import KubeletFolders
from vgpu_testkit.pods import ContainerEntry, ContainerSpec, ContainerState, ContainerStatus, ExecResult, Pod, PodSpec

_CALL_S = 30.0


class Cri:
    """A client of one runtime's CRI socket; made inside a running event loop, used with `async with`."""

    def __init__(self, socket: Path) -> None:
        self._kubelet = KubeletFolders(logs=socket.parent / "pod-logs", pods=socket.parent / "kubelet-pods")
        self._channel = Channel(path=str(socket))
        self._runtime = wire.RuntimeServiceStub(self._channel, timeout=_CALL_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._channel.close()

    async def version(self) -> str:
        """The runtime's name and version, as "containerd 2.1.9"."""
        answer = await self._runtime.version(wire.VersionRequest(version="v1"))
        return f"{answer.runtime_name} {answer.runtime_version}"

    async def run_pod(self, spec: PodSpec | None = None) -> Pod:
        """Makes a pod's sandbox and starts it."""
        spec = spec or PodSpec()
        request = wire.RunPodSandboxRequest(
            config=cri_config.pod_config(self._kubelet, spec), runtime_handler=spec.runtime_handler
        )
        return Pod(id=(await self._runtime.run_pod_sandbox(request)).pod_sandbox_id, spec=spec)

    async def create_container(self, pod: Pod, spec: ContainerSpec | None = None) -> str:
        """Makes a container that does not run yet; its id."""
        spec = spec or ContainerSpec()
        request = wire.CreateContainerRequest(
            pod_sandbox_id=pod.id,
            config=cri_config.container_config(self._kubelet, pod.spec, spec),
            sandbox_config=cri_config.pod_config(self._kubelet, pod.spec),
        )
        return (await self._runtime.create_container(request)).container_id

    async def start(self, container_id: str) -> None:
        """Starts a container that was created."""
        await self._runtime.start_container(wire.StartContainerRequest(container_id=container_id))

    async def run_container(self, pod: Pod, spec: ContainerSpec | None = None) -> str:
        """Creates and starts a container; its id."""
        container_id = await self.create_container(pod, spec)
        await self.start(container_id)
        return container_id

    async def exec(self, container_id: str, *command: str, timeout_s: int = 10) -> ExecResult:
        """Runs a program in a running container and waits for its end."""
        request = wire.ExecSyncRequest(container_id=container_id, cmd=list(command), timeout=timeout_s)
        answer = await self._runtime.exec_sync(request, timeout=timeout_s + _CALL_S)
        return ExecResult(
            exit_code=answer.exit_code,
            stdout=answer.stdout.decode(errors="replace"),
            stderr=answer.stderr.decode(errors="replace"),
        )

    async def sh(self, container_id: str, script: str) -> str:
        """What a shell script that succeeds prints in a running container.

        Raises:
            AssertionError: it failed; with what it wrote.
        """
        return (await self.exec(container_id, "/bin/sh", "-c", script)).output_of(script)

    async def stop(self, container_id: str, *, grace_s: int = 0) -> None:
        """Ends a container's processes; succeeds where it has ended or is unknown."""
        await self._runtime.stop_container(wire.StopContainerRequest(container_id=container_id, timeout=grace_s))

    async def remove(self, container_id: str) -> None:
        """Removes a container, running or not; succeeds where it is unknown."""
        await self._runtime.remove_container(wire.RemoveContainerRequest(container_id=container_id))

    async def stop_pod(self, pod: Pod) -> None:
        """Ends all containers of a pod, and its sandbox."""
        await self._runtime.stop_pod_sandbox(wire.StopPodSandboxRequest(pod_sandbox_id=pod.id))

    async def remove_pod(self, pod: Pod) -> None:
        """Ends a pod and removes it with all that is in it, and its cgroup."""
        await self._remove_pod(pod.id, pod.spec.uid)

    async def status(self, container_id: str) -> ContainerStatus:
        """A container as the runtime sees it."""
        answer = await self._runtime.container_status(wire.ContainerStatusRequest(container_id=container_id, verbose=True))
        info = json.loads(answer.info["info"])
        return ContainerStatus(
            id=container_id,
            state=ContainerState(answer.status.state),
            pid=info.get("pid", 0),
            exit_code=answer.status.exit_code,
            reason=answer.status.reason,
            message=answer.status.message,
            oci_spec=info.get("runtimeSpec") or {},
        )

    async def list(self) -> tuple[ContainerEntry, ...]:
        """All containers, whatever their state; sandboxes are not among them."""
        answer = await self._runtime.list_containers(wire.ListContainersRequest())
        return tuple(
            ContainerEntry(
                id=entry.id,
                pod_id=entry.pod_sandbox_id,
                name=entry.metadata.name,
                attempt=entry.metadata.attempt,
                state=ContainerState(entry.state),
            )
            for entry in answer.containers
        )

    async def wipe(self) -> None:
        """Removes every pod and container of this runtime, and the pods' cgroups."""
        for entry in await self.list():
            await self.stop(entry.id)
            await self.remove(entry.id)
        for pod in (await self._runtime.list_pod_sandbox(wire.ListPodSandboxRequest())).items:
            await self._remove_pod(pod.id, pod.metadata.uid)

    def log_of(self, pod: Pod, spec: ContainerSpec) -> str:
        """What a container wrote, in CRI's log format."""
        return self._kubelet.log_of(pod.spec, spec).read_text()

    async def _remove_pod(self, sandbox_id: str, uid: str) -> None:
        await self._runtime.stop_pod_sandbox(wire.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))
        await self._runtime.remove_pod_sandbox(wire.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))
        pod_cgroups.remove(uid)
