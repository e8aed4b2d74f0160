"""What Prepare does: pure. ABSENT → STARTED → PREPARED; a repetition of Prepare changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, assert_never

from vgpu_dra import cdi, device_config
from vgpu_dra.allocation import AllocatedResult, Allocation
from vgpu_dra.inventory import Device, Inventory, MigDevice
from vgpu_dra.rules import Ratios
from vgpu_state import grants
from vgpu_state.claims import (
    ClaimRecord,
    ClaimState,
    Consumed,
    DeviceKind,
    Grant,
    PreparedGpu,
    PreparedMig,
    PreparedResult,
    PreparedVgpu,
)
from vgpu_state.container_abi import CompatibilityMode
from vgpu_state.errors import MalformedInput, PreconditionFailed
from vgpu_state.ids import GrantKey, Nonce


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNow:
    """This node at the moment of a Prepare: its GPUs, how much of them is given away, in shares too, which boot it is.

    `compatibility`: how the library of new containers tells its processes.
    """

    inventory: Inventory
    ratios: Ratios
    boot_id: str
    has_shares: bool = True
    compatibility: CompatibilityMode = CompatibilityMode.CLIENT


def plan_prepare(
    allocation: Allocation, *, existing: ClaimRecord | None, node: NodeNow, mint: Callable[[], Nonce]
) -> ClaimRecord:
    """The record that Prepare ends with, in state STARTED or, when the claim is prepared already, as it is.

    An interrupted Prepare is gone on with under the same grants.

    Raises:
        PreconditionFailed: the claim is prepared with other devices or is being deleted, a device is not on this node, or a
            configuration asks for what this node does not do.
        MalformedInput: a share that the device cannot give, or a configuration of another type of device.
    """
    if existing is not None and _is_allocated(existing, allocation, node.inventory):
        return existing
    if allocation.is_being_deleted:
        # A prepared claim is asked for again when a node or a sandbox comes back, and its pods keep it until they end.
        raise PreconditionFailed(f"claim {allocation.claim} is being deleted: it is not prepared for further pods")
    results = tuple(_prepared(r, allocation=allocation, node=node, mint=mint) for r in allocation.results)
    if len({_key(r, allocation) for r in allocation.results}) < len(results):
        raise MalformedInput(f"claim {allocation.claim} has the same request, device and shareID twice in its allocation")
    if existing is not None and existing.state is ClaimState.PREPARED:
        raise PreconditionFailed(
            f"claim {allocation.claim} is prepared with {_devices(existing.results)}, its allocation now says "
            f"{_devices(results)}: it must be unprepared first"
        )
    _check_configs(allocation, results)
    return ClaimRecord(
        claim=allocation.claim,
        boot_id=node.boot_id,
        state=ClaimState.STARTED,
        policy=allocation.policy,
        compatibility=node.compatibility if any(isinstance(r, PreparedVgpu) for r in results) else CompatibilityMode.CLIENT,
        results=results,
    )


def completed(record: ClaimRecord) -> ClaimRecord:
    """The record once all side effects are there."""
    return record if record.state is ClaimState.PREPARED else replace(record, state=ClaimState.PREPARED)


def _prepared(result: AllocatedResult, *, allocation: Allocation, node: NodeNow, mint: Callable[[], Nonce]) -> PreparedResult:
    where = _where(result, allocation)
    device = _device(result, where=where, inventory=node.inventory)
    common: dict[str, Any] = {
        "request": result.request,
        "pool": result.pool,
        "device": result.device,
        "share_id": result.share_id,
        "gpu_uuid": device.gpu.uuid,
        "cdi_device": cdi.device_name(
            claim_uid=allocation.claim.uid, request=result.request, device=result.device, share_id=result.share_id
        ),
    }
    match device:
        case Device(kind=DeviceKind.VGPU):
            if not node.has_shares:
                raise PreconditionFailed(
                    f"{where}: {result.device} is a share of a GPU, and this node gives none: its feature gate VGPUSupport is off"
                )
            if not device.gpu.has_slot:
                raise PreconditionFailed(f"{where}: GPU index {device.gpu.index} has no slot in the limits file (0 to 15)")
            return PreparedVgpu(
                **common,
                consumed=_consumed(result, where=where, memory_bytes=device.gpu.memory_bytes, ratios=node.ratios),
                grant=Grant(key=_key(result, allocation), nonce=mint()),
            )
        case Device(kind=DeviceKind.GPU):
            return PreparedGpu(**common, has_admin_access=result.has_admin_access)
        case Device(kind=DeviceKind.MIG, mig=MigDevice(uuid=mig_uuid)):
            return PreparedMig(**common, mig_uuid=mig_uuid)
    raise AssertionError(f"a MIG device without its instances: {device}")


def _device(result: AllocatedResult, *, where: str, inventory: Inventory) -> Device:
    """What the result's device stands for, where it may be given now."""
    devices = inventory.devices()
    device = devices.get(result.device)
    if device is None:
        kind = result.device.partition("-")[0]
        known = ", ".join(name for name in devices if name.startswith(f"{kind}-")) or "none"
        raise PreconditionFailed(f"{where}: device {result.device} is not on this node, which has {known}")
    if result.has_admin_access and device.kind is not DeviceKind.GPU:
        raise PreconditionFailed(f"{where}: {result.device} is asked for with adminAccess, which only whole GPUs offer")
    if device.gpu.is_mig and device.kind is not DeviceKind.MIG and not result.has_admin_access:
        raise PreconditionFailed(f"{where}: GPU {device.gpu.uuid} is in MIG mode, where nothing runs on it but its MIG devices")
    return device


