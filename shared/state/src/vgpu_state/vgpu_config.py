"""bytes ↔ the limits file vgpu.config, which the enforcement library maps.

Shape: 8192 bytes, little endian: a 512-byte head, 16 slots of 128 bytes, zeros. The slot's index is the GPU's NVML index.

Source: vgpu-manager, library/include/hook.h (offsets compiled from it); tests/native/vgpu_config.h states them for C.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from vgpu_state import container_abi
from vgpu_state.errors import VgpuError

FILE_BYTES = 8192
_MAGIC = 0x56474346  # "VGCF"
_VERSION = 1
_REGION_BYTES = 2560
# magic, version, region, count | cuda major, minor | driver | pod uid, pod, namespace, container, uuid | mode, watcher, vmem
_HEAD = struct.Struct("<4I2i32s72x48s64s64s64s48s3i84x")
# seq, pad, uuid, total, real | hard, soft, core_limit, hard_limit, memory_limit, oversold, activate
_SLOT = struct.Struct("<II48sQQ7i28x")


class LimitsUnusable(VgpuError):
    """Raised when a file is no limits file of the layout we know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What one GPU grants to the container: bytes of memory, percent of compute (0 and 100 = not limited).

    `real_memory_bytes` is how much of the memory is the GPU's own; where that is less than all, the rest is the host's. On an
    idle GPU a container may use up to `ceiling_percent` of its compute; equal to `cores_percent` it is held to that always.
    """

    uuid: str
    memory_bytes: int
    real_memory_bytes: int
    cores_percent: int
    ceiling_percent: int

    @property
    def limits_cores(self) -> bool:
        return 0 < self.cores_percent < 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The content of a limits file. Texts longer than their field are cut, as the library's own writer does."""

    pod_uid: str
    pod_name: str
    pod_namespace: str
    container_name: str
    driver_version: str
    cuda_version: tuple[int, int]
    register_uuid: str = ""
    compatibility_mode: int = container_abi.CompatibilityMode.CLIENT
    slots: Mapping[int, Slot] = field(default_factory=dict)


def encode_limits(limits: Limits) -> bytes:
    """The file's bytes; equal limits give equal bytes."""
    head = _HEAD.pack(
        _MAGIC,
        _VERSION,
        _REGION_BYTES,
        container_abi.MAX_DEVICES,
        *limits.cuda_version,
        _text(limits.driver_version, 32),
        _text(limits.pod_uid, 48),
        _text(limits.pod_name, 64),
        _text(limits.pod_namespace, 64),
        _text(limits.container_name, 64),
        _text(limits.register_uuid, 48),
        limits.compatibility_mode,
        0,  # sm_watcher: no shared utilisation file is offered
        1,  # vmem_node: the ledger of memory that NVML cannot see is always on
    )
    slots = b"".join(_encode_slot(limits.slots.get(i)) for i in range(container_abi.MAX_DEVICES))
    return (head + slots).ljust(FILE_BYTES, b"\0")


def decode_limits(raw: bytes) -> Limits:
    """The limits that a file holds.

    Raises:
        LimitsUnusable: another size, magic, version, region or slot count.
    """
    if len(raw) != FILE_BYTES:
        raise LimitsUnusable(f"limits file has {len(raw)} bytes; expected {FILE_BYTES}")
    magic, version, region, count, major, minor, driver, *rest = _HEAD.unpack_from(raw)
    if (magic, version, region, count) != (_MAGIC, _VERSION, _REGION_BYTES, container_abi.MAX_DEVICES):
        raise LimitsUnusable("limits file has another header than magic VGCF, version 1, 2560 bytes, 16 slots")
    pod_uid, pod_name, namespace, container, register_uuid, mode, _, _ = rest
    return Limits(
        pod_uid=_untext(pod_uid),
        pod_name=_untext(pod_name),
        pod_namespace=_untext(namespace),
        container_name=_untext(container),
        driver_version=_untext(driver),
        cuda_version=(major, minor),
        register_uuid=_untext(register_uuid),
        compatibility_mode=mode,
        slots={i: slot for i in range(count) if (slot := _decode_slot(raw, i)) is not None},
    )


def _encode_slot(slot: Slot | None) -> bytes:
    if slot is None:
        return bytes(_SLOT.size)
    limited = int(slot.limits_cores)
    return _SLOT.pack(
        0,  # seq: even, nobody is writing
        0,
        _text(slot.uuid, 48),
        slot.memory_bytes,
        slot.real_memory_bytes,
        slot.cores_percent,
        slot.ceiling_percent,
        limited,
        int(slot.limits_cores and slot.ceiling_percent <= slot.cores_percent),  # hard: never above its percent
        1,  # memory_limit: always on; a share of the whole card is enforced at the card's size
        int(slot.real_memory_bytes < slot.memory_bytes),  # oversold: what the GPU has no room for may lie in the host's memory
        1,
    )


def _decode_slot(raw: bytes, index: int) -> Slot | None:
    fields = _SLOT.unpack_from(raw, _HEAD.size + index * _SLOT.size)
    _, _, uuid, total, real, hard_core, soft_core, *_, activate = fields
    if not activate:
        return None
    return Slot(
        uuid=_untext(uuid), memory_bytes=total, real_memory_bytes=real, cores_percent=hard_core, ceiling_percent=soft_core
    )


def _text(value: str, size: int) -> bytes:
    """`value` cut to `size` - 1 bytes at a character boundary; struct pads the rest, so it always ends in NUL."""
    return value.encode()[: size - 1].decode(errors="ignore").encode()


def _untext(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode(errors="replace")
