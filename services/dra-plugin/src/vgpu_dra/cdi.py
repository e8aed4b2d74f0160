"""A claim's record → the CDI file that the runtime reads. Names and documents only; writing it is an effect.

Everything is a *device* edit, so that a container sees what it was given and nothing of its claim's other devices. Only a share
of a GPU comes with edits of ours, which `policy.assigners` says; a whole GPU and a MIG device are nodes and libraries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, assert_never

from vgpu_state.claims import ClaimRecord, PreparedGpu, PreparedMig, PreparedResult, PreparedVgpu
from vgpu_state.container_abi import Mount
from vgpu_state.ids import ClaimUid, DeviceName, GpuUuid, GrantKey, MigUuid, RequestName, ShareId

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
class Edits:
    """What a container is given: mounts, and env by name and value."""

    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


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


def encode_spec(record: ClaimRecord, *, files: NodeFiles, edits: Mapping[GrantKey, Edits]) -> bytes:
    """The CDI file of a prepared claim; `edits` are what each share comes with. Equal inputs give equal bytes."""
    devices = [
        {"name": result.cdi_device, "containerEdits": _edits(result, files=files, own=_own_edits(result, edits))}
        for result in record.results
    ]
    return json.dumps({"cdiVersion": VERSION, "kind": KIND, "devices": devices}, indent=2).encode()


def _own_edits(result: PreparedResult, edits: Mapping[GrantKey, Edits]) -> Edits:
    return edits[result.grant.key] if isinstance(result, PreparedVgpu) else Edits()


def _edits(result: PreparedResult, *, files: NodeFiles, own: Edits) -> dict[str, Any]:
    env = [f"{name}={value}" for name, value in own.env]
    if files.libraries:
        # `void` keeps the legacy NVIDIA hook, where one is installed, from adding every GPU.
        env += [f"LD_LIBRARY_PATH={LIBRARY_DIR}", "NVIDIA_VISIBLE_DEVICES=void"]
    nodes = (*_device_nodes(result, files), *files.control_nodes)
    return {
        "env": env,
        "deviceNodes": [_node(n) for n in nodes],
        "mounts": [_mount(m) for m in (*own.mounts, *files.libraries)],
    }


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
    doc: dict[str, Any] = {"hostPath": mount.source, "containerPath": mount.destination, "options": list(mount.options)}
    return doc if mount.type == "bind" else doc | {"type": mount.type}


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
