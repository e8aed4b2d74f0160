"""A node as its users have it: the three services on real containerd, kubelet beside it, containers asked for by claim.

Owns the steps that every test of the main job takes. The services belong to a module of tests and live on from one test to the
next; `open_node` brings them to rest before a test and takes away after it what it left.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpu_testkit import image
from vgpu_testkit.containerd import Containerd
from vgpu_testkit.cri import Cri
from vgpu_testkit.daemons import Daemon, Stack
from vgpu_testkit.kubelet import Kubelet
from vgpu_testkit.kubelet_values import Claim
from vgpu_testkit.manifests import Manifest, PodManifest, Share
from vgpu_testkit.pods import ContainerSpec, ExecResult, Pod, PodSpec

DRIVER = "manager.nvidia.com"
IMAGE = "localhost/vgpu/demo:1"
NAMESPACE = "research"

_LIBRARY_IMAGE = "localhost/vgpu/glibc:1"
LIBRARY_SPEC: Mapping[str, Any] = {"image": _LIBRARY_IMAGE, "env": {"VGPU_CONTROL_SAY": "1", "VGPU_CONTROL_REGISTER": "1"}}
"""What a container asks for in which `load_library` works."""

_CLIENT = "/etc/vgpu-manager/registry/device-client"
_SOCKET = "/etc/vgpu-manager/registry/socket.sock"
_SETTLED_S = 20.0
_POLL_S = 0.02


def import_demo_image(containerd: Containerd, native: Path, archive: Path) -> None:
    """Busybox with `read-limits`, which prints the mounted limits file."""
    _import_image(containerd, archive, name=IMAGE, files={"/bin/read-limits": native / "read-limits"})


def import_library_image(containerd: Containerd, native: Path, archive: Path) -> None:
    """The same with a program that has a loader, into which the library is preloaded."""
    own = ("/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/true")
    files = {path: Path(path) for path in own} | {"/bin/read-limits": native / "read-limits"}
    _import_image(containerd, archive, name=_LIBRARY_IMAGE, files=files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a container may use of one GPU, as the library would read it; None is "no limit"."""

    memory_bytes: int | None
    cores_percent: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VgpuNode:
    """The node during one test."""

    stack: Stack
    containerd: Containerd
    kubelet: Kubelet
    cri: Cri
    manifests: Path

    async def prepare(self, *shares: Share, name: str = "slice", pods: tuple[PodManifest, ...] = ()) -> Manifest:
        """A claim of these shares, allocated, reserved for the pods and prepared."""
        manifest = Manifest(name=name, shares=shares, namespace=NAMESPACE, reserved_for=pods)
        for pod in pods:
            pod.write(self.manifests)
        manifest.write(self.manifests)
        await self.kubelet.prepare(DRIVER, [_claim(manifest)])
        return manifest

    async def unprepare(self, claim: Manifest) -> None:
        await self.kubelet.unprepare(DRIVER, [_claim(claim)])

    async def run_pod(self, name: str = "pod", **asked: Any) -> Pod:
        """A pod in the claims' namespace; `asked` are fields of PodSpec."""
        return await self.cri.run_pod(PodSpec(name=name, **{"namespace": NAMESPACE, **asked}))

    async def run(self, pod: PodManifest) -> Pod:
        """The pod of that manifest, without its containers."""
        return await self.run_pod(pod.name, uid=pod.uid)

    def spec(self, claim: Manifest, *requests: str, **asked: Any) -> ContainerSpec:
        """A container that references those requests of the claim, none meaning all; `asked` are fields of ContainerSpec."""
        cdi_ids = self.kubelet.container_cdi_ids(claim.uid, requests or None)
        return ContainerSpec(**{"image": IMAGE, "cdi_devices": tuple(cdi_ids), **asked})

    def grant_env(self, claim: Manifest, request: str) -> dict[str, str]:
        """What Prepare hands a container of this request to prove it, as the CDI file has it."""
        spec = json.loads((self.stack.node.cdi_dir / f"k8s.manager.nvidia.com-claim_{claim.uid}.json").read_text())
        entries = [entry for device in spec["devices"] for entry in device["containerEdits"]["env"]]
        shown = [entry for entry in entries if entry.startswith("VGPU_GRANT_") and f"/{request}/" in entry]
        return dict(entry.split("=", 1) for entry in shown)

    def partition(self, claim: Manifest, pod: Pod, container: str = "main") -> Path:
        """The host's directory of a container's private state."""
        return self._folder(claim) / f"{pod.spec.uid}_{container}"

    def partitions(self, claim: Manifest) -> list[str]:
        """The directories of the claim's partitions, unfinished ones included."""
        return sorted(entry.name for entry in self._folder(claim).iterdir() if entry.is_dir())

    def sole_partition(self, claim: Manifest) -> Path:
        """The host's directory of the only partition that the claim has, however it was assigned."""
        (name,) = self.partitions(claim)
        return self._folder(claim) / name

    def record(self, claim: Manifest) -> dict[str, Any]:
        """What the claim's record says."""
        payload: dict[str, Any] = json.loads((self._folder(claim) / "claim.json").read_text())["payload"]
        return payload

    def binding(self, claim: Manifest) -> dict[str, Any] | None:
        """What is said of the holder of the only partition that the claim has; None where nobody holds it."""
        path = self.sole_partition(claim) / "binding.json"
        return json.loads(path.read_text()) if path.exists() else None

    def recorded_pids(self, claim: Manifest, pod: Pod, container: str = "main") -> list[int]:
        """The PID list as the host has it."""
        return [int(pid) for pid in (self.partition(claim, pod, container) / "config/pids.config").read_text().split()]

    async def limits(self, container_id: str) -> dict[str, Any]:
        """What a program in the container reads from the mounted limits file.

        Raises:
            AssertionError: it cannot.
        """
        seen = await self.cri.exec(container_id, "/bin/read-limits")
        assert seen.exit_code == 0, seen.stderr
        shown: dict[str, Any] = json.loads(seen.stdout)
        return shown

    async def slices(self, container_id: str) -> dict[int, Slice]:
        """The container's slices by the GPU's index, as a program in it reads them."""
        return {device["index"]: _slice(device) for device in (await self.limits(container_id))["devices"]}

    async def mount_points(self, container_id: str) -> list[str]:
        """Where something is mounted in the container, each place as often as there are mounts on it."""
        pid = (await self.cri.status(container_id)).pid
        return [line.split()[4] for line in _lines(f"/proc/{pid}/mountinfo")]

    async def load_library(self, container_id: str) -> ExecResult:
        """Runs a program with a loader in a container of `LIBRARY_SPEC`: the library registers it and says what it enforces."""
        return await self.cri.exec(container_id, "/usr/bin/true", timeout_s=30)

    async def register(
        self, container_id: str, *, pod_uid: str = "", container: str = "main", register_uuid: str = ""
    ) -> ExecResult:
        """Runs device-client in the container, as the library would, with those words."""
        names = ("--pod-uid", pod_uid, "--container-name", container, "--register-uuid", register_uuid)
        return await self.cri.exec(container_id, _CLIENT, "--address", _SOCKET, *names, timeout_s=30)

    async def settle(self) -> None:
        """Returns when every service is ready and nri-plugin has told dra-plugin which containers live."""
        for daemon in self.stack.daemons:
            await daemon.ready()
        await until(self.stack.is_synchronized, "nri-plugin's session is known to dra-plugin")

    def _folder(self, claim: Manifest) -> Path:
        return self.stack.node.manager_dir / "claims" / claim.uid

    async def restart(self, *daemons: Daemon) -> None:
        """Ends services by SIGKILL, starts them again, and returns when the node has settled."""
        for daemon in daemons:
            daemon.kill()
        for daemon in daemons:
            daemon.start()
        await self.settle()


