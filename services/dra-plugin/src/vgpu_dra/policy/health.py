"""What was heard and read of a GPU → how it is, which taints its devices have, when they go again. Pure.

A GPU is tainted by what happened to it and heals by a stated rule: `CLEAN_POLLS` looks in a row at which it answers, nothing new
was heard, its count of uncorrectable errors has not risen, and the driver asks for no recovery (where the driver cannot say:
no row or page of its memory waits for a reset). A taint is never dropped for another reason than this rule or a reboot.

Source of the keys xid, gpu-lost and unmonitored: vgpu-manager pkg/kubeletplugin/driver.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from vgpu_dra import inventory
from vgpu_dra.policy.xids import XidClass
from vgpu_dra.readings import NO_RECOVERY, Reading
from vgpu_dra.taints import Taint, TaintEffect, Taints
from vgpu_state.ids import GpuUuid

CLEAN_POLLS = 3

XID = f"{inventory.DRIVER}/xid"
ECC = f"{inventory.DRIVER}/ecc"
LOST = f"{inventory.DRIVER}/gpu-lost"
RECOVERY = f"{inventory.DRIVER}/recovery-action"
UNMONITORED = f"{inventory.DRIVER}/unmonitored"
KEYS = (XID, ECC, LOST, RECOVERY, UNMONITORED)

_UNCORRECTABLE = "uncorrectable"
# Source: nvml.h, nvmlDeviceGpuRecoveryAction_t.
_ACTIONS = {
    1: "gpu-reset",
    2: "node-reboot",
    3: "drain-p2p",
    4: "drain-and-reset",
    5: "recover-imex-domain",
    6: "bus-reset",
    7: "system-reboot",
}


class Condition(Enum):
    """How a device is, in kubelet's words."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHealth:
    """One GPU. The XIDs are the first of each class since it was last clean: what began it, and no write for each that follows.

    `is_silent` NVML hangs, so that nothing can be said. `uncorrected_errors` is the count that was said last. The two counts of
    looks begin anew with each process; what they end does not.
    """

    critical_xid: int | None = None
    benign_xid: int | None = None
    has_ecc_error: bool = False
    recovery_action: int = NO_RECOVERY
    is_lost: bool = False
    is_unmonitored: bool = False
    uncorrected_errors: int | None = None
    is_silent: bool = False
    was_heard: bool = False
    clean_polls: int = 0
    answered_polls: int = 0

    @property
    def taints(self) -> tuple[Taint, ...]:
        """One taint per key, strongest effect first."""
        found = [
            (self.critical_xid is not None, Taint(key=XID, value=str(self.critical_xid), effect=TaintEffect.NO_SCHEDULE)),
            (self.has_ecc_error, Taint(key=ECC, value=_UNCORRECTABLE, effect=TaintEffect.NO_SCHEDULE)),
            (self.is_lost, Taint(key=LOST, value="", effect=TaintEffect.NO_SCHEDULE)),
            (
                self.recovery_action != NO_RECOVERY,
                Taint(key=RECOVERY, value=_action(self.recovery_action), effect=TaintEffect.NO_SCHEDULE),
            ),
            (
                self.critical_xid is None and self.benign_xid is not None,
                Taint(key=XID, value=str(self.benign_xid), effect=TaintEffect.NONE),
            ),
            (self.is_unmonitored, Taint(key=UNMONITORED, value="", effect=TaintEffect.NONE)),
        ]
        return tuple(taint for holds, taint in found if holds)

    @property
    def condition(self) -> Condition:
        if self.is_silent:
            return Condition.UNKNOWN
        if any(taint.effect is TaintEffect.NO_SCHEDULE for taint in self.taints):
            return Condition.UNHEALTHY
        return Condition.UNKNOWN if self.is_unmonitored else Condition.HEALTHY

    @property
    def message(self) -> str:
        """One sentence for a person; empty when there is nothing to say."""
        found = [
            (self.is_silent, "NVML does not answer"),
            (self.is_lost and not self.is_silent, "the GPU is lost: NVML does not find it, or it does not answer"),
            (self.critical_xid is not None, f"XID {self.critical_xid} was reported"),
            (self.has_ecc_error, "an uncorrectable memory error was reported"),
            (self.recovery_action != NO_RECOVERY, f"the driver asks for recovery: {_action(self.recovery_action)}"),
            (self.benign_xid is not None, f"XID {self.benign_xid} was reported, which does not count"),
            (self.is_unmonitored, "the GPU reports no events, so errors are not noticed"),
        ]
        return "; ".join(sentence for holds, sentence in found if holds)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """All GPUs that were ever seen since this boot."""

    boot_id: str
    gpus: Mapping[GpuUuid, GpuHealth]

    @property
    def taints(self) -> Taints:
        """Of the GPUs that have any."""
        return {uuid: gpu.taints for uuid, gpu in self.gpus.items() if gpu.taints}


