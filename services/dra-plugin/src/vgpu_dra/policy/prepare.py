"""What Prepare does: pure. ABSENT → STARTED → PREPARED; a repetition of Prepare changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vgpu_dra import cdi
from vgpu_dra.allocation import AllocatedResult, Allocation
from vgpu_dra.inventory import WHOLE_CORES_PERCENT, Inventory
from vgpu_state import grants
from vgpu_state.claims import AssignmentMode, ClaimRecord, ClaimState, Consumed, Grant, PreparedResult
from vgpu_state.errors import MalformedInput, PreconditionFailed
from vgpu_state.ids import Nonce


def plan_prepare(
    allocation: Allocation, *, existing: ClaimRecord | None, inventory: Inventory, boot_id: str, mint: Callable[[], Nonce]
) -> ClaimRecord:
    """The record that Prepare ends with, in state STARTED or, when the claim is prepared already, as it is.

    An interrupted Prepare is gone on with under the same grants.

    Raises:
        PreconditionFailed: the claim is prepared with other devices, or a device is not on this node.
        MalformedInput: a share that the device cannot give.
    """
    results = tuple(_prepared(r, allocation=allocation, inventory=inventory, mint=mint) for r in allocation.results)
    if len({r.grant.key for r in results}) < len(results):
        raise MalformedInput(f"claim {allocation.claim} has the same request, device and shareID twice in its allocation")
    if existing is not None and _same_devices(existing.results, results):
        return existing
    if existing is not None and existing.state is ClaimState.PREPARED:
        raise PreconditionFailed(
            f"claim {allocation.claim} is prepared with {_devices(existing.results)}, its allocation now says "
            f"{_devices(results)}: it must be unprepared first"
        )
    return ClaimRecord(
        claim=allocation.claim, boot_id=boot_id, state=ClaimState.STARTED, mode=AssignmentMode.LAZY, results=results
    )


def completed(record: ClaimRecord) -> ClaimRecord:
    """The record once all side effects are there."""
    return record if record.state is ClaimState.PREPARED else replace(record, state=ClaimState.PREPARED)


def _prepared(
    result: AllocatedResult, *, allocation: Allocation, inventory: Inventory, mint: Callable[[], Nonce]
) -> PreparedResult:
    gpu = inventory.by_device(result.device)
    if gpu is None:
        known = ", ".join(g.vgpu_device for g in inventory.gpus) or "none"
        raise PreconditionFailed(
            f"claim {allocation.claim} request {result.request}: device {result.device} is not on this node, which has {known}"
        )
    if not gpu.has_slot:
        raise PreconditionFailed(
            f"claim {allocation.claim} request {result.request}: GPU index {gpu.index} has no slot in the limits file (0 to 15)"
        )
    uid = allocation.claim.uid
    return PreparedResult(
        request=result.request,
        pool=result.pool,
        device=result.device,
        share_id=result.share_id,
        consumed=_consumed(result, where=f"claim {allocation.claim} request {result.request}", memory_bytes=gpu.memory_bytes),
        gpu_uuid=gpu.uuid,
        cdi_device=cdi.device_name(claim_uid=uid, request=result.request, device=result.device, share_id=result.share_id),
        grant=Grant(
            key=grants.grant_key(
                claim_uid=uid, request=result.request, pool=result.pool, device=result.device, share_id=result.share_id
            ),
            nonce=mint(),
        ),
    )


def _consumed(result: AllocatedResult, *, where: str, memory_bytes: int) -> Consumed:
    cores = WHOLE_CORES_PERCENT if result.cores_percent is None else result.cores_percent
    memory = memory_bytes if result.memory_bytes is None else result.memory_bytes
    if cores > WHOLE_CORES_PERCENT:
        raise MalformedInput(f"{where}: cores is {cores}; a GPU has 0 to {WHOLE_CORES_PERCENT} percent")
    if not 0 < memory <= memory_bytes:
        raise MalformedInput(f"{where}: memory is {memory} bytes; {result.device} has 1 to {memory_bytes}")
    return Consumed(cores_percent=cores, memory_bytes=memory)


def _same_devices(one: tuple[PreparedResult, ...], other: tuple[PreparedResult, ...]) -> bool:
    """Whether two preparations give the same shares of the same GPUs; the nonces are drawn anew each time."""
    return [_identity(r) for r in one] == [_identity(r) for r in other]


def _identity(result: PreparedResult) -> tuple[object, ...]:
    return result.grant.key, result.consumed, result.gpu_uuid


def _devices(results: tuple[PreparedResult, ...]) -> str:
    return ", ".join(f"{r.request}={r.device}" for r in results)
