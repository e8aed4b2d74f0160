"""A node of eight mock H100: the three processes as a DaemonSet starts them, kubelet, API server and runtime as stand-ins.

Owns the steps that a benchmark takes and times none of them. The runtime executes nothing: its containers stand in the folders of
a fake host, so that a thousand of them cost nothing that is not ours.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from vgpu_state.layout import Layout
from vgpu_testkit import registry_calls
from vgpu_testkit.api_environment import cluster_environment
from vgpu_testkit.api_server import ApiServer
from vgpu_testkit.daemons import Daemon, StackPaths, make_stack
from vgpu_testkit.fake_host import FakeHost
from vgpu_testkit.kubelet import Kubelet
from vgpu_testkit.kubelet_values import Claim
from vgpu_testkit.light_runtime import LightContainer, LightRuntime
from vgpu_testkit.manifests import Manifest, Share
from vgpu_testkit.node import build_node
from vgpu_testkit.pods import ContainerSpec, Pod, PodSpec
from vgpu_testkit.vgpu_node import until

DRIVER = "manager.nvidia.com"
NODE = "node-a"
GPUS = 8
ENV = {f"USER_{number}": f"value-{number:032d}" for number in range(100)}
_SETTLED_S = 60.0  # with five hundred claims to recover on a machine that others use, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A claim with the pod and the container that use it."""

    claim: Manifest
    pod: Pod
    container: LightContainer


class BenchmarkNode:
    """The node, while its context is entered; nothing of ours runs before `start`."""

    def __init__(self, native: Path) -> None:
        self._native = native
        self._stack = AsyncExitStack()
        self._drawn = 0

    async def __aenter__(self) -> Self:
        # A short path: a unix socket's has room for 107 bytes.
        root = Path(tempfile.mkdtemp(prefix="vb"))
        self._stack.callback(shutil.rmtree, root, ignore_errors=True)
        self.node = build_node(root, native=self._native)
        self.layout = Layout(PurePosixPath(self.node.manager_dir))
        self.host = FakeHost(root / "host")
        nri_socket = root / "nri" / "nri.sock"
        self.runtime = LightRuntime(root / "rt", cdi_dir=self.node.cdi_dir, nri_socket=nri_socket, host=self.host)
        await self._stack.enter_async_context(self.runtime)
        self.api = ApiServer(node=NODE)
        address = await self._stack.enter_async_context(self.api.serve())
        self.kubelet = await self._stack.enter_async_context(Kubelet(self.node.kubelet_dir))
        paths = StackPaths(
            claims=root / "none", nri_socket=nri_socket, proc_root=self.host.proc_root, cgroup_root=self.host.cgroup_root
        )
        self.services = make_stack(self.node, paths, options=cluster_environment(root, address, node=NODE))
        self._stack.callback(self.services.stop)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    async def start(self) -> None:
        """Starts the three; returns when they are ready and have found each other."""
        for service in self.services.daemons:
            service.start()
        await self.settle()

    async def settle(self) -> None:
        for service in self.services.daemons:
            await service.ready(timeout_s=_SETTLED_S)
        await until(self.services.is_synchronized, "nri-plugin's session is known to dra-plugin", timeout_s=_SETTLED_S)
        await self.kubelet.until(lambda: bool(self.kubelet.connected_endpoints(DRIVER)))

    async def restart(self, service: Daemon) -> None:
        """Ends one of the three by SIGTERM, starts it, and returns when it is ready; its peers run on."""
        service.stop()
        service.start()
        await service.ready(timeout_s=_SETTLED_S)

    def new_claim(self) -> Manifest:
        """A claim that the API server has, for 1 GiB and 1 % of one GPU after the other: 640 of them fit on the node."""
        number = self._drawn
        self._drawn += 1
        share = Share(request="gpu", device=f"vgpu-{number % GPUS}", cores="1", memory="1Gi")
        claim = Manifest(name=f"claim-{number}", shares=(share,), pool=NODE)
        self.api.claims.put(claim.document())
        return claim

    async def prepare(self, *claims: Manifest) -> None:
        await self.kubelet.prepare(DRIVER, [kubelet_claim(claim) for claim in claims])

    async def unprepare(self, *claims: Manifest) -> None:
        await self.kubelet.unprepare(DRIVER, [kubelet_claim(claim) for claim in claims])
        for claim in claims:
            del self.api.claims.stored[claim.namespace, claim.name]

    async def create(self, claim: Manifest) -> Workload:
        """A container that uses the whole claim, in a pod of its own. It does not run yet."""
        pod = new_pod(claim.name)
        spec = ContainerSpec(env=ENV, cdi_devices=tuple(self.kubelet.container_cdi_ids(claim.uid, None)))
        return Workload(claim=claim, pod=pod, container=await self.runtime.create(pod, spec))

    async def create_other(self) -> LightContainer:
        """A container without a claim."""
        return await self.runtime.create(new_pod("other"), ContainerSpec(env=ENV))

    def enter(self, workload: Workload) -> None:
        """This process runs in the container, as the host shows it."""
        self.runtime.run_process(workload.container, os.getpid())

    def leave(self, workload: Workload) -> None:
        self.runtime.end_process(workload.container, os.getpid())

    async def register(self, workload: Workload) -> None:
        """What the library's client does in the container that this process has entered."""
        socket = self.layout.registry_socket
        await registry_calls.register(socket, pod_uid=workload.pod.spec.uid, container=workload.container.spec.name)

    async def remove(self, container: LightContainer) -> None:
        await self.runtime.end(container)
        await self.runtime.remove(container)

    async def run_many(self, count: int) -> list[Workload]:
        """So many claims are prepared, and a container of each runs."""
        workloads = []
        for _ in range(count):
            claim = self.new_claim()
            await self.prepare(claim)
            workload = await self.create(claim)
            await self.runtime.start(workload.container)
            workloads.append(workload)
        return workloads

    def claim_files(self, claim: Manifest) -> Sequence[os.stat_result]:
        """Every file and directory that a claim is on disk, its CDI file included."""
        folder = Path(self.layout.root) / "claims" / claim.uid
        found = [folder, *folder.rglob("*"), *self.node.cdi_dir.glob(f"*{claim.uid}*")]
        return [path.lstat() for path in found]

    @property
    def registration_socket(self) -> Path:
        """Where kubelet calls GetInfo."""
        return next(self.node.kubelet_dir.glob("plugins_registry/*.sock"))


def kubelet_claim(claim: Manifest) -> Claim:
    return Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid)


def new_pod(name: str) -> Pod:
    return Pod(id=secrets.token_hex(32), spec=PodSpec(name=name, namespace="research"))
