"""Which devices of the GPUs are offered, what they cost, and what a GPU that is not well does to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_dra.inventory import Gpu, Inventory, MigDevice
from vgpu_dra.policy import devices, slices
from vgpu_dra.policy.features import Features
from vgpu_dra.rules import OfferRules, Ratios
from vgpu_dra.taints import Taint, TaintEffect, Taints
from vgpu_state.claims import DeviceKind
from vgpu_testkit import api_slice_rules
from vgpu_testkit.dra_values import INVENTORY, MIB, MIG, gpu_uuid, h100

ALL = Features(has_counters=True, has_taints=True, has_informing_taints=True)
RULES = OfferRules()
WITHOUT_COUNTERS = replace(ALL, has_counters=False)
XID = Taint(key="manager.nvidia.com/xid", value="79", effect=TaintEffect.NO_SCHEDULE)
BENIGN = Taint(key="manager.nvidia.com/xid", value="13", effect=TaintEffect.NONE)
LOST = Taint(key="manager.nvidia.com/gpu-lost", value="", effect=TaintEffect.NO_SCHEDULE)


def offer(*gpus: Gpu, features: Features = ALL, rules: OfferRules = RULES, taints: Taints | None = None) -> devices.Offer:
    return devices.offer(replace(INVENTORY, gpus=gpus), rules=rules, features=features, taints=taints or {})


def names(found: devices.Offer) -> list[list[str]]:
    return [[str(device["name"]) for device in one] for one in found.gpus]


def partitioned(index: int, *migs: MigDevice) -> Gpu:
    return replace(h100(index), is_mig=True, mig_devices=migs)


def mig(profile_id: int, start: int, size: int) -> MigDevice:
    return replace(MIG, profile_id=profile_id, start=start, size=size)


def slices_of(device: Any) -> list[str]:
    (cost,) = device["consumesCounters"]
    return sorted(cost["counters"])


def test_shares_and_the_whole_gpu_each_cost_all_of_it() -> None:
    found = offer(h100(0, minor=5))

    whole = {f"memory-slice-{i}": {"value": "1"} for i in range(8)}
    assert found.counter_sets == ({"name": "gpu-5-counter-set", "counters": whole},)
    assert names(found) == [["vgpu-5", "gpu-5"]]
    assert [device["consumesCounters"] for device in found.gpus[0]] == [
        [{"counterSet": "gpu-5-counter-set", "counters": whole}]
    ] * 2
    assert found.withheld == ()


def test_devices_are_in_the_order_of_nvml_and_named_by_minor() -> None:
    found = offer(h100(0, minor=2), h100(1, minor=3), h100(2, minor=0))

    assert names(found) == [["vgpu-2", "gpu-2"], ["vgpu-3", "gpu-3"], ["vgpu-0", "gpu-0"]]
    assert [s["name"] for s in found.counter_sets] == ["gpu-2-counter-set", "gpu-3-counter-set", "gpu-0-counter-set"]


def test_a_gpu_in_mig_mode_is_its_mig_devices_each_at_the_cost_of_its_place() -> None:
    found = offer(partitioned(0, mig(9, 0, 4), mig(19, 4, 1)), partitioned(1), h100(2))

    assert names(found) == [["gpu-0-mig-9-0-4", "gpu-0-mig-19-4-1"], [], ["vgpu-2", "gpu-2"]]
    assert [slices_of(device) for device in found.gpus[0]] == [
        ["memory-slice-0", "memory-slice-1", "memory-slice-2", "memory-slice-3"],
        ["memory-slice-4"],
    ]
    assert found.counter_sets[0]["counters"].keys() == found.counter_sets[2]["counters"].keys()


@pytest.mark.parametrize(("kind", "expected"), [(DeviceKind.VGPU, "vgpu-0"), (DeviceKind.GPU, "gpu-0")])
def test_without_counters_a_gpu_is_of_one_kind_and_mig_devices_are_offered_all_the_same(kind: DeviceKind, expected: str) -> None:
    rules = OfferRules(kind_without_counters=kind)

    found = offer(h100(0), partitioned(1, mig(19, 0, 1)), features=WITHOUT_COUNTERS, rules=rules)

    assert names(found) == [[expected], ["gpu-1-mig-19-0-1"]]
    assert found.counter_sets == ()
    assert all("consumesCounters" not in device for one in found.gpus for device in one)


@pytest.mark.parametrize("kind", [DeviceKind.VGPU, DeviceKind.GPU])
@pytest.mark.parametrize("features", [ALL, WITHOUT_COUNTERS])
def test_a_node_without_shares_offers_whole_gpus_and_mig_devices(kind: DeviceKind, features: Features) -> None:
    rules = OfferRules(kind_without_counters=kind, has_shares=False)

    found = offer(h100(0), partitioned(1, mig(19, 0, 1)), features=features, rules=rules)

    assert names(found) == [["gpu-0"], ["gpu-1-mig-19-0-1"]]
    assert found.withheld == ()


def test_shares_have_the_ratios_and_the_whole_gpu_has_not() -> None:
    vgpu, gpu = offer(h100(0), rules=OfferRules(ratios=Ratios(cores_percent=200, memory_percent=200))).gpus[0]

    assert (vgpu["capacity"]["memory"]["value"], gpu["capacity"]["memory"]["value"]) == ("163118Mi", "81559Mi")


def test_shares_that_prepare_or_the_api_would_refuse_are_withheld_with_a_reason() -> None:
    found = offer(h100(15), h100(16), replace(h100(3), memory_bytes=2 * MIB), rules=OfferRules(ratios=Ratios(memory_percent=99)))

    assert names(found) == [["vgpu-15", "gpu-15"], ["gpu-16"], ["gpu-3"]]
    assert found.withheld == (
        "shares of GPU GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000016: it has index 16; the limits file has slots 0 to 15",
        "shares of GPU GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000003: there are 1048576 bytes of memory to give away",
    )


def test_a_taint_is_on_every_device_of_its_gpu_and_on_no_other() -> None:
    taints = {gpu_uuid(0): (XID, LOST), gpu_uuid(1): (LOST,)}

    found = offer(h100(0), partitioned(1, mig(19, 0, 1)), h100(2), taints=taints)

    xid = {"key": "manager.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
    lost = {"key": "manager.nvidia.com/gpu-lost", "effect": "NoSchedule"}
    assert [[device.get("taints") for device in one] for one in found.gpus] == [[[xid, lost]] * 2, [[lost]], [None, None]]


def test_a_taint_that_only_tells_is_left_out_where_the_cluster_does_not_know_the_effect() -> None:
    older = replace(ALL, has_informing_taints=False)

    found = [offer(h100(0), features=features, taints={gpu_uuid(0): (BENIGN, XID)}) for features in (ALL, older)]

    assert [[taint["value"] for taint in one.gpus[0][0]["taints"]] for one in found] == [["79", "13"], ["79"]]
    assert "taints" not in offer(h100(0), features=older, taints={gpu_uuid(0): (BENIGN,)}).gpus[0][0]


def test_without_taints_a_gpu_that_is_not_well_is_not_offered() -> None:
    features = replace(ALL, has_taints=False, has_informing_taints=False)

    found = offer(h100(0), h100(1), features=features, taints={gpu_uuid(0): (XID, LOST), gpu_uuid(1): (BENIGN,)})

    assert names(found) == [[], ["vgpu-1", "gpu-1"]]
    assert "taints" not in found.gpus[1][0]
    assert found.withheld == (
        f"GPU {gpu_uuid(0)}: it is not well (manager.nvidia.com/xid=79, manager.nvidia.com/gpu-lost), "
        "and this cluster keeps no device taints to say so",
    )


def test_of_too_many_taints_those_that_keep_claims_away_are_kept() -> None:
    many = tuple(replace(BENIGN, value=str(xid)) for xid in range(20))

    taints = offer(h100(0), taints={gpu_uuid(0): (*many, XID)}).gpus[0][0]["taints"]

    assert [taint["value"] for taint in taints] == ["79", *map(str, range(15))]


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    gpus = []
    for index in range(draw(st.integers(0, 20))):
        starts = draw(st.lists(st.integers(0, 6), unique=True))
        migs = tuple(mig(19, start, 1) for start in starts)
        gpus.append(partitioned(index, *migs) if draw(st.booleans()) else h100(index))
    return replace(INVENTORY, gpus=tuple(gpus))


@given(inventory=inventories(), has_counters=st.booleans(), tainted=st.sets(st.integers(0, 19)))
def test_every_pool_is_one_that_the_api_takes_and_the_scheduler_uses(
    inventory: Inventory, has_counters: bool, tainted: set[int]
) -> None:
    taints = {gpu_uuid(index): (XID, BENIGN) for index in tainted}
    features = replace(ALL, has_counters=has_counters)

    found = devices.offer(inventory, rules=OfferRules(), features=features, taints=taints)

    contents = slices.contents(found.gpus, found.counter_sets)
    pool = {"name": "node-a", "generation": 1, "resourceSliceCount": len(contents)}
    stored: list[Any] = [{"spec": {"driver": "manager.nvidia.com", "nodeName": "node-a", "pool": pool, **c}} for c in contents]
    assert [reason for one in stored for reason in api_slice_rules.refusals(one, release=(1, 37))] == []
    assert api_slice_rules.pool_faults(stored) == []
    # One slice for each GPU, so that what becomes of it changes one slice.
    assert len(contents) == (-(-len(inventory.gpus) // 8) if has_counters else 0) + max(len(inventory.gpus), 1)
