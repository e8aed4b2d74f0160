"""The contract with the enforcement library inside a container: env names, mount destinations and options, mode bits.

Source: vgpu-manager, library/src/loader.c and pkg/util/consts.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

MANAGER_DIR: Final = "/etc/vgpu-manager"
CONFIG_DIR: Final = f"{MANAGER_DIR}/config"
REGISTRY_DIR: Final = f"{MANAGER_DIR}/registry"
HOST_PROC_DIR: Final = f"{MANAGER_DIR}/.host_proc"
LIBRARY: Final = f"{MANAGER_DIR}/driver/libvgpu-control.so"
PRELOAD_LIST: Final = "/etc/ld.so.preload"
# The library's scratch: a lock, a memory ledger and a compute ledger per container.
SCRATCH_DIRS: Final = ("/tmp/.vgpu_lock", "/tmp/.vmem_node", "/tmp/.sm_node")

# `bind` must be in the list: without a type and without it runc fails with "no such device".
READ_ONLY_BIND: Final = ("ro", "nosuid", "nodev", "bind")
# Not sticky: with fs.protected_regular a sticky directory locks the second uid out of the library's files. 2 MiB and 64 inodes
# are ample: the largest ledger is 320 KiB, the most files 17.
SCRATCH_TMPFS: Final = ("rw", "nosuid", "nodev", "noexec", "size=2m", "nr_inodes=64", "mode=0777")

ENV_POD_NAME: Final = "VGPU_POD_NAME"
ENV_POD_NAMESPACE: Final = "VGPU_POD_NAMESPACE"
ENV_POD_UID: Final = "VGPU_POD_UID"
ENV_CONTAINER_NAME: Final = "VGPU_CONTAINER_NAME"
ENV_REGISTER_UUID: Final = "MANAGER_CLIENT_REGISTER_UUID"
ENV_COMPATIBILITY_MODE: Final = "MANAGER_COMPATIBILITY_MODE"
ENV_CLAIM_UID: Final = "MANAGER_VGPU_CLAIM_UID"

MAX_DEVICES: Final = 16

_CGROUP_V1: Final = 1
_CGROUP_V2: Final = 2
_OPEN_KERNEL: Final = 100
_CLIENT: Final = 200


class CompatibilityMode(IntEnum):
    """How the library tells its container's processes from others on the GPU.

    CLIENT by the list that registry has recorded. The others by the processes' cgroups, read in the host's /proc: CGROUP_V2 needs
    a cgroup namespace of the container's own, CGROUP_V1 compares paths of the memory controller.
    """

    CLIENT = _CLIENT | _OPEN_KERNEL
    CGROUP_V2 = _CGROUP_V2 | _OPEN_KERNEL
    CGROUP_V1 = _CGROUP_V1 | _OPEN_KERNEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mount inside a container. `type` is "bind" or "tmpfs"; for a tmpfs `source` is "tmpfs"."""

    destination: str
    source: str
    type: str = "bind"
    options: tuple[str, ...] = READ_ONLY_BIND


def pod_env(uid: str, namespace: str, name: str) -> tuple[tuple[str, str], ...]:
    """The env by which the library's client says which pod it runs in."""
    return ((ENV_POD_NAME, name), (ENV_POD_NAMESPACE, namespace), (ENV_POD_UID, uid))


def scratch_mounts() -> tuple[Mount, ...]:
    """A tmpfs for each scratch directory: fresh at every start, nothing of it on the host's disk."""
    return tuple(Mount(destination=d, source="tmpfs", type="tmpfs", options=SCRATCH_TMPFS) for d in SCRATCH_DIRS)
