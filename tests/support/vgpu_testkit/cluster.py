"""A real Kubernetes cluster of one node on this machine: started, its components killed and started again, and gone.

Real are kube-apiserver (Node authorizer, RBAC), etcd, kube-controller-manager, kube-scheduler, kubelet, containerd, and the
pods' networks; there is no kube-proxy and no DNS. All it writes lies in one folder, all it listens on is within namespaces
of its own (`cluster_namespace`), so that several can run beside each other. All calls block. What is asked of the API
server goes through `api`, or `admin_kubeconfig` for any other client on this host.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vgpu_testkit import cluster_cgroups, cluster_config
from vgpu_testkit.cluster_api import Api, Object
from vgpu_testkit.cluster_components import API_PORT, components
from vgpu_testkit.cluster_config import Settings
from vgpu_testkit.cluster_namespace import Namespace
from vgpu_testkit.cluster_process import ClusterFailed, ClusterProcess
from vgpu_testkit.cluster_programs import DEFAULT_RELEASE, find_programs
from vgpu_testkit.containerd import Containerd
from vgpu_testkit.containerd_config import Cni

CONTAINERD = "containerd"
_READY_S = 60.0


class Cluster:
    """One cluster in a folder of its own, whose path must be short: kubelet's sockets lie below it."""

    def __init__(
        self,
        root: Path,
        *,
        containerd: Path,
        release: str = DEFAULT_RELEASE,
        node_name: str = "vgpu-node",
        nri: bool = True,
        request_timeout: str = "2s",
        feature_gates: Mapping[str, bool] | None = None,
    ) -> None:
        """`containerd` is the program, `release` the line of Kubernetes; `feature_gates` come over those of `Programs`.

        Raises:
            ClusterFailed: that release is not built.
        """
        programs = find_programs().get(release)
        if programs is None:
            raise ClusterFailed(f"Kubernetes {release} is not built: run make cluster K8S={release}")
        self.root = root
        self.node_name = node_name
        self.version = programs.version
        self._settings = Settings(
            root=root,
            programs=programs,
            node_name=node_name,
            cgroup=f"vgpu-cluster-{root.name}",
            runtime_socket=root / "c/containerd.sock",
            feature_gates={**programs.feature_gates, **(feature_gates or {})},
        )
        self._containerd_options: dict[str, Any] = {"nri": nri, "request_timeout": request_timeout}
        self._containerd_program = containerd
        self._containerd: Containerd | None = None
        self._namespace = Namespace(
            root / "ns",
            kubelet_root=self._settings.kubelet_root,
            cgroup=self._settings.cgroup,
            ports=[component.port for component in components(self._settings)],
        )
        self._processes = {
            component.name: ClusterProcess(
                component, program=programs.folder / component.name, log=self.log(component.name), namespace=self._namespace
            )
            for component in components(self._settings)
        }

    @property
    def containerd(self) -> Containerd:
        """The node's runtime, once the cluster was started."""
        if self._containerd is None:
            raise ClusterFailed("the cluster was not started")
        return self._containerd

    @property
    def components(self) -> tuple[str, ...]:
        """What `kill`, `restart` and `pid` take."""
        return (*self._processes, CONTAINERD)

    @property
    def kubelet_root(self) -> Path:
        """Kubelet's folder: plugins, plugins_registry and pod-resources lie in it. Inside it is /var/lib/kubelet too."""
        return self._settings.kubelet_root

    @property
    def cdi_dir(self) -> Path:
        return self.root / "c/cdi"

    @property
    def admin_kubeconfig(self) -> Path:
        """A kubeconfig that may do anything, for this host."""
        return self._settings.kubeconfig("admin")

    @property
    def inner_kubeconfig(self) -> Path:
        """The same for what runs by `command_prefix`, without the relay between."""
        return self._settings.kubeconfig("admin-inside")

    @property
    def command_prefix(self) -> tuple[str, ...]:
        """What makes a program run in the node's network and mounts."""
        return self._namespace.prefix

    @property
    def server(self) -> str:
        """The API server's address for this host."""
        return f"https://127.0.0.1:{self._namespace.host_port(API_PORT)}"

    @property
    def audit_log(self) -> Path:
        """Everything that changed something, one JSON object a line."""
        return self._settings.audit_log

    @property
    def api(self) -> Api:
        """The API server, as admin."""
        certificates = self._settings.certificates
        return Api(
            self._namespace.host_port(API_PORT),
            authority=str(certificates.authority),
            certificate=str(certificates.certificate("admin")),
            key=str(certificates.key("admin")),
        )

    def start(self) -> None:
        """Starts everything on what the folder holds; returns when the node is Ready and pods can be created."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends everything, pods included, at once: processes, namespaces, mounts, cgroups. What lies in the folder stays.

        Bears repetition.
        """
        for process in self._processes.values():
            process.kill()
        if self._containerd is not None:
            self._containerd.stop()
        cluster_cgroups.remove(self._settings.cgroup)
        self._namespace.stop()
        # A machine that is switched off keeps nothing of /run.
        shutil.rmtree(self.root / "c/state", ignore_errors=True)

    def kill(self, name: str) -> None:
        """Ends one component by SIGKILL; what it started lives on."""
        if name == CONTAINERD:
            self.containerd.kill()
        else:
            self._processes[name].kill()

    def restart(self, name: str) -> None:
        """Ends one component as its service manager does, where it runs, and starts it; returns when it is healthy."""
        if name == CONTAINERD:
            self.containerd.restart()
            return
        self._processes[name].terminate()
        self._processes[name].launch()
        self._processes[name].wait_healthy()

    @contextmanager
    def runtime(self, *, nri: bool) -> Iterator[None]:
        """In the block the runtime has NRI, or has none: it is started again at both ends. Containers live on."""
        before, self.containerd.nri = self.containerd.nri, nri
        self.restart(CONTAINERD)
        try:
            yield
        finally:
            self.containerd.nri = before
            self.restart(CONTAINERD)

    def pid(self, name: str) -> int | None:
        """The process of a component, None while it does not run."""
        if name == CONTAINERD:
            return self._containerd.pid if self._containerd else None
        return self._processes[name].pid

    def log(self, name: str) -> Path:
        """Where a component writes what it does."""
        return self.root / ("c/containerd.log" if name == CONTAINERD else f"logs/{name}.log")

    def log_tail(self, name: str) -> str:
        """The last lines of what a component wrote."""
        return self.containerd.log_tail() if name == CONTAINERD else self._processes[name].log_tail()

    def audit_events(self) -> Iterator[Object]:
        """What has changed something so far, the oldest first."""
        if self.audit_log.exists():
            for line in self.audit_log.read_text().splitlines():
                yield json.loads(line)

    def wait_node_ready(self, *, timeout_s: float = _READY_S) -> Object:
        """The node, once its condition Ready is True."""
        return self.api.wait_for(f"/api/v1/nodes/{self.node_name}", is_ready, timeout_s=timeout_s)

    def _start(self) -> None:
        for folder in (self.root / "logs", self._settings.cni_conf):
            folder.mkdir(parents=True, exist_ok=True)
        cluster_cgroups.make(self._settings.cgroup)
        self._namespace.start()
        self._configure()
        self._containerd = Containerd(
            self._containerd_program,
            self.root / "c",
            cdi_dir=self.cdi_dir,
            cni=Cni(bin_dir=self._settings.programs.cni, conf_dir=self._settings.cni_conf),
            command_prefix=self._namespace.prefix,
            **self._containerd_options,
        )
        etcd, api_server, *others = self._processes.values()
        etcd.launch()
        etcd.wait_healthy()
        api_server.launch()
        # Seconds in which the API server gets ready.
        self._containerd.start()
        api_server.wait_healthy()
        for process in others:
            process.launch()
        for process in others:
            process.wait_healthy()
        self.wait_node_ready()
        # No pod is admitted to a namespace before it has this.
        self.api.wait_for("/api/v1/namespaces/default/serviceaccounts/default", lambda _: True)

    def _configure(self) -> None:
        certificates = self._settings.certificates
        certificates.make(cluster_config.identities(self._settings))
        inside = f"https://127.0.0.1:{API_PORT}"
        for name in ("kubelet", "kube-controller-manager", "kube-scheduler"):
            self._settings.kubeconfig(name).write_text(cluster_config.kubeconfig(certificates, name, inside))
        self.inner_kubeconfig.write_text(cluster_config.kubeconfig(certificates, "admin", inside))
        self.admin_kubeconfig.write_text(cluster_config.kubeconfig(certificates, "admin", self.server))
        for path, text in cluster_config.files(self._settings).items():
            path.write_text(text)


def is_ready(node: Object) -> bool:
    """Whether a node, or a pod, has the condition Ready."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
