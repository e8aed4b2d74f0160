"""What one look at the GPUs finds: which there are, and how each is. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from vgpu_dra.inventory import Inventory
from vgpu_state.ids import GpuUuid

NO_RECOVERY = 0
"""NVML_GPU_RECOVERY_ACTION_NONE: the driver asks for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a GPU that answers is. None is what this GPU or driver does not say.

    `recovery_action` is the driver's number for what a person must do (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION).
    `uncorrected_errors` counts uncorrectable memory errors since the driver was loaded. `needs_reset`: memory rows or pages wait
    for a reset to be taken out of use, or could not be.
    """

    recovery_action: int | None = None
    uncorrected_errors: int | None = None
    needs_reset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """All GPUs at one moment. `readings` has those that answered; GPUs of the inventory that are missing there did not."""

    inventory: Inventory
    readings: Mapping[GpuUuid, Reading] = field(default_factory=dict)


class EventKind(Enum):
    """What NVML tells of by itself."""

    XID = "xid"
    UNCORRECTED_ECC = "ecc_uncorrected"
    CORRECTED_ECC = "ecc_corrected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a GPU, also where it befell one of its MIG devices. `code` is the XID, 0 for other kinds."""

    gpu: GpuUuid
    kind: EventKind
    code: int = 0
