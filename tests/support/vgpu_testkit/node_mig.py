"""MIG on a fake node: what a device looks like in the state file of the NVML mock, and the driver's capabilities for it.

A container may use a MIG device when it may open the capability nodes of its GPU instance and its compute instance. Which nodes
they are stands in files below /proc.

Source: NVIDIA driver, /proc/driver/nvidia/capabilities and /proc/driver/nvidia-caps/mig-minors.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# The character device of /dev/null: a device node that every process may open, so that "holds a GPU open" can be had anywhere.
NULL_DEVICE = os.makedev(1, 3)

_CONFIG, _MONITOR = 1, 2
_INSTANCES, _COMPUTE_INSTANCES = 15, 8  # of one GPU, and of one GPU instance, that the table of minors has room for
# The GPU instance that the driver makes of the first placement of a profile; the next placements follow it.
_FIRST_INSTANCE = {0: 0, 5: 1, 9: 1, 14: 3, 15: 3, 19: 7, 20: 7}
_STARTS = {0: (0,), 5: (0,), 9: (0, 4), 14: (0, 2, 4), 15: (0, 2, 4, 6), 19: tuple(range(7)), 20: tuple(range(7))}


def device(gpu_uuid: str, *, profile_id: int, start: int) -> dict[str, Any]:
    """A MIG device of the state file that fills its GPU instance."""
    instance = _FIRST_INSTANCE[profile_id] + _STARTS[profile_id].index(start)
    uuid = f"MIG-{gpu_uuid.removeprefix('GPU-')[:-12]}{profile_id:04}{start:04}{gpu_uuid[-4:]}"
    return {"uuid": uuid, "profile_id": profile_id, "start": start, "gpu_instance": instance, "compute_instance": 0}


def make_device_node(path: Path) -> None:
    """A character device that can be opened, or an empty file where the process may make none."""
    try:
        os.mknod(path, stat.S_IFCHR, NULL_DEVICE)
    except PermissionError:
        path.touch()
    path.chmod(0o666)


def make_driver_capabilities(proc_root: Path, dev_root: Path) -> None:
    """The capabilities of the driver as a whole, which are there without any MIG device."""
    (dev_root / "nvidia-caps").mkdir()
    for name, minor in (("config", _CONFIG), ("monitor", _MONITOR)):
        _make_capability(_capabilities(proc_root) / "mig" / name, dev_root, minor=minor)


def make_capabilities(proc_root: Path, dev_root: Path, *, minor: int, devices: Sequence[dict[str, Any]]) -> None:
    """The capabilities of one GPU's MIG devices; those of its earlier ones are gone."""
    folder = _capabilities(proc_root) / f"gpu{minor}" / "mig"
    for file in folder.rglob("access"):
        (dev_root / "nvidia-caps" / f"nvidia-cap{_minor_of(file)}").unlink()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for one in devices:
        instance, compute = one["gpu_instance"], one["compute_instance"]
        number = 3 + (minor * _INSTANCES + instance) * (_COMPUTE_INSTANCES + 1)
        _make_capability(folder / f"gi{instance}/access", dev_root, minor=number)
        _make_capability(folder / f"gi{instance}/ci{compute}/access", dev_root, minor=number + 1 + compute)


def _capabilities(proc_root: Path) -> Path:
    return proc_root / "driver/nvidia/capabilities"


def _make_capability(file: Path, dev_root: Path, *, minor: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    node = dev_root / "nvidia-caps" / f"nvidia-cap{minor}"
    if not node.exists():  # a GPU instance has several compute instances
        make_device_node(node)


def _minor_of(file: Path) -> int:
    return int(file.read_text().split()[1])
