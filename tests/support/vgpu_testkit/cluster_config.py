"""What a cluster of the tests is made of: its settings, its configuration files, who takes part in it.

Pure text by paths. Command lines are `cluster_components`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpu_testkit.cluster_certificates import Certificates, Identity
from vgpu_testkit.cluster_namespace import API_ADDRESS, BRIDGE, NODE_ADDRESS, POD_NETWORK
from vgpu_testkit.cluster_programs import Programs

_ADMINS = "system:masters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What makes one cluster different from another. `feature_gates` are all that are named, with their values."""

    root: Path
    programs: Programs
    node_name: str
    cgroup: str
    runtime_socket: Path
    feature_gates: Mapping[str, bool]

    @property
    def certificates(self) -> Certificates:
        return Certificates(self.root / "pki")

    @property
    def kubelet_root(self) -> Path:
        return self.root / "kubelet"

    @property
    def cni_conf(self) -> Path:
        return self.root / "cni"

    @property
    def audit_log(self) -> Path:
        return self.root / "audit.log"

    def kubeconfig(self, name: str) -> Path:
        return self.root / f"{name}.kubeconfig"


def identities(settings: Settings) -> tuple[Identity, ...]:
    """Who takes part, as the Node authorizer and Kubernetes' own roles know them."""
    services = tuple(f"DNS:kubernetes{rest}" for rest in ("", ".default", ".default.svc", ".default.svc.cluster.local"))
    local = ("IP:127.0.0.1", "DNS:localhost")
    return (
        Identity(
            name="kube-apiserver",
            user="kube-apiserver",
            alternatives=(*services, *local, f"IP:{API_ADDRESS}", f"IP:{NODE_ADDRESS}"),
        ),
        Identity(name="kubelet-client", user="kube-apiserver-kubelet-client", groups=(_ADMINS,)),
        Identity(name="admin", user="kubernetes-admin", groups=(_ADMINS,)),
        Identity(name="kube-controller-manager", user="system:kube-controller-manager", alternatives=local),
        Identity(name="kube-scheduler", user="system:kube-scheduler", alternatives=local),
        Identity(
            name="kubelet",
            user=f"system:node:{settings.node_name}",
            groups=("system:nodes",),
            alternatives=(f"IP:{NODE_ADDRESS}", f"DNS:{settings.node_name}"),
        ),
    )


def kubeconfig(certificates: Certificates, name: str, server: str) -> str:
    """A kubeconfig that holds all it needs, for the identity of that name."""

    def data(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    user = {
        "client-certificate-data": data(certificates.certificate(name)),
        "client-key-data": data(certificates.key(name)),
    }
    return _json(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "vgpu", "cluster": {"server": server, "certificate-authority-data": data(certificates.authority)}}
            ],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "vgpu", "context": {"cluster": "vgpu", "user": name}}],
            "current-context": "vgpu",
        }
    )


def files(settings: Settings) -> dict[Path, str]:
    """The configuration files by path."""
    return {
        settings.root / "kubelet.json": _json(_kubelet(settings)),
        settings.root / "audit-policy.json": _json(_AUDIT_POLICY),
        settings.root / "resolv.conf": "",
        settings.cni_conf / "10-vgpu.conflist": _json(_network(settings)),
    }


# The audit log has what changes something, and who did it.
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "None"},
    ],
}


def _network(settings: Settings) -> dict[str, Any]:
    # No masquerading: there is nowhere to go beyond the node, and it would need iptables.
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": POD_NETWORK}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(settings.root / "cni-addresses"),
        },
    }
    return {"cniVersion": "1.0.0", "name": "vgpu", "plugins": [bridge]}


def _kubelet(settings: Settings) -> dict[str, Any]:
    certificates = settings.certificates
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(certificates.authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(certificates.certificate("kubelet")),
        "tlsPrivateKeyFile": str(certificates.key("kubelet")),
        "containerRuntimeEndpoint": f"unix://{settings.runtime_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{settings.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        # Lower takes CAP_SYS_RESOURCE, which root in a container does not have.
        "oomScoreAdj": 0,
        "podLogsDir": str(settings.root / "pod-logs"),
        "volumePluginDir": str(settings.root / "volume-plugins"),
        "resolvConf": str(settings.root / "resolv.conf"),
        # The disk of a developer's machine may be fuller than a node's should be.
        "evictionHard": {
            "memory.available": "1Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
        # What could not be prepared is asked for again when kubelet next looks at the pod, after this time or half as much more;
        # its default of a minute only has tests wait. Source: kuberuntime_manager.go, SyncPod returns no error for it.
        "syncFrequency": "10s",
        "featureGates": dict(settings.feature_gates),
    }


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
