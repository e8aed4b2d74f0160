"""Claims and pods of the tests on a real cluster with vGPUs, as a user writes them, and what their containers saw."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from vgpu_testkit import vgpu_node
from vgpu_testkit.cluster_api import ApiError, Object
from vgpu_testkit.cluster_pods import PODS
from vgpu_testkit.cluster_vgpu import RESOURCES, VgpuCluster, wait_until
from vgpu_testkit.cri import Cri
from vgpu_testkit.vgpu_node import Slice

CLAIMS = f"{RESOURCES}/namespaces/default/resourceclaims"
TEMPLATES = f"{RESOURCES}/namespaces/default/resourceclaimtemplates"

# Prints the limits, registers as the library would, prints them again: now with the processes that were recorded.
SCRIPT = (
    "read-limits && /etc/vgpu-manager/registry/device-client --address /etc/vgpu-manager/registry/socket.sock "
    '--pod-uid "$VGPU_POD_UID" --container-name "$VGPU_CONTAINER_NAME" --register-uuid "$MANAGER_CLIENT_REGISTER_UUID" && '
    "read-limits && "
)
STAY = SCRIPT + "exec sleep 100000"
END = SCRIPT + "sleep 1"
SLEEP = "exec sleep 100000"

_RUNNING_S = 90.0
_TOLD_S = 60.0
# A kubelet that was away when a pod went finds out about its claims once a minute.
_GONE_S = 120.0


def request(name: str, *, memory: str, cores: str, count: int | None = None) -> Object:
    """A request for so much of a GPU; `count` of them where it is given."""
    exactly: Object = {"deviceClassName": "vgpu-manager", "capacity": {"requests": {"cores": cores, "memory": memory}}}
    if count is not None:
        exactly |= {"allocationMode": "ExactCount", "count": count}
    return {"name": name, "exactly": exactly}


def claim_spec(*requests: Object, distinct: str | None = None, same: str | None = None) -> Object:
    """A claim's spec; `distinct` names an attribute in which no two of its devices are equal, `same` one in which all are."""
    asked = {"distinctAttribute": distinct, "matchAttribute": same}
    constraints = [{kind: f"{vgpu_node.DRIVER}/{name}"} for kind, name in asked.items() if name]
    return {"devices": {"requests": list(requests), "constraints": constraints}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A container. `uses` are the requests that it names; none means the whole claim. `restart` of "Always" makes a sidecar."""

    name: str = "main"
    uses: tuple[str, ...] = ()
    script: str = STAY
    restart: str | None = None

    def document(self) -> Object:
        claims = [{"name": "gpu", "request": one} for one in self.uses] or [{"name": "gpu"}]
        command = ["/bin/sh", "-c", self.script]
        own = {"restartPolicy": self.restart} if self.restart else {}
        return {"name": self.name, "image": vgpu_node.IMAGE, "command": command, "resources": {"claims": claims}, **own}


def pod(used: Mapping[str, str], *boxes: Box, init: tuple[Box, ...] = (), restart: str = "Never") -> Object:
    """A pod with a name of its own. `used` is what `Namespace.template` or `Namespace.claim` says."""
    spec: dict[str, Any] = {
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": 0,
        "initContainers": [one.document() for one in init],
        "containers": [one.document() for one in boxes or (Box(),)],
        "resourceClaims": [{"name": "gpu", **used}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"v-{uuid.uuid4().hex[:8]}"}, "spec": spec}


@dataclass(frozen=True, kw_only=True)
class Namespace:
    """The default namespace during one test."""

    vgpu: VgpuCluster

    def template(self, spec: Object) -> dict[str, str]:
        """A claim template; what a pod says to use it."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.vgpu.cluster.api.create(TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": spec}})
        return {"resourceClaimTemplateName": name}

    def claim(self, spec: Object) -> dict[str, str]:
        """A claim; what a pod says to use it."""
        name = f"c-{uuid.uuid4().hex[:8]}"
        self.vgpu.cluster.api.create(CLAIMS, {"metadata": {"name": name}, "spec": spec})
        return {"resourceClaimName": name}

    def create(self, document: Object) -> str:
        """Creates a pod; its name."""
        name: str = self.vgpu.cluster.api.create(PODS, document)["metadata"]["name"]
        return name

    def run(self, document: Object) -> str:
        """Creates a pod; its name, once it runs."""
        name = self.create(document)
        self.wait_running(name)
        return name

    def wait_running(self, *names: str) -> None:
        """Returns when these pods run, each container of theirs included.

        Raises:
            AssertionError: one does not within 90 s; with what is known of it.
        """
        deadline = time.monotonic() + _RUNNING_S
        while waiting := [name for name in names if not _runs(self.pod(name))]:
            assert time.monotonic() < deadline, "\n".join(line for name in waiting for line in self.story(name))
            time.sleep(0.2)

    def delete(self, name: str, *, grace_s: int | None = None) -> None:
        self.vgpu.cluster.api.delete(f"{PODS}/{name}", grace_s=grace_s)

    def pods(self) -> dict[str, Object]:
        """All pods by name."""
        return {one["metadata"]["name"]: one for one in self.vgpu.cluster.api.get(PODS)["items"]}

    def pod(self, name: str) -> Object:
        return self.vgpu.cluster.api.get(f"{PODS}/{name}")

    def claim_of(self, name: str) -> Object:
        """The one claim of a pod."""
        (named,) = self.pod(name)["status"]["resourceClaimStatuses"]
        return self.vgpu.cluster.api.get(f"{CLAIMS}/{named['resourceClaimName']}")

    def seen(self, name: str, container: str = "main", *, lines: int = 2) -> list[Object]:
        """What `read-limits` said in the container: before and after it registered. Awaits so many lines."""
        found: list[Object] = []

        def are_there() -> bool:
            log = self.vgpu.cluster.api.log("default", name, container=container)
            found[:] = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
            return len(found) >= lines

        wait_until(are_there, f"{lines} lines of {name}'s {container}", timeout_s=40)
        return found

    def slices(self, name: str, container: str = "main") -> dict[int, Slice]:
        """The container's slices by the GPU's index, as a program in it reads them."""
        return slices_in(self.seen(name, container)[-1])

    def apply(self, manifest: Path) -> None:
        """Creates what a manifest of claims, templates and pods has, unchanged."""
        collections = {"Pod": PODS, "ResourceClaim": CLAIMS, "ResourceClaimTemplate": TEMPLATES}
        for document in yaml.safe_load_all(manifest.read_text()):
            self.vgpu.cluster.api.create(collections[document["kind"]], document)

    def inside(self, name: str, *command: str, container: str = "main") -> str:
        """What a program that succeeds prints in a running container of the pod, asked of the runtime as kubelet asks.

        Raises:
            AssertionError: it failed; with what it wrote.
        """
        (status,) = [one for one in self.pod(name)["status"]["containerStatuses"] if one["name"] == container]
        container_id = status["containerID"].removeprefix("containerd://")
        return asyncio.run(_run(self.vgpu.cluster.containerd.socket, container_id, *command))

    def slices_now(self, name: str, container: str = "main") -> dict[int, Slice]:
        """The same as `slices`, of a container that prints nothing by itself: its image needs `read-limits`."""
        return slices_in(json.loads(self.inside(name, "read-limits", container=container)))

    def wait_event(self, name: str, words: str) -> None:
        """Returns when an event of the pod has these words.

        Raises:
            AssertionError: none has after 60 s; with what is known of the pod.
        """
        deadline = time.monotonic() + _TOLD_S
        while words not in (story := "\n".join(self.story(name)[1:])):
            assert time.monotonic() < deadline, story
            time.sleep(0.2)

    def wait_restarts(self, name: str, count: int) -> None:
        """Returns when the pod's one container runs after kubelet has started it again so many times.

        Raises:
            NotSettled: it does not.
        """

        def holds() -> bool:
            (status,) = self.pod(name)["status"]["containerStatuses"]
            return bool(status["restartCount"] == count and "running" in status["state"])

        wait_until(holds, f"{name} was restarted {count} times")

    def processes(self, name: str) -> list[int]:
        """The host PIDs of the pod's one container, ascending, by the first hierarchy that has its cgroup."""
        (status,) = self.pod(name)["status"]["containerStatuses"]
        container_id = status["containerID"].removeprefix("containerd://")
        cgroup = f"vgpu-cluster-{self.vgpu.cluster.root.name}/kubepods"
        place = next(
            one for way in ("", "*/") for one in Path("/sys/fs/cgroup").glob(f"{way}{cgroup}/**/{container_id}/cgroup.procs")
        )
        return sorted(int(pid) for pid in place.read_text().split())

    def partition(self, name: str, container: str = "main") -> Path:
        """The host's directory of a container's private state."""
        claim_uid, pod_uid = self.claim_of(name)["metadata"]["uid"], self.pod(name)["metadata"]["uid"]
        return Path(self.vgpu.stack.node.manager_dir, "claims", claim_uid, f"{pod_uid}_{container}")

    def recorded(self, name: str) -> list[int]:
        """The PID list of the pod's container, as the host has it."""
        return [int(pid) for pid in (self.partition(name) / "config/pids.config").read_text().split()]

    def story(self, name: str) -> list[str]:
        """A pod's containers' states, its events, and what its main container has written."""
        api, status = self.vgpu.cluster.api, self.pod(name)["status"]
        try:
            log = api.log("default", name)
        except ApiError as error:  # it has not been created yet
            log = str(error)
        events = [line for line in api.events("default") if f"/{name} " in line]
        return [f"{name} {status.get('phase')}: {json.dumps(status.get('containerStatuses'))}", *events, log]

    def clear(self) -> None:
        """Deletes all pods, claims and templates; returns when they are gone, on the node too.

        Raises:
            NotSettled: something is left after two minutes.
        """
        api = self.vgpu.cluster.api
        for collection in (PODS, CLAIMS, TEMPLATES):
            for one in api.get(collection)["items"]:
                # One second, whatever a pod itself says: none waits to be ended, and none vanishes before kubelet has ended it.
                api.delete(f"{collection}/{one['metadata']['name']}", grace_s=1)
        for collection in (PODS, CLAIMS, TEMPLATES):
            wait_until(partial(self._is_empty, collection), f"nothing at {collection}", timeout_s=_GONE_S)
        left: list[str] = []

        def is_clean() -> bool:
            left[:] = ["what dra-plugin says, which does not answer"]
            with suppress(OSError):
                left[:] = self.vgpu.leftovers()
            return not left

        try:
            wait_until(is_clean, "nothing is left on the node", timeout_s=_GONE_S)
        finally:
            assert left == []

    def _is_empty(self, collection: str) -> bool:
        return not self.vgpu.cluster.api.get(collection)["items"]


@contextmanager
def opened(vgpu: VgpuCluster) -> Iterator[Namespace]:
    """The namespace; at the end all that a test made is gone, and the node is as it was."""
    devices = vgpu.devices()
    namespace = Namespace(vgpu=vgpu)
    yield namespace
    namespace.clear()
    # Where kubelet was killed, it has wiped the slices at its start.
    wait_until(lambda: vgpu.devices() == devices, "the node's devices are published as they were")


def slices_in(limits: Object) -> dict[int, Slice]:
    """By the GPU's index, from what `read-limits` said."""
    return {
        one["index"]: Slice(
            memory_bytes=one["total_memory"] if one["memory_limit"] else None,
            cores_percent=one["hard_core"] if one["core_limit"] else None,
        )
        for one in limits["devices"]
    }


async def _run(socket: Path, container_id: str, *command: str) -> str:
    async with Cri(socket) as cri:
        return (await cri.exec(container_id, *command)).output_of(" ".join(command))


def _runs(found: Object) -> bool:
    status = found["status"]
    containers = status.get("containerStatuses") or []
    return status.get("phase") == "Running" and all("running" in one["state"] for one in containers)