def begin(stored: NodeHealth | None, *, boot_id: str) -> NodeHealth:
    """What a process starts from. A reboot resets the GPUs; what is still wrong then, the first look finds."""
    if stored is None or stored.boot_id != boot_id:
        return NodeHealth(boot_id=boot_id, gpus={})
    return stored


def heard_xid(node: NodeHealth, uuid: GpuUuid, code: int, *, rated: XidClass) -> NodeHealth:
    """After an XID. A benign one weakens nothing; each that counts begins the wait for clean looks anew."""
    gpu = node.gpus.get(uuid, GpuHealth())
    match rated:
        case XidClass.CRITICAL:
            changed = replace(gpu, critical_xid=code if gpu.critical_xid is None else gpu.critical_xid, was_heard=True)
        case XidClass.BENIGN:
            changed = replace(gpu, benign_xid=code if gpu.benign_xid is None else gpu.benign_xid, was_heard=True)
        case XidClass.DISABLED:
            return node
    return _with(node, {uuid: changed})


def heard_uncorrectable(node: NodeHealth, uuid: GpuUuid) -> NodeHealth:
    """After an uncorrectable memory error."""
    return _with(node, {uuid: replace(node.gpus.get(uuid, GpuHealth()), has_ecc_error=True, was_heard=True)})


def looked(node: NodeHealth, readings: Mapping[GpuUuid, Reading], *, looks_beyond_xids: bool = True) -> NodeHealth:
    """After a look at which these GPUs answered. One that was seen before and is not among them is lost."""
    answered = {
        uuid: _answered(node.gpus.get(uuid, GpuHealth()), reading if looks_beyond_xids else Reading())
        for uuid, reading in readings.items()
    }
    return _with(node, {**lost(node, node.gpus.keys() - readings.keys()).gpus, **answered})


def lost(node: NodeHealth, uuids: Collection[GpuUuid]) -> NodeHealth:
    """After these GPUs were not found, or answered that they are lost."""
    return _with(node, {uuid: _lost(node.gpus.get(uuid, GpuHealth()), is_silent=False) for uuid in uuids})


def silent(node: NodeHealth) -> NodeHealth:
    """After NVML has not answered for too long: no new claim should come here, and nothing can be said of any GPU."""
    return _with(node, {uuid: _lost(gpu, is_silent=True) for uuid, gpu in node.gpus.items()})


def listening(node: NodeHealth, monitored: Iterable[GpuUuid], unmonitored: Iterable[GpuUuid]) -> NodeHealth:
    """After events were asked for: of these GPUs with success, and of these without."""
    states = {**dict.fromkeys(monitored, False), **dict.fromkeys(unmonitored, True)}
    return _with(
        node,
        {uuid: replace(node.gpus.get(uuid, GpuHealth()), is_unmonitored=is_none) for uuid, is_none in states.items()},
    )


def _answered(gpu: GpuHealth, reading: Reading) -> GpuHealth:
    action = NO_RECOVERY if reading.recovery_action is None else reading.recovery_action
    has_risen = None not in (gpu.uncorrected_errors, reading.uncorrected_errors) and (
        (reading.uncorrected_errors or 0) > (gpu.uncorrected_errors or 0)
    )
    needs_help = reading.needs_reset if reading.recovery_action is None else action != NO_RECOVERY
    is_clean = not (gpu.was_heard or has_risen or needs_help)
    clean = min(gpu.clean_polls + 1, CLEAN_POLLS) if is_clean else 0
    answered = min(gpu.answered_polls + 1, CLEAN_POLLS)
    is_healed = clean >= CLEAN_POLLS
    return GpuHealth(
        critical_xid=None if is_healed else gpu.critical_xid,
        benign_xid=None if is_healed else gpu.benign_xid,
        has_ecc_error=not is_healed and (gpu.has_ecc_error or has_risen),
        recovery_action=_standing_action(gpu.recovery_action, action, is_healed=is_healed),
        is_lost=gpu.is_lost and answered < CLEAN_POLLS,
        is_unmonitored=gpu.is_unmonitored,
        uncorrected_errors=gpu.uncorrected_errors if reading.uncorrected_errors is None else reading.uncorrected_errors,
        clean_polls=clean,
        answered_polls=answered,
    )


def _standing_action(before: int, now: int, *, is_healed: bool) -> int:
    if now != NO_RECOVERY:
        return now
    return NO_RECOVERY if is_healed else before


def _lost(gpu: GpuHealth, *, is_silent: bool) -> GpuHealth:
    return replace(gpu, is_lost=True, is_silent=is_silent, clean_polls=0, answered_polls=0)


def _action(number: int) -> str:
    return _ACTIONS.get(number, f"action-{number}")


def _with(node: NodeHealth, changed: Mapping[GpuUuid, GpuHealth]) -> NodeHealth:
    return replace(node, gpus={**node.gpus, **changed})
