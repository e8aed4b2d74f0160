"""What an API server makes of a ResourceSlice: what it refuses and writes its own way; and what a scheduler makes of a pool.

Written from the API's documentation, without our own codec: it is what our documents are held against.

Source: kubernetes pkg/apis/resource/validation/validation.go, pkg/apis/resource/v1/defaults.go, apimachinery resource.Quantity;
k8s.io/dynamic-resource-allocation structured/internal/stable/pools_stable.go.
"""

from __future__ import annotations

import copy
import re
import time
from collections import Counter
from typing import Any

_SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)\Z")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}\Z")
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 10**3, "M": 10**6, "G": 10**9}
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")
_QUANTITY = re.compile(r"(\d+)(Ki|Mi|Gi|Ti|k|M|G|)\Z")


def refusals(slice_: dict[str, Any], *, release: tuple[int, int]) -> list[str]:
    """Why an API server of this release finds the slice invalid, a sentence each; none when it is valid."""
    spec = slice_["spec"]
    pool = spec.get("pool", {})
    found = []
    if not _driver_is_legal(spec.get("driver", "")):
        found.append(f"spec.driver: Invalid value: {spec.get('driver')!r}")
    if not pool.get("name") or pool.get("generation", -1) < 0 or pool.get("resourceSliceCount", 0) < 1:
        found.append(f"spec.pool: Invalid value: {pool!r}")
    devices = spec.get("devices") or []
    names = [d.get("name", "") for d in devices]
    if len(set(names)) < len(names):
        found.append("spec.devices: Duplicate value")
    limit = 64 if any(d.get("taints") or d.get("consumesCounters") for d in devices) else 128
    if len(devices) > limit:
        found.append(f"spec.devices: Too many: {len(devices)}: must have at most {limit} items")
    if release >= (1, 35) and spec.get("devices") is not None and spec.get("sharedCounters") is not None:
        found.append("spec: only one of `sharedCounters` or `devices` is allowed")
    for i, device in enumerate(devices):
        found += [f"spec.devices[{i}].{reason}" for reason in _device_refusals(device, release=release)]
    if release < (1, 35):
        own = [s["name"] for s in spec.get("sharedCounters") or []]
        costs = [c["counterSet"] for d in devices for c in d.get("consumesCounters") or []]
        found += [f"spec.devices: {name} is no counter set of this slice" for name in costs if name not in own]
    return found + [
        f"spec.sharedCounters{reason}" for reason in _budget_refusals(spec.get("sharedCounters") or [], "name", most=8)
    ]