async def until(holds: Callable[[], Any], what: str, *, timeout_s: float = _SETTLED_S) -> None:
    """Returns when `holds` answers true; it may be a coroutine function, whose lost connections count as false.

    Raises:
        TimeoutError: it did not within `timeout_s`; says `what`.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with suppress(OSError):
            answer = holds()
            if await answer if asyncio.iscoroutine(answer) else answer:
                return
        await asyncio.sleep(_POLL_S)
    raise TimeoutError(f"not within {timeout_s:g} s: {what}")


def freeze(daemon: Daemon) -> None:
    """Hangs the process until `thaw`."""
    os.kill(daemon.pid, signal.SIGSTOP)


def thaw(daemon: Daemon) -> None:
    """Ends the hang; nothing where the process runs, or is gone."""
    if daemon.process is not None and daemon.process.poll() is None:
        os.kill(daemon.pid, signal.SIGCONT)


@asynccontextmanager
async def open_node(stack: Stack, containerd: Containerd, manifests: Path) -> AsyncIterator[VgpuNode]:
    """The node, settled; afterwards its pods and claims are gone.

    Raises:
        AssertionError: something of a claim was left on disk after Unprepare.
    """
    _start(stack.daemons)
    async with Kubelet(stack.node.kubelet_dir) as kubelet:
        await kubelet.registered(DRIVER)
        async with Cri(containerd.socket) as cri:
            node = VgpuNode(stack=stack, containerd=containerd, kubelet=kubelet, cri=cri, manifests=manifests)
            await node.settle()
            yield node
        for daemon in stack.daemons:
            thaw(daemon)
        containerd.start()
        _start(stack.daemons)
        await node.settle()
        async with Cri(containerd.socket) as cri:
            await cri.wipe()
        await _unprepare_all(stack, kubelet, manifests)
        assert leftovers(stack) == []


def leftovers(stack: Stack) -> list[str]:
    """What of claims is on disk: their directories and CDI files."""
    directories = (entry for entry in (stack.node.manager_dir / "claims").iterdir() if not entry.name.startswith("."))
    specs = stack.node.cdi_dir.glob("*manager.nvidia.com*")
    return sorted(path.name for path in (*directories, *specs))


def _import_image(containerd: Containerd, archive: Path, *, name: str, files: Mapping[str, bytes | Path]) -> None:
    image.write_image(archive, name=name, files=files)
    containerd.import_image(archive)
    archive.unlink()


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _start(daemons: Iterable[Daemon]) -> None:
    for daemon in daemons:
        if daemon.process is None or daemon.process.poll() is not None:
            daemon.start()


async def _unprepare_all(stack: Stack, kubelet: Kubelet, manifests: Path) -> None:
    prepared = await stack.dra.debug("claims")
    if claims := [claim for claim in _take_manifests(manifests) if claim.uid in prepared]:
        await kubelet.unprepare(DRIVER, claims)


def _take_manifests(manifests: Path) -> list[Claim]:
    """The claims whose manifests are there; none, nor a pod's, is there afterwards."""
    claims = []
    for path in sorted(manifests.glob("*.json")):
        document = json.loads(path.read_text())
        about = document["metadata"]
        if document["kind"] == "ResourceClaim":
            claims.append(Claim(namespace=about["namespace"], name=about["name"], uid=about["uid"]))
        path.unlink()
    return claims


def _claim(manifest: Manifest) -> Claim:
    return Claim(namespace=manifest.namespace, name=manifest.name, uid=manifest.uid)


def _slice(device: dict[str, Any]) -> Slice:
    return Slice(
        memory_bytes=device["total_memory"] if device["memory_limit"] else None,
        cores_percent=device["hard_core"] if device["core_limit"] else None,
    )
