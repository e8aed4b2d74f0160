"""A claim's record → the CDI file that the runtime reads. Names and documents only; writing it is an effect.

Everything is a *device* edit, so that a container sees what it was given and nothing of its claim's other devices. Only a share
of a GPU comes with a grant, the enforcement library and the poison mount; a whole GPU and a MIG device are nodes and libraries.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, assert_never

from vgpu_state import container_abi, grants
from vgpu_state.claims import ClaimRecord, PreparedGpu, PreparedMig, PreparedResult, PreparedVgpu
from vgpu_state.container_abi import Mount
from vgpu_state.ids import ClaimUid, DeviceName, GpuUuid, MigUuid, RequestName, ShareId
from vgpu_state.layout import Layout

VERSION = "0.5.0"  # the lowest that lets a device's name begin with a digit and a node have a hostPath
VENDOR = "k8s.manager.nvidia.com"
KIND = f"{VENDOR}/claim"
FILE_PREFIX = f"{VENDOR}-claim_"
FILE_SUFFIX = ".json"
GPU_NODE = re.compile(r"/dev/nvidia(\d+)\Z", re.ASCII)
LIBRARY_DIR = "/usr/local/nvidia/lib64"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device node: its path in the container and on the host."""

    path: str
    host_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFiles:
    """What of the driver is on this node: control nodes, each GPU's node, the libraries to mount.

    `caps_by_mig` are the nodes that open a MIG device's GPU instance and compute instance.
    """

    control_nodes: tuple[DeviceNode, ...] = ()
    node_by_gpu: dict[GpuUuid, DeviceNode] = field(default_factory=dict)
    caps_by_mig: dict[MigUuid, tuple[DeviceNode, ...]] = field(default_factory=dict)
    libraries: tuple[Mount, ...] = ()


def device_name(*, claim_uid: ClaimUid, request: RequestName, device: DeviceName, share_id: ShareId) -> str:
    """The device's name within the file, unique in the claim. A request's slash, which CDI forbids, becomes an underscore."""
    parts = [claim_uid, request.replace("/", "_"), device, share_id]
    return "-".join(part for part in parts if part)


def device_id(name: str) -> str:
    """The qualified name that kubelet passes to the runtime."""
    return f"{KIND}={name}"


def file_name(uid: ClaimUid) -> str:
    return f"{FILE_PREFIX}{uid}{FILE_SUFFIX}"


def claim_mounts(uid: ClaimUid, *, host: Layout, library_version: str) -> tuple[Mount, ...]:
    """What a container of a lazily prepared claim is given before NRI adds its own: the library set and the poison.

    The poison's source never exists. NRI's mount at the same destination replaces it; where NRI is away the start fails.
    """
    return (
        Mount(destination=container_abi.MANAGER_DIR, source=str(host.skeleton)),
        # Never noexec: the device-client in it must run.
        Mount(destination=container_abi.REGISTRY_DIR, source=str(host.registry)),
        Mount(destination=container_abi.LIBRARY, source=str(host.library(library_version))),
        Mount(destination=container_abi.PRELOAD_LIST, source=str(host.preload_list)),
        Mount(destination=container_abi.CONFIG_DIR, source=str(host.poison(uid))),
    )


def encode_spec(record: ClaimRecord, *, files: NodeFiles, host: Layout, library_version: str) -> bytes:
    """The CDI file of a prepared claim. Equal inputs give equal bytes."""
    if record.eager is not None:
        raise ValueError(f"no CDI edits for mode {record.mode}")
    mounts = claim_mounts(record.claim.uid, host=host, library_version=library_version)
    devices = [
        {"name": result.cdi_device, "containerEdits": _edits(record, result, files=files, mounts=mounts)}
        for result in record.results
    ]
    return json.dumps({"cdiVersion": VERSION, "kind": KIND, "devices": devices}, indent=2).encode()


def _edits(record: ClaimRecord, result: PreparedResult, *, files: NodeFiles, mounts: tuple[Mount, ...]) -> dict[str, Any]:
    env, own_mounts = _vgpu_edits(record, result, mounts) if isinstance(result, PreparedVgpu) else ([], ())
    if files.libraries:
        # `void` keeps the legacy NVIDIA hook, where one is installed, from adding every GPU.
        env += [f"LD_LIBRARY_PATH={LIBRARY_DIR}", "NVIDIA_VISIBLE_DEVICES=void"]
    nodes = (*_device_nodes(result, files), *files.control_nodes)
    return {
        "env": env,
        "deviceNodes": [_node(n) for n in nodes],
        "mounts": [_mount(m) for m in (*own_mounts, *files.libraries)],
    }


def _vgpu_edits(record: ClaimRecord, result: PreparedVgpu, mounts: tuple[Mount, ...]) -> tuple[list[str], tuple[Mount, ...]]:
    uid = record.claim.uid
    env = [
        grants.encode_grant_env(key=result.grant.key, claim_uid=uid, request=result.request, nonce=result.grant.nonce),
        f"{container_abi.ENV_CLAIM_UID}={uid}",
        f"{container_abi.ENV_COMPATIBILITY_MODE}={record.compatibility.value}",
    ]
    return env, mounts


def _device_nodes(result: PreparedResult, files: NodeFiles) -> tuple[DeviceNode, ...]:
    gpu = files.node_by_gpu[result.gpu_uuid]
    match result:
        case PreparedVgpu() | PreparedGpu():
            return (gpu,)
        case PreparedMig(mig_uuid=mig_uuid):
            return (gpu, *files.caps_by_mig[mig_uuid])
        case never:
            assert_never(never)


def _node(node: DeviceNode) -> dict[str, str]:
    return {"path": node.path} if node.path == node.host_path else {"path": node.path, "hostPath": node.host_path}


def _mount(mount: Mount) -> dict[str, Any]:
    return {"hostPath": mount.source, "containerPath": mount.destination, "options": list(mount.options)}


def claim_of_file(name: str) -> str | None:
    """The claim uid in a file name of ours, as text; None for another's file."""
    if not (name.startswith(FILE_PREFIX) and name.endswith(FILE_SUFFIX)):
        return None
    return name[len(FILE_PREFIX) : -len(FILE_SUFFIX)]


def gpu_minors(spec: bytes) -> frozenset[int]:
    """The GPUs whose nodes a CDI file of ours gives, by minor number; none where it is not to be read."""
    try:
        paths = [node["path"] for device in json.loads(spec)["devices"] for node in device["containerEdits"]["deviceNodes"]]
        return frozenset(int(match.group(1)) for path in paths if (match := GPU_NODE.match(path)))
    except (ValueError, KeyError, TypeError, RecursionError):
        return frozenset()


def is_temporary(name: str) -> bool:
    """Whether a file of the CDI directory is an unfinished write of ours."""
    return name.startswith(f".{FILE_PREFIX}")


def spec_path(directory: PurePosixPath, uid: ClaimUid) -> PurePosixPath:
    return directory / file_name(uid)
