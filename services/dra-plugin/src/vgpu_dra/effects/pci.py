"""Where a PCI device sits, by the kernel's word. Source: Documentation/ABI/testing/sysfs-bus-pci."""

from __future__ import annotations

import re
from pathlib import Path

_NVML_FORM = re.compile(r"0000([0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\Z")
_ROOT_FORM = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}\Z")


def bus_id(nvml: str) -> str | None:
    """The kernel's spelling of NVML's address: "00000000:1B:00.0" is "0000:1b:00.0". None where the domain has more digits."""
    match = _NVML_FORM.match(nvml)
    return match[1].lower() if match else None


def root_complex(device: str, *, sys_root: Path) -> str | None:
    """The PCIe root complex above the device, such as "pci0000:15"."""
    try:
        path = (sys_root / "bus/pci/devices" / device).readlink()
    except OSError:  # no such device: a mock, or a kernel without sysfs
        return None
    return next((part for part in path.parts if _ROOT_FORM.match(part)), None)


def numa_node(device: str, *, sys_root: Path) -> int | None:
    """The NUMA node of the device's slot. None where the kernel knows none (it says -1)."""
    try:
        number = int((sys_root / "bus/pci/devices" / device / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None
