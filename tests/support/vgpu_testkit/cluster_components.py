"""The processes of a cluster of the tests but its container runtime: command lines, and where each says that it is well.

Pure text by paths. Knows Kubernetes' flags; what their files hold is `cluster_config`.
"""

from __future__ import annotations

from dataclasses import dataclass

from vgpu_testkit.cluster_certificates import Certificates
from vgpu_testkit.cluster_config import Settings
from vgpu_testkit.cluster_namespace import NODE_ADDRESS, SERVICE_NETWORK

API_PORT = 443


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One process of a cluster. Its health is asked at `scheme`://127.0.0.1:`port``path` inside; 200 says it is well."""

    name: str
    arguments: tuple[str, ...]
    port: int
    scheme: str
    path: str


def components(settings: Settings) -> tuple[Component, ...]:
    """All but the container runtime, in the order in which they are started."""
    return (_etcd(settings), _api_server(settings), _controller_manager(settings), _scheduler(settings), _node_agent(settings))


def _etcd(settings: Settings) -> Component:
    client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    return Component(
        name="etcd",
        arguments=(
            f"--data-dir={settings.root / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            # A killed process loses nothing by it, a machine that loses power would.
            "--unsafe-no-fsync",
            "--log-level=warn",
        ),
        port=2379,
        scheme="http",
        path="/health",
    )


def _api_server(settings: Settings) -> Component:
    certificates = settings.certificates
    return Component(
        name="kube-apiserver",
        arguments=(
            "--etcd-servers=http://127.0.0.1:2379",
            "--bind-address=0.0.0.0",
            f"--secure-port={API_PORT}",
            f"--advertise-address={NODE_ADDRESS}",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            f"--client-ca-file={certificates.authority}",
            *_serving(certificates, "kube-apiserver"),
            # Nobody has this name. Without it the other components keep asking who may speak for others.
            f"--requestheader-client-ca-file={certificates.authority}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            f"--kubelet-certificate-authority={certificates.authority}",
            f"--kubelet-client-certificate={certificates.certificate('kubelet-client')}",
            f"--kubelet-client-key={certificates.key('kubelet-client')}",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={certificates.service_account_key}",
            f"--service-account-key-file={certificates.service_account_public_key}",
            f"--audit-policy-file={settings.root / 'audit-policy.json'}",
            f"--audit-log-path={settings.audit_log}",
            "--allow-privileged=true",
            "--profiling=false",
            *(f"--runtime-config={one}" for one in settings.programs.runtime_config),
            _gates(settings),
        ),
        port=API_PORT,
        scheme="https",
        path="/readyz",
    )


def _controller_manager(settings: Settings) -> Component:
    certificates = settings.certificates
    return Component(
        name="kube-controller-manager",
        arguments=(
            *_client(settings, "kube-controller-manager"),
            *_serving(certificates, "kube-controller-manager"),
            f"--root-ca-file={certificates.authority}",
            f"--service-account-private-key-file={certificates.service_account_key}",
            "--use-service-account-credentials=true",
            # It makes this folder, in /usr/libexec otherwise.
            f"--flex-volume-plugin-dir={settings.root / 'volume-plugins'}",
            _gates(settings),
        ),
        port=10257,
        scheme="https",
        path="/healthz",
    )


def _scheduler(settings: Settings) -> Component:
    return Component(
        name="kube-scheduler",
        arguments=(
            *_client(settings, "kube-scheduler"),
            *_serving(settings.certificates, "kube-scheduler"),
            _gates(settings),
        ),
        port=10259,
        scheme="https",
        path="/healthz",
    )


def _node_agent(settings: Settings) -> Component:
    return Component(
        name="kubelet",
        arguments=(
            f"--config={settings.root / 'kubelet.json'}",
            f"--kubeconfig={settings.kubeconfig('kubelet')}",
            f"--root-dir={settings.kubelet_root}",
            f"--hostname-override={settings.node_name}",
            f"--node-ip={NODE_ADDRESS}",
        ),
        port=10248,
        scheme="http",
        path="/healthz",
    )


def _client(settings: Settings, name: str) -> tuple[str, ...]:
    path = settings.kubeconfig(name)
    return (
        f"--kubeconfig={path}",
        f"--authentication-kubeconfig={path}",
        f"--authorization-kubeconfig={path}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    )


def _serving(certificates: Certificates, name: str) -> tuple[str, ...]:
    return (f"--tls-cert-file={certificates.certificate(name)}", f"--tls-private-key-file={certificates.key(name)}")


def _gates(settings: Settings) -> str:
    return "--feature-gates=" + ",".join(f"{name}={str(value).lower()}" for name, value in sorted(settings.feature_gates.items()))
