"""Our three services on the node of a real cluster, as its DaemonSet would run them: with their own account and RBAC.

Owns their life and what they leave on the node and in the API server. Pods and claims are `cluster_vgpu_pods`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from vgpu_testkit import vgpu_node
from vgpu_testkit.cluster import Cluster
from vgpu_testkit.cluster_api import ApiError, Object
from vgpu_testkit.daemons import Daemon, Stack, StackPaths, make_stack
from vgpu_testkit.node import build_node

NAMESPACE = "vgpu-manager"
RESOURCES = "/apis/resource.k8s.io/v1"
SLICES = f"{RESOURCES}/resourceslices"

_DEPLOY = Path(__file__).parents[3] / "deploy/kustomize/base"
_ROLES = "/apis/rbac.authorization.k8s.io/v1"
_COLLECTIONS = {
    "ClusterRole": f"{_ROLES}/clusterroles",
    "ClusterRoleBinding": f"{_ROLES}/clusterrolebindings",
    "DeviceClass": f"{RESOURCES}/deviceclasses",
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
}
_TOKEN_S = 24 * 3600
_READY_S = 60.0
_POLL_S = 0.1


class NotSettled(Exception):
    """Raised when the node did not come to what a test waits for; says what it was then."""


@dataclass(frozen=True, kw_only=True)
class VgpuCluster:
    """A cluster whose node has vGPUs."""

    cluster: Cluster
    stack: Stack

    def settle(self) -> None:
        """Returns when every service is ready, nri-plugin is synchronized and the node's devices are published.

        Raises:
            NotSettled: they are not within a minute.
        """
        for daemon in self.stack.daemons:
            asyncio.run(daemon.ready(timeout_s=_READY_S))
        wait_until(self._is_synchronized, "nri-plugin's session is known to dra-plugin")
        wait_until(lambda: self._vgpus() == 8, "the node's eight vGPUs are published")

    def wait_nri_away(self) -> None:
        """Returns when dra-plugin has not heard of nri-plugin for so long that new claims may be prepared without it.

        Raises:
            NotSettled: it has, all the time.
        """
        dra = self.stack.dra
        wait_until(lambda: not asyncio.run(dra.debug("state"))["is_nri_alive"], "nri-plugin has not been heard of for a while")

    def devices(self) -> list[Object]:
        """The devices of all slices of ours."""
        slices = self.cluster.api.get(SLICES)["items"]
        return [d for s in slices if s["spec"]["driver"] == vgpu_node.DRIVER for d in s["spec"].get("devices", [])]

    def leftovers(self) -> list[str]:
        """What of claims is on the node: directories, CDI files, bindings, claims that dra-plugin knows."""
        held = asyncio.run(self.stack.dra.debug("partitions"))
        return [*vgpu_node.leftovers(self.stack), *self.claims(), *(one["partition"] for one in held)]

    def claims(self) -> list[str]:
        """The uids of the claims that dra-plugin has prepared."""
        return list(asyncio.run(self.stack.dra.debug("claims")))

    def modes(self) -> dict[str, str]:
        """By claim uid: "lazy", or why its partitions were made at Prepare, as dra-plugin has it."""
        prepared = asyncio.run(self.stack.dra.debug("claims"))
        return {uid: one.get("eager_reason", one["mode"]) for uid, one in prepared.items()}

    def eager_claims(self) -> dict[str, int]:
        """How many claims dra-plugin counts whose partitions were made at Prepare, by the reasons that there are."""
        name = re.compile(r'vgpu_dra_eager_claims\{reason="(\w+)"\}')
        counts = {name.fullmatch(key): value for key, value in asyncio.run(self.stack.dra.metrics()).items()}
        return {found[1]: int(value) for found, value in counts.items() if found is not None and value}

    @contextmanager
    def gated(self, **gates: bool) -> Iterator[None]:
        """In the block dra-plugin has these feature gates: it is ended and started again at both ends. Claims live on."""
        self._restart_dra(",".join(f"{name}={str(is_on).lower()}" for name, is_on in gates.items()))
        try:
            yield
        finally:
            self._restart_dra("")

    def kill(self, name: str) -> None:
        """SIGKILL to a service of ours or a component of the cluster; nothing starts it again by this."""
        daemon = next((one for one in self.stack.daemons if one.name == name), None)
        if daemon is None:
            self.cluster.kill(name)
        else:
            os.kill(daemon.pid, signal.SIGKILL)

    @contextmanager
    def supervised(self) -> Iterator[None]:
        """Starts again whatever of the services has ended, as kubelet does for a DaemonSet's pod."""
        done = threading.Event()
        supervisor = threading.Thread(target=_supervise, args=(self.stack.daemons, done))
        supervisor.start()
        try:
            yield
        finally:
            done.set()
            supervisor.join()

    def writes(self) -> list[Object]:
        """What the services have written to the API server so far, as its audit log has it, the oldest first."""
        user = f"system:serviceaccount:{NAMESPACE}:vgpu-manager"
        return [event for event in self.cluster.audit_events() if event["user"]["username"] == user]

    def _restart_dra(self, gates: str) -> None:
        dra = self.stack.dra
        dra.environment["VGPU_FEATURE_GATES"] = gates
        dra.kill()
        dra.start()
        asyncio.run(dra.ready(timeout_s=_READY_S))

    def _vgpus(self) -> int:
        return sum(device["name"].startswith("vgpu-") for device in self.devices())

    def _is_synchronized(self) -> bool:
        with suppress(OSError):
            session = asyncio.run(self.stack.nri.debug("session"))
            known = asyncio.run(self.stack.dra.debug("state"))["nri_session"]
            return bool(session["phase"] == "synchronized" and session["session"] == known)
        return False


