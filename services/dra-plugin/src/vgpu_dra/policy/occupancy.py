"""May a claim have its GPUs beside the other claims of this node? Pure: the last guard behind the scheduler.

A GPU is used in one way at a time: in shares, whole, or as MIG devices. A whole GPU and a MIG device belong to one claim; the
shares of a GPU together stay within what is given away of it. Admin access is beside all that: it neither holds nor is held off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from vgpu_dra.policy.prepare import NodeNow
from vgpu_state.claims import ClaimRecord, ClaimRef, DeviceKind, PreparedGpu, PreparedMig, PreparedResult, PreparedVgpu
from vgpu_state.errors import PreconditionFailed
from vgpu_state.ids import ClaimUid, GpuUuid

_MOST_NAMED = 5  # holders in a message; an Event has 1024 characters
_WAYS = {DeviceKind.VGPU: "in shares", DeviceKind.GPU: "whole", DeviceKind.MIG: "as MIG devices"}


class DeviceInUse(PreconditionFailed):
    """Raised when another claim holds what is asked for. kubelet may unprepare that one at any moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """One result of a claim, and whose it is."""

    claim: ClaimRef
    result: PreparedResult

    def __str__(self) -> str:
        what = str(self.result.device)
        if isinstance(self.result, PreparedVgpu):
            what += f" ({self.result.consumed.cores_percent} cores, {self.result.consumed.memory_bytes} bytes)"
        return f"{what} by claim {self.claim} request {self.result.request}"


def check_free(record: ClaimRecord, *, others: Iterable[ClaimRecord], blocked: Mapping[GpuUuid, ClaimUid], node: NodeNow) -> None:
    """Returns when every result of `record` fits beside those of the other claims and beside each other.

    `blocked` are GPUs of which nobody can say how they are used, and the claim that has them.

    Raises:
        DeviceInUse: naming the GPU, who holds it and what of it.
        PreconditionFailed: a GPU is blocked.
    """
    wanted = {result.gpu_uuid for result in record.results}
    held = [
        _Held(claim=other.claim, result=result)
        for other in others
        for result in other.results
        if result.gpu_uuid in wanted and _holds(result)
    ]
    for result in filter(_holds, record.results):
        asked = _Held(claim=record.claim, result=result)
        _check_blocked(asked, blocked)
        beside = [h for h in held if h.result.gpu_uuid == result.gpu_uuid]
        _check_way(asked, beside)
        if isinstance(result, PreparedVgpu):
            _check_sum(asked, beside, node=node)
        held.append(asked)


def _holds(result: PreparedResult) -> bool:
    return not (isinstance(result, PreparedGpu) and result.has_admin_access)


def _check_blocked(asked: _Held, blocked: Mapping[GpuUuid, ClaimUid]) -> None:
    if (uid := blocked.get(asked.result.gpu_uuid)) is not None:
        raise PreconditionFailed(
            f"claim {asked.claim} request {asked.result.request}: GPU {asked.result.gpu_uuid} counts as fully used by claim "
            f"{uid}, which is quarantined; delete its pods to unprepare it"
        )


def _check_way(asked: _Held, beside: Collection[_Held]) -> None:
    for other in beside:
        if _excludes(asked.result, other.result):
            raise DeviceInUse(
                f"claim {asked.claim} request {asked.result.request}: {asked.result.device} cannot be given: GPU "
                f"{asked.result.gpu_uuid} is in use {_WAYS[other.result.kind]}: {other}; it is free once that is unprepared"
            )


def _excludes(one: PreparedResult, other: PreparedResult) -> bool:
    match one, other:
        case PreparedVgpu(), PreparedVgpu():
            return False
        case PreparedMig(mig_uuid=wanted), PreparedMig(mig_uuid=held):
            return wanted == held
        case _:
            return True


def _check_sum(asked: _Held, beside: Collection[_Held], *, node: NodeNow) -> None:
    gpu = node.inventory.by_uuid(asked.result.gpu_uuid)
    if gpu is None:
        raise PreconditionFailed(
            f"claim {asked.claim} request {asked.result.request}: GPU {asked.result.gpu_uuid} is not on this node any more"
        )
    consumed = [h.result.consumed for h in (*beside, asked) if isinstance(h.result, PreparedVgpu)]
    for name, total, most in (
        ("cores", sum(c.cores_percent for c in consumed), node.ratios.cores_percent),
        ("memory", sum(c.memory_bytes for c in consumed), node.ratios.memory_bytes(gpu.memory_bytes)),
    ):
        if total > most:
            raise DeviceInUse(
                f"claim {asked.claim} request {asked.result.request}: {asked.result.device} would give away {total} of its "
                f"{most} {name}; it is held as {_named(beside)}"
            )


def _named(held: Collection[_Held]) -> str:
    named = ", ".join(str(h) for h in list(held)[:_MOST_NAMED])
    return named if len(held) <= _MOST_NAMED else f"{named} and {len(held) - _MOST_NAMED} more"
