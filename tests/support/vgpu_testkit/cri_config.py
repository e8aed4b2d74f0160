"""Pods and containers as kubelet describes them to a runtime.

Pure but for the files that kubelet makes for each container. Knows kubelet's habits: labels, the layout of logs, the
mounts of /etc/hosts and of the termination log, resources of a BestEffort pod, the cgroup of the pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vgpu_proto import cri as wire
from vgpu_testkit import pod_cgroups
from vgpu_testkit.pods import ContainerSpec, Mount, PodSpec, Seccomp

# Variables of the one service that every cluster has.
_SERVICE_ENV = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "KUBERNETES_SERVICE_PORT_HTTPS": "443",
}

_SECCOMP = {
    Seccomp.RUNTIME_DEFAULT: wire.SecurityProfileProfileType.from_string("RuntimeDefault"),
    Seccomp.UNCONFINED: wire.SecurityProfileProfileType.from_string("Unconfined"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletFolders:
    """Where a stand-in for kubelet keeps its pods' logs and files."""

    logs: Path
    pods: Path

    def log_folder_of(self, pod: PodSpec) -> Path:
        """The folder of a pod's logs."""
        return self.logs / f"{pod.namespace}_{pod.name}_{pod.uid}"

    def log_of(self, pod: PodSpec, spec: ContainerSpec) -> Path:
        """The file that a container's output goes to."""
        return self.log_folder_of(pod) / _log_name(spec)


def pod_config(folders: KubeletFolders, pod: PodSpec) -> wire.PodSandboxConfig:
    """What kubelet says of a pod; makes its log folder."""
    folder = folders.log_folder_of(pod)
    folder.mkdir(parents=True, exist_ok=True)
    return wire.PodSandboxConfig(
        metadata=wire.PodSandboxMetadata(name=pod.name, uid=pod.uid, namespace=pod.namespace),
        log_directory=str(folder),
        labels=_pod_labels(pod),
        annotations=dict(pod.annotations),
        linux=wire.LinuxPodSandboxConfig(
            cgroup_parent=pod_cgroups.parent_of(pod.uid),
            security_context=wire.LinuxSandboxSecurityContext(namespace_options=_namespaces(), privileged=pod.privileged),
        ),
    )


def container_config(folders: KubeletFolders, pod: PodSpec, spec: ContainerSpec) -> wire.ContainerConfig:
    """What kubelet says of a container; makes the files that it mounts and the folder of the log."""
    folders.log_of(pod, spec).parent.mkdir(parents=True, exist_ok=True)
    mounts = (*spec.mounts, *_kubelets_mounts(folders.pods / pod.uid, spec))
    env = _SERVICE_ENV | dict(spec.env)
    return wire.ContainerConfig(
        metadata=wire.ContainerMetadata(name=spec.name, attempt=spec.attempt),
        image=wire.ImageSpec(image=spec.image),
        command=list(spec.command),
        envs=[wire.KeyValue(key=key, value=value) for key, value in env.items()],
        mounts=[
            wire.Mount(container_path=one.container_path, host_path=str(one.host_path), readonly=one.readonly) for one in mounts
        ],
        devices=[
            wire.Device(container_path=one.container_path, host_path=one.host_path, permissions=one.permissions)
            for one in spec.devices
        ],
        labels=_pod_labels(pod) | {"io.kubernetes.container.name": spec.name},
        annotations={"io.kubernetes.container.restartCount": str(spec.attempt), **spec.annotations},
        log_path=_log_name(spec),
        linux=wire.LinuxContainerConfig(
            # Those of a BestEffort pod.
            resources=wire.LinuxContainerResources(cpu_shares=2, oom_score_adj=1000),
            security_context=_security_context(spec),
        ),
        cdi_devices=[wire.CdiDevice(name=name) for name in spec.cdi_devices],
    )


def _kubelets_mounts(folder: Path, spec: ContainerSpec) -> tuple[Mount, ...]:
    """The two files that kubelet mounts into every container, from its folder for the pod."""
    hosts = folder / "etc-hosts"
    termination_log = folder / "containers" / spec.name / f"{spec.attempt:08x}"
    termination_log.parent.mkdir(parents=True, exist_ok=True)
    hosts.write_text("127.0.0.1\tlocalhost\n")
    termination_log.touch()
    return Mount("/etc/hosts", hosts), Mount("/dev/termination-log", termination_log)


def _namespaces() -> wire.NamespaceOption:
    # The host's network, so that no network plugin is needed.
    return wire.NamespaceOption(
        network=wire.NamespaceMode.from_string("NODE"),
        pid=wire.NamespaceMode.from_string("CONTAINER"),
        ipc=wire.NamespaceMode.from_string("POD"),
    )


def _log_name(spec: ContainerSpec) -> str:
    return f"{spec.name}/{spec.attempt}.log"


def _pod_labels(pod: PodSpec) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": pod.name,
        "io.kubernetes.pod.namespace": pod.namespace,
        "io.kubernetes.pod.uid": pod.uid,
    }


def _security_context(spec: ContainerSpec) -> wire.LinuxContainerSecurityContext:
    context = wire.LinuxContainerSecurityContext(
        privileged=spec.privileged,
        namespace_options=_namespaces(),
        readonly_rootfs=spec.readonly_rootfs,
        seccomp=wire.SecurityProfile(profile_type=_SECCOMP[spec.seccomp]),
        capabilities=wire.Capability(
            add_capabilities=list(spec.add_capabilities), drop_capabilities=list(spec.drop_capabilities)
        ),
    )
    # The wrapper's value is given by keyword: a default-constructed one would not be sent at all.
    if spec.run_as_user is not None:
        context.run_as_user = wire.Int64Value(value=spec.run_as_user)
    if spec.run_as_group is not None:
        context.run_as_group = wire.Int64Value(value=spec.run_as_group)
    return context