def immutable_refusals(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Why a slice cannot become another."""
    fixed = (("driver",), ("nodeName",), ("pool", "name"))
    return [f"spec.{'.'.join(path)}: field is immutable" for path in fixed if _at(old["spec"], path) != _at(new["spec"], path)]


def as_stored(slice_: dict[str, Any]) -> dict[str, Any]:
    """The slice with its quantities in their canonical form, its defaults, and without empty fields."""
    stored = copy.deepcopy(slice_)
    for device in stored["spec"].get("devices") or []:
        for capacity in (device.get("capacity") or {}).values():
            _canonicalise(capacity)
        for cost in device.get("consumesCounters") or []:
            _canonicalise(cost["counters"])
        for taint in device.get("taints") or []:
            taint.setdefault("timeAdded", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    for budget in stored["spec"].get("sharedCounters") or []:
        _canonicalise(budget["counters"])
    stored["spec"] = {k: v for k, v in stored["spec"].items() if v not in (None, [], {})}
    return stored


def pool_faults(slices: list[dict[str, Any]]) -> list[str]:
    """Why a scheduler gives away nothing of the pool that these slices are; none when it does."""
    newest = max((s["spec"]["pool"]["generation"] for s in slices), default=0)
    current = [s["spec"] for s in slices if s["spec"]["pool"]["generation"] == newest]
    if not current or any(spec["pool"]["resourceSliceCount"] != len(current) for spec in current):
        return ["the pool is incomplete"]
    sets = [counter_set for spec in current for counter_set in spec.get("sharedCounters") or []]
    devices = [device for spec in current for device in spec.get("devices") or []]
    found = [f"{name} is there twice" for name, n in Counter(x["name"] for x in (*sets, *devices)).items() if n > 1]
    budgets = {s["name"]: s["counters"] for s in sets}
    return found + [
        f"{device['name']} costs what there is not"
        for device in devices
        for cost in device.get("consumesCounters") or []
        for name, counter in cost["counters"].items()
        if _bytes(budgets.get(cost["counterSet"], {}).get(name, {"value": "0"})["value"]) < _bytes(counter["value"])
    ]


def _driver_is_legal(driver: str) -> bool:
    return 0 < len(driver) <= 63 and all(_LABEL.match(part) for part in driver.split("."))


def _device_refusals(device: dict[str, Any], *, release: tuple[int, int]) -> list[str]:
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    found = [] if _LABEL.match(device.get("name", "")) else [f"name: Invalid value: {device.get('name')!r}"]
    if len(attributes) + len(capacity) > 32:
        found.append("attributes: Too many")
    found += [f"attributes: Invalid name: {n!r}" for n in (*attributes, *capacity) if not _C_NAME.match(n.rpartition("/")[2])]
    found += [f"attributes[{n}]: {reason}" for n, value in attributes.items() for reason in _value_refusals(value)]
    shared = bool(device.get("allowMultipleAllocations"))
    for name, entry in capacity.items():
        found += [f"capacity[{name}]: {reason}" for reason in _capacity_refusals(entry, is_shared=shared)]
    costs = device.get("consumesCounters") or []
    found += [f"consumesCounters{reason}" for reason in _budget_refusals(costs, "counterSet", most=2)]
    return found + _taint_refusals(device.get("taints") or [], release=release)


def _budget_refusals(budgets: list[dict[str, Any]], name: str, *, most: int) -> list[str]:
    """Of counter sets, or of what is taken from them: both are named lists of counters."""
    names = [budget.get(name, "") for budget in budgets]
    found = [f": Too many: {len(budgets)}: must have at most {most} items"] if len(budgets) > most else []
    if len(set(names)) < len(names):
        found.append(": Duplicate value")
    for i, budget in enumerate(budgets):
        counters = budget.get("counters") or {}
        if not 0 < len(counters) <= 32:
            found.append(f"[{i}].counters: Required value, at most 32: {len(counters)}")
        found += [f"[{i}]: Invalid name: {n!r}" for n in (names[i], *counters) if not _LABEL.match(n)]
        found += [f"[{i}]: Invalid value: {c!r}" for c in counters.values() if not _QUANTITY.match(str(c.get("value", "")))]
    return found


def _taint_refusals(taints: list[dict[str, Any]], *, release: tuple[int, int]) -> list[str]:
    effects = ("NoSchedule", "NoExecute", "None") if release >= (1, 36) else ("NoSchedule", "NoExecute")
    found = [f"taints: Too many: {len(taints)}: must have at most 16 items"] if len(taints) > 16 else []
    for taint in taints:
        domain, _, name = taint.get("key", "").rpartition("/")
        if not _LABEL_VALUE.match(name) or (domain and not _driver_is_legal(domain)):
            found.append(f"taints: Invalid key: {taint.get('key')!r}")
        if taint.get("value") and not _LABEL_VALUE.match(taint["value"]):
            found.append(f"taints: Invalid value: {taint['value']!r}")
        if taint.get("effect") not in effects:
            found.append(f"taints: Unsupported effect: {taint.get('effect')!r}: supported values: {effects}")
    return found


def _value_refusals(value: dict[str, Any]) -> list[str]:
    if len(value) != 1:
        return ["exactly one value must be specified"]
    ((kind, content),) = value.items()
    legal = {
        "string": isinstance(content, str) and 0 < len(content) <= 64,
        "version": isinstance(content, str) and len(content) <= 64 and bool(_SEMVER.match(content)),
        "int": isinstance(content, int) and not isinstance(content, bool),
        "bool": isinstance(content, bool),
    }
    return [] if legal.get(kind) else [f"{kind}: Invalid value: {content!r}"]


def _capacity_refusals(entry: dict[str, Any], *, is_shared: bool) -> list[str]:
    try:
        value = _bytes(entry["value"])
        policy = entry.get("requestPolicy")
        if policy is None:
            return []
        if not is_shared:
            return ["requestPolicy: needs allowMultipleAllocations"]
        default, bounds = _bytes(policy["default"]), policy["validRange"]
        low, high, step = _bytes(bounds["min"]), _bytes(bounds.get("max", entry["value"])), _bytes(bounds["step"])
    except (KeyError, ValueError) as exc:
        return [f"Invalid value: {exc}"]
    rules = {
        "max is above the value": high > value,
        "default is out of range": not low <= default <= high,
        "max is not on the grid": (high - low) % step != 0,
        "default is not on the grid": (default - low) % step != 0,
        "one step above min is more than the value": low + step > value,
    }
    return [reason for reason, broken in rules.items() if broken]


def _canonicalise(fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if isinstance(value, dict):
            _canonicalise(value)
        elif isinstance(value, str):
            fields[name] = _canonical(value)


def _canonical(text: str) -> str:
    """The highest unit of the same family that needs no fraction."""
    match = _QUANTITY.match(text)
    if match is None:
        return text
    family = ("Ti", "Gi", "Mi", "Ki") if match[2].endswith("i") else ("G", "M", "k")
    total = _bytes(text)
    unit = next((u for u in family if total and total % _UNITS[u] == 0), "")
    return f"{total // _UNITS[unit]}{unit}"


def _bytes(text: str) -> int:
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity")
    return int(match[1]) * _UNITS[match[2]]


def _at(document: dict[str, Any], path: tuple[str, ...]) -> Any:
    for field in path:
        document = document.get(field) or {}
    return document