def _where(result: AllocatedResult, allocation: Allocation) -> str:
    return f"claim {allocation.claim} request {result.request}"


def _check_configs(allocation: Allocation, results: tuple[PreparedResult, ...]) -> None:
    for result in results:
        try:
            config = device_config.effective_config(allocation.configs, request=result.request, kind=result.kind)
            if config is None:
                continue
            device_config.check_supported(config)
        except (MalformedInput, PreconditionFailed) as exc:
            raise type(exc)(f"claim {allocation.claim} {exc}") from exc
        if isinstance(result, PreparedGpu) and result.has_admin_access:
            raise PreconditionFailed(
                f"claim {allocation.claim} {config.where} is for request {result.request}, which has adminAccess: who looks on "
                "configures nothing"
            )


def _key(result: AllocatedResult, allocation: Allocation) -> GrantKey:
    return grants.grant_key(
        claim_uid=allocation.claim.uid,
        request=result.request,
        pool=result.pool,
        device=result.device,
        share_id=result.share_id,
    )


def _consumed(result: AllocatedResult, *, where: str, memory_bytes: int, ratios: Ratios) -> Consumed:
    most_cores, most_memory = ratios.share_cores_percent, ratios.memory_bytes(memory_bytes)
    cores = most_cores if result.cores_percent is None else result.cores_percent
    memory = most_memory if result.memory_bytes is None else result.memory_bytes
    if cores > most_cores:
        raise MalformedInput(f"{where}: cores is {cores}; a share of {result.device} has 0 to {most_cores} percent")
    if not 0 < memory <= most_memory:
        raise MalformedInput(f"{where}: memory is {memory} bytes; {result.device} has 1 to {most_memory}")
    return Consumed(cores_percent=cores, memory_bytes=memory)


def _is_allocated(existing: ClaimRecord, allocation: Allocation, inventory: Inventory) -> bool:
    """Whether a record holds what the allocation says, by the devices' names of now.

    What the claim omits is not compared: it was the whole, and what that is the operator may have changed since.
    """
    return len(existing.results) == len(allocation.results) and all(
        _is_same(prepared, result, _device(result, where=_where(result, allocation), inventory=inventory))
        for prepared, result in zip(existing.results, allocation.results, strict=True)
    )


def _is_same(prepared: PreparedResult, result: AllocatedResult, device: Device) -> bool:
    place = (prepared.request, prepared.pool, prepared.device, prepared.share_id, prepared.gpu_uuid, prepared.kind)
    if place != (result.request, result.pool, result.device, result.share_id, device.gpu.uuid, device.kind):
        return False
    match prepared:
        case PreparedVgpu(consumed=consumed):
            return result.cores_percent in (None, consumed.cores_percent) and result.memory_bytes in (None, consumed.memory_bytes)
        case PreparedGpu(has_admin_access=has_admin_access):
            return has_admin_access == result.has_admin_access
        case PreparedMig(mig_uuid=mig_uuid):
            return device.mig is not None and device.mig.uuid == mig_uuid
        case never:
            assert_never(never)


def _devices(results: tuple[PreparedResult, ...]) -> str:
    return ", ".join(f"{r.request}={r.device}" for r in results)
