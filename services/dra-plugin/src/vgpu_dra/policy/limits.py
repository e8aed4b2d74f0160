"""Shares → the limits file of one container: capacity arithmetic, the compute policy, and which slot holds what."""

from __future__ import annotations

from collections.abc import Iterable

from vgpu_dra.inventory import WHOLE_CORES_PERCENT, Gpu, Inventory
from vgpu_dra.rules import Ratios
from vgpu_state.claims import Binding, ClaimRecord, ComputePolicy, Consumed, PreparedVgpu
from vgpu_state.errors import PreconditionFailed
from vgpu_state.ids import GpuUuid
from vgpu_state.vgpu_config import Limits, Slot

_NOTHING = Consumed(cores_percent=0, memory_bytes=0)


def container_limits(
    shares: Iterable[PreparedVgpu], *, record: ClaimRecord, holder: Binding, inventory: Inventory, ratios: Ratios
) -> Limits:
    """One slot per GPU, at its NVML index: the sum of this container's shares, capped at what the device is offered with.

    Raises:
        PreconditionFailed: a GPU of the claim is not on the node any more, is in MIG mode by now, or has no slot at its index of
            today.
    """
    sums: dict[GpuUuid, Consumed] = {}
    gpus: dict[GpuUuid, Gpu] = {}
    for share in shares:
        gpus[share.gpu_uuid] = _shared_gpu(share, where=f"claim {record.claim} request {share.request}", inventory=inventory)
        sums[share.gpu_uuid] = _added(sums.get(share.gpu_uuid, _NOTHING), share.consumed)
    return Limits(
        pod_uid=holder.pod.uid,
        pod_name=holder.pod.name,
        pod_namespace=holder.pod.namespace,
        container_name=holder.container,
        driver_version=inventory.driver_version,
        cuda_version=inventory.cuda_version,
        slots={gpu.index: _slot(gpu, sums[uuid], policy=record.policy, ratios=ratios) for uuid, gpu in gpus.items()},
    )


def _shared_gpu(share: PreparedVgpu, *, where: str, inventory: Inventory) -> Gpu:
    gpu = inventory.by_uuid(share.gpu_uuid)
    if gpu is None:
        raise PreconditionFailed(f"{where}: GPU {share.gpu_uuid} is not on this node any more")
    if gpu.is_mig:
        raise PreconditionFailed(f"{where}: GPU {gpu.uuid} is in MIG mode, where no share of it runs")
    if not gpu.has_slot:
        raise PreconditionFailed(f"{where}: GPU index {gpu.index} has no slot in the limits file (0 to 15)")
    return gpu


def _added(one: Consumed, other: Consumed) -> Consumed:
    return Consumed(cores_percent=one.cores_percent + other.cores_percent, memory_bytes=one.memory_bytes + other.memory_bytes)


def _slot(gpu: Gpu, total: Consumed, *, policy: ComputePolicy, ratios: Ratios) -> Slot:
    memory = min(total.memory_bytes, ratios.memory_bytes(gpu.memory_bytes))  # the library does not cap it
    cores = WHOLE_CORES_PERCENT if policy is ComputePolicy.NONE else min(total.cores_percent, WHOLE_CORES_PERCENT)
    is_elastic = policy is ComputePolicy.BALANCE and cores > 0
    return Slot(
        uuid=gpu.uuid,
        memory_bytes=memory,
        # Each share keeps the same part of itself on the GPU, so that all of them together fit there.
        real_memory_bytes=memory * 100 // max(ratios.memory_percent, 100),
        cores_percent=cores,
        ceiling_percent=WHOLE_CORES_PERCENT if is_elastic else cores,
    )
