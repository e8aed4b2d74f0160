"""Shares → the limits file of one container: capacity arithmetic, the compute policy, and which slot holds what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vgpu_dra.inventory import WHOLE_CORES_PERCENT, Gpu, Inventory
from vgpu_dra.policy.assigner import Granted
from vgpu_dra.rules import Ratios
from vgpu_state.claims import ComputePolicy, Consumed, PodRef, PreparedVgpu
from vgpu_state.errors import PreconditionFailed
from vgpu_state.ids import GpuUuid
from vgpu_state.vgpu_config import Limits, Slot

_STRICTEST_FIRST = (ComputePolicy.FIXED, ComputePolicy.BALANCE, ComputePolicy.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Whose limits they are. `container` is "" where several of the pod take turns; "" where nothing registers by UUID."""

    pod: PodRef
    container: str
    register_uuid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """One share of a GPU, and what its claim says of compute."""

    gpu: Gpu
    consumed: Consumed
    policy: ComputePolicy


def container_limits(granted: Sequence[Granted], *, holder: Holder, inventory: Inventory, ratios: Ratios) -> Limits:
    """One slot per GPU, at its NVML index: the sum of the shares, capped at what the device is offered with.

    Where shares of one GPU come from claims with different policies the strictest holds for it.

    Raises:
        PreconditionFailed: a GPU of the claim is not on the node any more, is in MIG mode by now, or has no slot at its index of
            today.
    """
    shares: dict[GpuUuid, list[_Share]] = {}
    for g in granted:
        for result in g.results:
            gpu = _shared_gpu(result, where=f"claim {g.record.claim} request {result.request}", inventory=inventory)
            shares.setdefault(gpu.uuid, []).append(_Share(gpu=gpu, consumed=result.consumed, policy=g.record.policy))
    return Limits(
        pod_uid=holder.pod.uid,
        pod_name=holder.pod.name,
        pod_namespace=holder.pod.namespace,
        container_name=holder.container,
        register_uuid=holder.register_uuid,
        driver_version=inventory.driver_version,
        cuda_version=inventory.cuda_version,
        compatibility_mode=granted[0].record.compatibility.value,
        slots={of_gpu[0].gpu.index: _slot(of_gpu, ratios=ratios) for of_gpu in shares.values()},
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


def _slot(shares: Sequence[_Share], *, ratios: Ratios) -> Slot:
    gpu, policy = shares[0].gpu, strictest(s.policy for s in shares)
    # The library caps neither.
    memory = min(sum(s.consumed.memory_bytes for s in shares), ratios.memory_bytes(gpu.memory_bytes))
    percent = min(sum(s.consumed.cores_percent for s in shares), WHOLE_CORES_PERCENT)
    cores = WHOLE_CORES_PERCENT if policy is ComputePolicy.NONE else percent
    is_elastic = policy is ComputePolicy.BALANCE and cores > 0
    return Slot(
        uuid=gpu.uuid,
        memory_bytes=memory,
        # Each share keeps the same part of itself on the GPU, so that all of them together fit there.
        real_memory_bytes=memory * 100 // max(ratios.memory_percent, 100),
        cores_percent=cores,
        ceiling_percent=WHOLE_CORES_PERCENT if is_elastic else cores,
    )


def strictest(policies: Iterable[ComputePolicy]) -> ComputePolicy:
    """The one that takes least from the GPU's other users."""
    return min(policies, key=_STRICTEST_FIRST.index)
