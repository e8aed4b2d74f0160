"""What is asked of a container runtime, and what it says, as plain values.

Knows no wire format and no runtime.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from vgpu_testkit import image, pod_cgroups


class Seccomp(Enum):
    """The seccomp profile of a container; UNCONFINED is kubelet's default without SeccompDefault."""

    RUNTIME_DEFAULT = "runtime default"
    UNCONFINED = "unconfined"


class ContainerState(Enum):
    """Where a container is in its life."""

    CREATED = 0
    RUNNING = 1
    EXITED = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """What is asked for in a pod.

    An empty runtime handler is the runtime's default. A privileged pod is one that may have privileged containers.
    """

    name: str = "pod"
    namespace: str = "default"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    runtime_handler: str = ""
    privileged: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount of a host's file or folder."""

    container_path: str
    host_path: str | Path
    readonly: bool = False


@dataclass(frozen=True, slots=True)
class Device:
    """A device node of the host."""

    container_path: str
    host_path: str
    permissions: str = "rwm"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """What is asked for in a container; `attempt` counts restarts in place."""

    name: str = "main"
    attempt: int = 0
    image: str = image.BASE_IMAGE
    command: tuple[str, ...] = ("/bin/sleep", "1000000")
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[Device, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    run_as_user: int | None = None
    run_as_group: int | None = None
    readonly_rootfs: bool = False
    privileged: bool = False
    add_capabilities: tuple[str, ...] = ()
    drop_capabilities: tuple[str, ...] = ()
    seccomp: Seccomp = Seccomp.UNCONFINED


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod that runs: the id of its sandbox, and what was asked for."""

    id: str
    spec: PodSpec

    def cgroup_of(self, container_id: str) -> str:
        """The path of a container's cgroup below each hierarchy's root."""
        return f"{pod_cgroups.parent_of(self.spec.uid)}/{container_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What a program run in a container left behind."""

    exit_code: int
    stdout: str
    stderr: str

    def output_of(self, what: str) -> str:
        """What it printed, where it succeeded.

        Raises:
            AssertionError: it failed; says `what` was run and what it wrote.
        """
        assert self.exit_code == 0, f"{what!r} exits {self.exit_code}: {self.stderr or self.stdout}"
        return self.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStatus:
    """A container as the runtime sees it; pid 0 where it does not run.

    `oci_spec` is the OCI configuration that the runtime wrote for it, NRI's and CDI's changes included.
    """

    id: str
    state: ContainerState
    pid: int
    exit_code: int
    reason: str
    message: str
    oci_spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEntry:
    """A container in the runtime's list."""

    id: str
    pod_id: str
    name: str
    attempt: int
    state: ContainerState
