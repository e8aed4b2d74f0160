"""The GPUs of this node → the devices that the scheduler may give away. Pure; names, attributes and capacities are upstream's.

Source: vgpu-manager pkg/kubeletplugin/{vgpu,deviceinfo}.go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vgpu_dra.inventory import WHOLE_CORES_PERCENT, Gpu, Inventory
from vgpu_dra.slice_documents import Document
from vgpu_state import container_abi

_MIB = 1 << 20
_STEP_BYTES = _MIB
_MAX_TEXT = 64  # the API's limit for the value of a string or version attribute
_STANDARD = "resource.kubernetes.io"

_VERSION_FORM = re.compile(r"(\d{1,18})(?:\.(\d{1,18}))?(?:\.(\d{1,18}))?\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The devices of this node in the order of preference, and for each GPU that is not offered the sentence that says why."""

    devices: tuple[Document, ...]
    withheld: tuple[str, ...]


def offer(inventory: Inventory) -> Offer:
    """One shareable vGPU device per GPU, in NVML's order."""
    reasons = {gpu.uuid: reason for gpu in inventory.gpus if (reason := _reason_to_withhold(gpu)) is not None}
    return Offer(
        devices=tuple(_vgpu(gpu, inventory) for gpu in inventory.gpus if gpu.uuid not in reasons),
        withheld=tuple(reasons.values()),
    )


def semver(version: str) -> str | None:
    """A driver's version as the API takes it: three numbers without leading zeros ("550.90.07" is 550.90.7), or nothing."""
    match = _VERSION_FORM.match(version)
    return ".".join(str(int(part or 0)) for part in match.groups()) if match else None


def _reason_to_withhold(gpu: Gpu) -> str | None:
    # One device that the API server cannot take would cost the whole slice; one that Prepare refuses, every pod that gets it.
    if not gpu.has_slot:
        return f"GPU {gpu.uuid} has index {gpu.index}; the limits file has slots 0 to {container_abi.MAX_DEVICES - 1}"
    if gpu.memory_bytes < 2 * _STEP_BYTES:
        return f"GPU {gpu.uuid} has {gpu.memory_bytes} bytes of memory"
    return None


def _vgpu(gpu: Gpu, inventory: Inventory) -> Document:
    memory = f"{gpu.memory_bytes // _STEP_BYTES}Mi"  # value, maximum and default all lie on the grid
    return {
        "name": str(gpu.vgpu_device),
        "allowMultipleAllocations": True,
        "attributes": {
            "type": {"string": "vgpu"},
            "coreRatio": {"int": WHOLE_CORES_PERCENT},
            "memoryRatio": {"int": WHOLE_CORES_PERCENT},
            **_attributes(gpu, inventory),
        },
        "capacity": {
            # What a claim omits is the whole.
            "cores": _capacity(str(WHOLE_CORES_PERCENT), lowest="0", step="1"),
            "memory": _capacity(memory, lowest="1Mi", step="1Mi"),
        },
    }


def _capacity(value: str, *, lowest: str, step: str) -> Document:
    return {"value": value, "requestPolicy": {"default": value, "validRange": {"min": lowest, "max": value, "step": step}}}


def _attributes(gpu: Gpu, inventory: Inventory) -> dict[str, Document]:
    """What every device of a GPU says of it, whatever its type."""
    traits = gpu.traits
    found: dict[str, Document | None] = {
        "uuid": _text(gpu.uuid.lower()),
        "minor": _whole(gpu.minor),
        "productName": _text(gpu.name),
        "brand": _text(traits.brand),
        "architecture": _text(traits.architecture),
        "cudaComputeCapability": _pair(traits.compute_capability),
        "driverVersion": _version(semver(inventory.driver_version)),
        "cudaDriverVersion": _pair(inventory.cuda_version),
        f"{_STANDARD}/pciBusID": _text(traits.pci_bus_id),
        f"{_STANDARD}/pcieRoot": _text(traits.pcie_root),
        f"{_STANDARD}/numaNode": _whole(traits.numa_node),
    }
    return {name: value for name, value in found.items() if value is not None}


def _text(value: str | None) -> Document | None:
    return {"string": value} if value and len(value) <= _MAX_TEXT else None


def _whole(value: int | None) -> Document | None:
    return None if value is None else {"int": value}


def _pair(value: tuple[int, int] | None) -> Document | None:
    return None if value is None else _version(f"{value[0]}.{value[1]}.0")


def _version(value: str | None) -> Document | None:
    return {"version": value} if value and len(value) <= _MAX_TEXT else None
