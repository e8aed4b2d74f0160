"""Shares → the limits file of one container: capacity arithmetic, and which slot holds what."""

from __future__ import annotations

from collections.abc import Iterable

from vgpu_dra.inventory import WHOLE_CORES_PERCENT, Gpu, Inventory
from vgpu_state.claims import ClaimRef, PodRef, PreparedVgpu
from vgpu_state.errors import PreconditionFailed
from vgpu_state.ids import ContainerName
from vgpu_state.vgpu_config import Limits, Slot


def container_limits(
    shares: Iterable[PreparedVgpu], *, claim: ClaimRef, pod: PodRef, container: ContainerName, inventory: Inventory
) -> Limits:
    """One slot per GPU, at its NVML index: the sum of this container's shares, capped at the device.

    Raises:
        PreconditionFailed: a GPU of the claim is not on the node any more, or has no slot at its index of today.
    """
    slots: dict[int, Slot] = {}
    for share in shares:
        gpu = inventory.by_uuid(share.gpu_uuid)
        if gpu is None:
            raise PreconditionFailed(f"claim {claim} request {share.request}: GPU {share.gpu_uuid} is not on this node any more")
        if not gpu.has_slot:
            raise PreconditionFailed(
                f"claim {claim} request {share.request}: GPU index {gpu.index} has no slot in the limits file (0 to 15)"
            )
        slots[gpu.index] = _added(slots.get(gpu.index), share, gpu)
    return Limits(
        pod_uid=pod.uid,
        pod_name=pod.name,
        pod_namespace=pod.namespace,
        container_name=container,
        driver_version=inventory.driver_version,
        cuda_version=inventory.cuda_version,
        slots=slots,
    )


def _added(slot: Slot | None, share: PreparedVgpu, gpu: Gpu) -> Slot:
    memory = share.consumed.memory_bytes + (slot.memory_bytes if slot else 0)
    cores = share.consumed.cores_percent + (slot.cores_percent if slot else 0)
    return Slot(
        uuid=gpu.uuid,
        memory_bytes=min(memory, gpu.memory_bytes),  # the library does not cap it
        cores_percent=min(cores, WHOLE_CORES_PERCENT),
    )
