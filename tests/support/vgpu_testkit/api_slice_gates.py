"""Which fields of a ResourceSlice an API server of some release, with some feature gates, drops without a word.

A field that the stored object has already is kept, whatever the gates.

Source: kubernetes pkg/registry/resource/resourceslice/strategy.go, dropDisabledFields.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any


@dataclass
class Gates:
    """An API server's release and gates; a test may change them as an upgrade or a restart does."""

    release: tuple[int, int] = (1, 37)
    consumable_capacity: bool = True
    partitionable_devices: bool = True
    device_taints: bool = True

    def kept(self, slice_: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
        """The slice without the fields that are dropped, when it is to replace `old`."""
        stored = copy.deepcopy(slice_)
        if not self.device_taints and not _uses_taints(old):
            _drop(stored, "taints")
        if not self.partitionable_devices and not _uses_counters(old):
            stored["spec"].pop("sharedCounters", None)
            _drop(stored, "consumesCounters")
        if not self.consumable_capacity and not _uses_shares(old):
            _drop(stored, "allowMultipleAllocations")
            for capacity in _capacities(stored):
                capacity.pop("requestPolicy", None)
        return stored


def _uses_taints(slice_: dict[str, Any] | None) -> bool:
    return any(device.get("taints") for device in _devices(slice_))


def _uses_counters(slice_: dict[str, Any] | None) -> bool:
    has_budgets = slice_ is not None and bool(slice_["spec"].get("sharedCounters"))
    return has_budgets or any(device.get("consumesCounters") for device in _devices(slice_))


def _uses_shares(slice_: dict[str, Any] | None) -> bool:
    is_shared = any("allowMultipleAllocations" in device for device in _devices(slice_))
    return is_shared or any("requestPolicy" in capacity for capacity in _capacities(slice_))


def _drop(slice_: dict[str, Any], field: str) -> None:
    for device in _devices(slice_):
        device.pop(field, None)


def _devices(slice_: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [] if slice_ is None else slice_["spec"].get("devices") or []


def _capacities(slice_: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [capacity for device in _devices(slice_) for capacity in (device.get("capacity") or {}).values()]
