"""One device of a GPU as the API has it: name, attributes, capacities. Pure; all of them are upstream's.

Source: vgpu-manager pkg/kubeletplugin/{vgpu,deviceinfo}.go.
"""

from __future__ import annotations

import re

from vgpu_dra.inventory import Gpu, Inventory, MigDevice
from vgpu_dra.rules import Ratios
from vgpu_dra.slice_documents import Document

MIB = 1 << 20
_MAX_TEXT = 64  # the API's limit for the value of a string or version attribute
_STANDARD = "resource.kubernetes.io"

_VERSION_FORM = re.compile(r"(\d{1,18})(?:\.(\d{1,18}))?(?:\.(\d{1,18}))?\Z", re.ASCII)


def vgpu(gpu: Gpu, inventory: Inventory, *, ratios: Ratios) -> Document:
    """The GPU as a device of which many claims have a share. What a claim omits is the whole."""
    memory = _mebibytes(ratios.memory_bytes(gpu.memory_bytes))
    cores = str(ratios.share_cores_percent)  # no share computes on more than a whole GPU, however much is given away in all
    return {
        "name": str(gpu.vgpu_device),
        "allowMultipleAllocations": True,
        "attributes": {
            "type": {"string": "vgpu"},
            "coreRatio": {"int": ratios.cores_percent},
            "memoryRatio": {"int": ratios.memory_percent},
            **_attributes(gpu, inventory),
        },
        "capacity": {
            "cores": _shared(str(ratios.cores_percent), most=cores, lowest="0", step="1"),
            "memory": _shared(memory, most=memory, lowest="1Mi", step="1Mi"),
        },
    }


def whole(gpu: Gpu, inventory: Inventory) -> Document:
    """The GPU as a device that one claim has."""
    return {
        "name": str(gpu.whole_device),
        "attributes": {"type": {"string": "gpu"}, **_attributes(gpu, inventory)},
        "capacity": {"memory": {"value": _mebibytes(gpu.memory_bytes)}},
    }


def mig(device: MigDevice, gpu: Gpu, inventory: Inventory) -> Document:
    """A MIG device that exists, which one claim has."""
    counts = {
        "multiprocessors": device.multiprocessors,
        "copyEngines": device.copy_engines,
        "decoders": device.decoders,
        "encoders": device.encoders,
        "jpegEngines": device.jpeg_engines,
        "ofaEngines": device.ofa_engines,
        **{f"memorySlice{i}": 1 for i in range(device.start, device.start + device.size)},
    }
    return {
        "name": str(gpu.mig_device(device)),
        "attributes": {
            "type": {"string": "mig"},
            **_attributes(gpu, inventory),
            "uuid": {"string": device.uuid.lower()},
            "parentUUID": {"string": gpu.uuid.lower()},
            "profile": {"string": device.profile},
        },
        "capacity": {
            "memory": {"value": _mebibytes(device.memory_bytes)},
            **{name: {"value": str(count)} for name, count in counts.items()},
        },
    }


def semver(version: str) -> str | None:
    """A driver's version as the API takes it: three numbers without leading zeros ("550.90.07" is 550.90.7), or nothing."""
    match = _VERSION_FORM.match(version)
    return ".".join(str(int(part or 0)) for part in match.groups()) if match else None


def _mebibytes(amount_bytes: int) -> str:
    # Value, maximum and default of a share must all lie on the grid of its step.
    return f"{amount_bytes // MIB}Mi"


def _shared(value: str, *, most: str, lowest: str, step: str) -> Document:
    return {"value": value, "requestPolicy": {"default": most, "validRange": {"min": lowest, "max": most, "step": step}}}


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
