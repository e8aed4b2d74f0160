"""When two slices say the same, and how a stored one is read."""

from __future__ import annotations

from typing import Any

import pytest

from vgpu_dra.slice_documents import differences, parse_list
from vgpu_state.jsonshape import ShapeError

SLICE = {
    "metadata": {"name": "00000-a", "generateName": "00000-", "uid": "u", "resourceVersion": "7"},
    "spec": {"pool": {"name": "node-a", "generation": 3, "resourceSliceCount": 1}},
}


TAINT = {"key": "manager.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}


def device(memory: Any, **more: Any) -> dict[str, Any]:
    return {"devices": [{"name": "vgpu-0", "capacity": {"memory": {"value": memory}}, **more}]}


@pytest.mark.parametrize(
    ("wish", "stored"),
    [
        (device("80Gi"), device("85899345920")),
        (device("81920Mi"), device("80Gi")),
        (device("1"), device("1000m")),
        (device("1"), device(1)),
        (device("1Mi", taints=[TAINT]), device("1Mi", taints=[{**TAINT, "timeAdded": "2026-11-30T02:00:00Z"}])),
        (device("1Mi", taints=[]), device("1Mi", taints=None)),
        (device("1Mi", attributes={}), device("1Mi")),
        ({"devices": []}, {}),
        (
            {"sharedCounters": [{"counters": {"m": {"value": "1Ki"}}}]},
            {"sharedCounters": [{"counters": {"m": {"value": "1024"}}}]},
        ),
    ],
)
def test_documents_say_the_same(wish: dict[str, Any], stored: dict[str, Any]) -> None:
    assert differences(wish, stored) == ()


@pytest.mark.parametrize(
    ("wish", "stored", "expected"),
    [
        (
            device("1", taints=[{**TAINT, "timeAdded": "2026-11-30T02:00:00Z"}]),
            device("1", taints=[{**TAINT, "timeAdded": "2026-11-30T02:00:01Z"}]),
            "devices[0].taints[0].timeAdded",
        ),
        (device("1", taints=[TAINT]), device("1", taints=[{**TAINT, "effect": "None"}]), "devices[0].taints[0].effect"),
        (device("1500m"), device("2"), "devices[0].capacity.memory.value"),
        (device("80Gi"), device("80G"), "devices[0].capacity.memory.value"),
        (device("1"), device("one"), "devices[0].capacity.memory.value"),
        (device("1", allowMultipleAllocations=True), device("1"), "devices[0].allowMultipleAllocations"),
        (device("1", minor=1), device("1", minor=True), "devices[0].minor"),
        # Outside of a capacity a text is a text.
        (device("1", name="1Ki"), device("1", name="1024"), "devices[0].name"),
        ({"devices": [{"name": "a"}, {"name": "b"}]}, {"devices": [{"name": "a"}]}, "devices"),
    ],
)
def test_documents_differ_at_a_path(wish: dict[str, Any], stored: dict[str, Any], expected: str) -> None:
    assert differences(wish, stored) == (expected,)


def test_the_order_of_devices_counts() -> None:
    assert differences({"devices": [{"name": "a"}, {"name": "b"}]}, {"devices": [{"name": "b"}, {"name": "a"}]}) == (
        "devices[0].name",
        "devices[1].name",
    )


def test_a_list_is_read_whether_or_not_it_has_items() -> None:
    listed = parse_list({"metadata": {"resourceVersion": "9"}, "items": [SLICE]})

    assert [(s.name, s.uid, s.resource_version, s.pool, s.generation) for s in listed.slices] == [
        ("00000-a", "u", "7", "node-a", 3)
    ]
    assert (listed.slices[0].document["apiVersion"], listed.slices[0].document["kind"]) == ("resource.k8s.io/v1", "ResourceSlice")
    assert parse_list({"metadata": {"resourceVersion": "9"}, "items": None}).slices == ()
    with pytest.raises(ShapeError, match="metadata"):
        parse_list({"items": []})
