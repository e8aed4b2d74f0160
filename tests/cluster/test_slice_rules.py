"""The stand-in API server of the other tests refuses the slices that a real one refuses, and takes those that it takes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from vgpu_testkit import api_slice_rules
from vgpu_testkit.cluster import Cluster
from vgpu_testkit.cluster_api import ApiError, Object
from vgpu_testkit.cluster_vgpu import SLICES

_POOL = {"name": "elsewhere", "generation": 1, "resourceSliceCount": 1}
_COST = {"counterSet": "gpu-0-counter-set", "counters": {"memory-slice-0": {"value": "1"}}}
_TAINT = {"key": "manager.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
_SHARED = {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "1Mi", "max": "80Gi", "step": "1Mi"}}}
_DEVICE = {
    "name": "vgpu-0",
    "allowMultipleAllocations": True,
    "attributes": {"type": {"string": "vgpu"}, "driverVersion": {"version": "550.90.7"}},
    "capacity": {"memory": _SHARED},
    "consumesCounters": [_COST],
    "taints": [_TAINT],
}


def _slice(**content: Any) -> Object:
    spec = {"driver": "manager.nvidia.com", "nodeName": "elsewhere", "pool": _POOL, **content}
    return {"metadata": {"generateName": "rules-"}, "spec": copy.deepcopy(spec)}


def _with(change: Callable[[Any], Any]) -> Object:
    """A slice whose one device is another in something."""
    document = _slice(devices=[_DEVICE])
    change(document["spec"]["devices"][0])
    return document


def _of(count: int, **device: Any) -> Object:
    return _slice(devices=[{"name": f"d-{i}", **(device if i == 0 else {})} for i in range(count)])


def _budget(**counters: str) -> Object:
    return {"name": "gpu-0-counter-set", "counters": {name: {"value": value} for name, value in counters.items()}}


def _policy(device: Any) -> Any:
    return device["capacity"]["memory"]["requestPolicy"]


_LEGAL: dict[str, Object] = {
    "a device with everything": _slice(devices=[_DEVICE]),
    "no device": _slice(),
    "64 devices, one tainted": _of(64, taints=[_TAINT]),
    "128 plain devices": _of(128),
    "8 counter sets": _slice(sharedCounters=[{**_budget(memory="80Gi"), "name": f"set-{i}"} for i in range(8)]),
    "32 counters": _slice(sharedCounters=[_budget(**{f"c{i}": "1" for i in range(32)})]),
    "two costs": _with(lambda d: d["consumesCounters"].append({**_COST, "counterSet": "other"})),
    "16 taints": _with(lambda d: d.update(taints=[{**_TAINT, "value": str(i)} for i in range(16)])),
    "a taint that tells": _with(lambda d: d["taints"][0].update(effect="None")),
    "a taint without a value": _with(lambda d: d["taints"][0].pop("value")),
    "a share on another grid": _with(lambda d: _policy(d)["validRange"].update(min="0", step="2Gi")),
}
_ILLEGAL: dict[str, Object] = {
    "65 devices, one tainted": _of(65, taints=[_TAINT]),
    "65 devices, one with a cost": _of(65, consumesCounters=[_COST]),
    "129 devices": _of(129),
    "two devices of one name": _slice(devices=[{"name": "a"}, {"name": "a"}]),
    "devices and counters": _slice(devices=[_DEVICE], sharedCounters=[_budget(memory="80Gi")]),
    "9 counter sets": _slice(sharedCounters=[{**_budget(memory="80Gi"), "name": f"set-{i}"} for i in range(9)]),
    "33 counters": _slice(sharedCounters=[_budget(**{f"c{i}": "1" for i in range(33)})]),
    "no counter": _slice(sharedCounters=[_budget()]),
    "two sets of one name": _slice(sharedCounters=[_budget(memory="1"), _budget(memory="1")]),
    "a counter's name": _slice(sharedCounters=[_budget(memorySlice="1")]),
    "three costs": _with(lambda d: d.update(consumesCounters=[{**_COST, "counterSet": f"s{i}"} for i in range(3)])),
    "two costs of one set": _with(lambda d: d["consumesCounters"].append(_COST)),
    "a cost of nothing": _with(lambda d: d["consumesCounters"][0].update(counters={})),
    "17 taints": _with(lambda d: d.update(taints=[{**_TAINT, "value": str(i)} for i in range(17)])),
    "an effect": _with(lambda d: d["taints"][0].update(effect="PreferNoSchedule")),
    "no effect": _with(lambda d: d["taints"][0].pop("effect")),
    "a taint's key": _with(lambda d: d["taints"][0].update(key="xid 79")),
    "a taint's value": _with(lambda d: d["taints"][0].update(value="x" * 64)),
    "a device's name": _with(lambda d: d.update(name="vgpu_0")),
    "a version": _with(lambda d: d["attributes"].update(driverVersion={"version": "550.90.07"})),
    "a long text": _with(lambda d: d["attributes"].update(type={"string": "x" * 65})),
    "an attribute's name": _with(lambda d: d["attributes"].update({"core-ratio": {"int": 1}})),
    "33 attributes and capacities": _with(lambda d: d["attributes"].update({f"a{i}": {"int": i} for i in range(30)})),
    "a policy without sharing": _with(lambda d: d.pop("allowMultipleAllocations")),
    "a default off the grid": _with(lambda d: _policy(d).update(default="1025Ki")),
    "a maximum above the value": _with(lambda d: _policy(d)["validRange"].update(max="81Gi")),
    "a default above the maximum": _with(lambda d: _policy(d)["validRange"].update(max="40Gi")),
}


def test_the_stand_in_refuses_what_a_real_api_server_refuses(cluster: Cluster) -> None:
    release = (1, 36) if cluster.version.startswith("v1.36.") else (1, 37)
    cases = _LEGAL | _ILLEGAL

    real = [name for name, document in cases.items() if _is_refused(cluster, document)]
    stand_in = [name for name, document in cases.items() if api_slice_rules.refusals(document, release=release)]

    assert real == list(_ILLEGAL)
    assert stand_in == list(_ILLEGAL)


def _is_refused(cluster: Cluster, document: Object) -> bool:
    try:
        cluster.api.create(f"{SLICES}?dryRun=All", document)
    except ApiError as error:
        if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
            raise
        return True
    return False