@contextmanager
def installed(cluster: Cluster, native: Path) -> Iterator[VgpuCluster]:
    """The services run on the cluster's node, and are gone at the end; the cluster keeps their account and device class."""
    root = Path(tempfile.mkdtemp(prefix="vn"))
    for folder in ("plugins", "plugins_registry"):
        (cluster.kubelet_root / folder).mkdir(exist_ok=True)
    node = replace(build_node(root / "n", native=native), kubelet_dir=cluster.kubelet_root, cdi_dir=cluster.cdi_dir)
    vgpu_node.import_demo_image(cluster.containerd, native, root / "image.tar")
    _create(cluster, {"kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for file in ("rbac.yaml", "deviceclasses.yaml"):
        for document in yaml.safe_load_all((_DEPLOY / file).read_text()):
            _create(cluster, document)
    options = {"VGPU_CLAIMS_FROM": "api", "VGPU_NODE_NAME": cluster.node_name, "KUBECONFIG": str(_kubeconfig(cluster, root))}
    paths = StackPaths(claims=root, nri_socket=cluster.containerd.nri_socket)
    stack = make_stack(node, paths, options=options)
    try:
        for daemon in stack.daemons:
            daemon.start()
        running = VgpuCluster(cluster=cluster, stack=stack)
        running.settle()
        yield running
    finally:
        stack.stop()
        shutil.rmtree(root)


def wait_until(holds: Callable[[], Any], what: str, *, timeout_s: float = _READY_S) -> None:
    """Returns when `holds` answers true.

    Raises:
        NotSettled: it did not within `timeout_s`; says `what`.
    """
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise NotSettled(f"not within {timeout_s:g} s: {what}")
        time.sleep(_POLL_S)


def _supervise(daemons: tuple[Daemon, ...], done: threading.Event) -> None:
    while not done.wait(_POLL_S):
        for daemon in daemons:
            if daemon.has_ended:
                daemon.start()


def _create(cluster: Cluster, document: Object) -> None:
    try:
        cluster.api.create(_COLLECTIONS[document["kind"]], document)
    except ApiError as error:
        if error.status != HTTPStatus.CONFLICT:  # an earlier module of tests had the services installed
            raise


def _kubeconfig(cluster: Cluster, folder: Path) -> Path:
    """One with the token of the services' own account, so that what RBAC refuses is refused here too."""
    account = f"{_COLLECTIONS['ServiceAccount']}/vgpu-manager/token"
    token = cluster.api.create(account, {"spec": {"expirationSeconds": _TOKEN_S}})["status"]["token"]
    document = json.loads(cluster.admin_kubeconfig.read_text())
    document["users"][0]["user"] = {"token": token}
    path = folder / "services.kubeconfig"
    path.write_text(json.dumps(document))
    return path
