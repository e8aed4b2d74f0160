"""May this container have what its grants say? Pure: everything it shows is compared with what the claim's record holds.

Nothing a container says is believed. A grant counts by its nonce, which only Prepare's CDI edits deliver; a nonce can be copied
by who can exec into its holder, so the container must also have been given the GPU's device node.
"""

from __future__ import annotations

import fnmatch
import hmac
import posixpath
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vgpu_dra import cdi
from vgpu_dra.inventory import Inventory
from vgpu_dra.policy import assigners
from vgpu_dra.policy.assigner import Granted
from vgpu_dra.rules import NodeRules
from vgpu_state import container_abi
from vgpu_state.claims import ClaimRecord, ClaimState, PodRef, PreparedVgpu
from vgpu_state.container_abi import Mount
from vgpu_state.errors import PermissionRefused, PreconditionFailed
from vgpu_state.grants import ShownGrant
from vgpu_state.ids import ClaimUid, ContainerName, RuntimeId

_NVIDIA_MAJOR = 195
_NVIDIA_CONTROL_MINOR = 255

OUR_DESTINATIONS = (
    container_abi.MANAGER_DIR,
    container_abi.REGISTRY_DIR,
    container_abi.LIBRARY,
    container_abi.HOST_PROC_DIR,
    container_abi.PRELOAD_LIST,
    container_abi.CONFIG_DIR,
    *container_abi.SCRATCH_DIRS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDevice:
    """A device node that the container is given."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFacts:
    """A container about to be created, as the runtime shows it after the CDI edits."""

    runtime_id: RuntimeId
    name: ContainerName
    pod: PodRef
    runtime_handler: str
    grants: tuple[ShownGrant, ...]
    mounts: tuple[Mount, ...]
    devices: tuple[ShownDevice, ...]
    allows_all_devices: bool

    def __str__(self) -> str:
        return f"container {self.name} of pod {self.pod}"


def claims_of(facts: ContainerFacts) -> tuple[ClaimUid, ...]:
    """The claims that the container shows grants of, ascending: its partition is in the lowest."""
    return tuple(sorted({g.claim_uid for g in facts.grants}))


def granted_of(facts: ContainerFacts, uid: ClaimUid, record: ClaimRecord | None) -> Granted:
    """What the container's grants of claim `uid` give, in the claim's order.

    Raises:
        PermissionRefused: the claim is not prepared here, or a grant is not one that Prepare gave.
    """
    if record is None or record.state is not ClaimState.PREPARED:
        raise PermissionRefused(f"{facts} shows a grant of claim {uid}, which is not prepared on this node")
    by_key = record.vgpu_by_key()
    shown = [g for g in facts.grants if g.claim_uid == uid]
    for grant in shown:
        result = by_key.get(grant.key)
        if (
            result is None
            or result.request != grant.request
            or not hmac.compare_digest(result.grant.nonce.encode(), grant.nonce.encode())
        ):
            raise PermissionRefused(f"{facts}: grant {grant.key} of claim {record.claim} is unknown; it was not given by Prepare")
    keys = {g.key for g in shown}
    return Granted(record=record, results=tuple(r for r in record.vgpus if r.grant.key in keys))


def check_container(facts: ContainerFacts, granted: Sequence[Granted], *, rules: NodeRules, inventory: Inventory) -> None:
    """Returns when nothing the container is given could widen its slice or reach into ours.

    Raises:
        PreconditionFailed, PermissionRefused: naming the container, what was found and what is allowed.
    """
    _check_handler(facts, rules)
    _check_privileged(facts, rules)
    _check_devices(facts, [result for g in granted for result in g.results], inventory)
    _check_mounts(facts, granted, rules)


def _check_handler(facts: ContainerFacts, rules: NodeRules) -> None:
    if not any(fnmatch.fnmatchcase(facts.runtime_handler, pattern) for pattern in rules.runtime_handlers):
        allowed = ", ".join(repr(p) for p in rules.runtime_handlers)
        raise PreconditionFailed(
            f"{facts} runs under runtime handler {facts.runtime_handler!r}, where mounts may not hold; allowed are {allowed} "
            "(--runtime-handlers)"
        )


def _check_privileged(facts: ContainerFacts, rules: NodeRules) -> None:
    has_writable_sys = any(m.destination == "/sys" and "ro" not in m.options for m in facts.mounts)
    if facts.allows_all_devices and has_writable_sys and not rules.allows_privileged:
        raise PreconditionFailed(
            f"{facts} is privileged (writable /sys, every device allowed): it could undo its limits and change the library of "
            "all others; make it unprivileged or set --allow-privileged=true"
        )


def _check_devices(facts: ContainerFacts, results: Collection[PreparedVgpu], inventory: Inventory) -> None:
    minor_by_gpu = {g.uuid: g.minor for g in inventory.gpus}
    granted = {minor_by_gpu.get(r.gpu_uuid): r for r in results}
    found = {minor for device in facts.devices for minor in _gpu_minors(device)}
    for minor, result in granted.items():
        if minor is None:
            raise PreconditionFailed(f"{facts}: GPU {result.gpu_uuid} of request {result.request} is not on this node any more")
        if minor not in found:
            raise PermissionRefused(
                f"{facts} shows a grant of request {result.request} and was not given its device /dev/nvidia{minor}: the grant "
                "is another container's"
            )
    if foreign := sorted(found - set(granted)):
        raise PreconditionFailed(
            f"{facts} also sees /dev/nvidia{foreign[0]}, for which it has no grant: the enforcement library stops a process that "
            "sees a GPU without limits; give the whole GPU, MIG device or host path that brings it to another container"
        )


def _gpu_minors(device: ShownDevice) -> set[int]:
    """The GPU that a node names, and the one that it opens by NVIDIA's major number, which may be another."""
    minors: set[int] = set()
    if match := cdi.GPU_NODE.match(_clean(device.path)):
        minors.add(int(match.group(1)))
    if device.major == _NVIDIA_MAJOR and 0 <= device.minor < _NVIDIA_CONTROL_MINOR - 1:
        minors.add(device.minor)
    return minors


def _check_mounts(facts: ContainerFacts, granted: Sequence[Granted], rules: NodeRules) -> None:
    # With the write protection: a hostPath volume may name our source and our destination, and be writable.
    ours = {
        (m.destination, m.source, _is_read_only(m))
        for g in granted
        for result in g.results
        for m in assigners.device_edits(g.record, result, rules=rules).mounts
    }
    for mount in facts.mounts:
        if (mount.destination, mount.source, _is_read_only(mount)) not in ours:
            _check_destination(facts, mount)
            _check_source(facts, mount, rules)


def _check_destination(facts: ContainerFacts, mount: Mount) -> None:
    place = _clean(mount.destination)
    if place == "/tmp":
        if _is_read_only(mount):
            raise PreconditionFailed(
                f"{facts} mounts a read-only volume at /tmp, where the enforcement library keeps its scratch; make it writable"
            )
        return
    for ours in OUR_DESTINATIONS:
        if _overlap(place, ours):
            raise PreconditionFailed(
                f"{facts} has a mount at {mount.destination!r}, which would hide or replace ours at {ours}; choose another "
                "mountPath"
            )


def _check_source(facts: ContainerFacts, mount: Mount, rules: NodeRules) -> None:
    if not mount.source.startswith("/") or not _is_bind(mount):
        return
    for private in rules.private_paths:
        if any(_overlap(a, b) for a in _spellings(mount.source) for b in _spellings(private)):
            raise PreconditionFailed(
                f"{facts} mounts host path {mount.source!r}, which reaches {private}: no container may see the node's vGPU, "
                "CDI or kubelet plug-in files"
            )


def _overlap(one: str, other: str) -> bool:
    return one == other or is_below(one, other) or is_below(other, one)


def _spellings(path: str) -> tuple[str, ...]:
    """The clean path, and the same below /run where it leads through /var/run, which is a link to there (FHS 3.0, 5.13)."""
    clean = _clean(path)
    if clean == "/var/run" or is_below(clean, "/var/run"):
        return clean, clean.removeprefix("/var")
    return (clean,)


def _clean(path: str) -> str:
    """An absolute path without dots and doubled slashes; normpath alone keeps two in front, as POSIX lets it."""
    return posixpath.normpath("/" + path.lstrip("/"))


def _is_read_only(mount: Mount) -> bool:
    return "rw" not in mount.options and ("ro" in mount.options or "rro" in mount.options)


def _is_bind(mount: Mount) -> bool:
    return mount.type in ("", "bind", "none") or "bind" in mount.options or "rbind" in mount.options


def is_below(path: str, parent: str) -> bool:
    """Whether a clean absolute path lies strictly below another."""
    return path != parent and path.startswith(parent.rstrip("/") + "/")
