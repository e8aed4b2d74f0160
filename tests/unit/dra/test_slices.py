"""What is written to make the pool as it should be: as little as possible, and never a pool that looks whole and is not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from vgpu_dra.policy.slices import DEVICES_PER_SLICE, Plan, PoolOwner, contents, generate_name, plan_pool
from vgpu_dra.slice_documents import Create, Delete, Document, Replace, StoredSlice, parse_slice
from vgpu_state.ids import NodeName

NODE = NodeName("node-a")
OWNER = PoolOwner(node=NODE, node_uid="11111111-1111-1111-1111-111111111111")
PREFIX = "manager.nvidia.com-node-a-"


def devices(number: int) -> list[Document]:
    return [{"name": f"vgpu-{i}"} for i in range(number)]


def pool_of(number: int) -> list[list[Document]]:
    """The devices of one GPU."""
    return [devices(number)]


def store(index: int, names: Sequence[str] = (), **change: Any) -> StoredSlice:
    """A slice as it is stored: that of `index` of a pool in generation 4 with `total` slices."""
    generation, total, name = change.get("generation", 4), change.get("total", 1), change.get("name", "x")
    generated = change.get("generated", f"{index:05x}-{PREFIX}")
    spec: dict[str, Any] = {
        "driver": "manager.nvidia.com",
        "nodeName": "node-a",
        "pool": {"name": change.get("pool", "node-a"), "generation": generation, "resourceSliceCount": total},
    }
    if names:
        spec["devices"] = [{"name": n} for n in names]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": change.get("owner", OWNER.node_uid), "controller": True}
    metadata = {
        "name": f"{generated}{name}",
        "generateName": generated,
        "uid": f"uid-{index}-{name}",
        "resourceVersion": "77",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [owner],
    }
    return parse_slice({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec})


def shown(writes: Sequence[object]) -> list[str]:
    """Writes as words: what, on which, with which generation and count."""
    words = []
    for write in writes:
        match write:
            case Delete(stored=s):
                words.append(f"delete {s.name}")
            case Replace(stored=s, document=d):
                pool = d["spec"]["pool"]
                words.append(f"replace {s.name} {pool['generation']} of {pool['resourceSliceCount']}")
            case Create(document=d):
                pool = d["spec"]["pool"]
                words.append(f"create {d['metadata']['generateName']} {pool['generation']} of {pool['resourceSliceCount']}")
    return words


def test_budgets_come_first_eight_in_a_slice_and_each_gpu_has_slices_of_its_own() -> None:
    sets = [{"name": f"gpu-{i}-counter-set"} for i in range(9)]
    gpus = [[{"name": "a"}, {"name": "b"}], [], *[[{"name": f"d{i}"}] for i in range(7)]]

    found = contents(gpus, sets)

    assert [[s["name"] for s in one["sharedCounters"]] for one in found[:2]] == [
        [f"gpu-{i}-counter-set" for i in range(8)],
        ["gpu-8-counter-set"],
    ]
    assert [[d["name"] for d in one["devices"]] for one in found[2:5]] == [["a", "b"], [], ["d0"]]
    assert len(found) == 11


def test_eight_gpus_are_nine_slices() -> None:
    assert len(contents([devices(2)] * 8, [{"name": f"s{i}"} for i in range(8)])) == 9


def test_sixty_five_devices_are_two_slices_in_their_order() -> None:
    chunks = contents(pool_of(65))

    assert [len(c["devices"]) for c in chunks] == [64, 1]
    assert [d["name"] for c in chunks for d in c["devices"]] == [f"vgpu-{i}" for i in range(65)]
    assert [len(c["devices"]) for c in contents(pool_of(64))] == [64]


def test_no_device_is_one_empty_slice() -> None:
    assert contents(()) == ({"devices": []},)


def test_first_publication_creates_a_slice_owned_by_the_node() -> None:
    plan = plan_pool(contents(pool_of(2)), stored=(), owner=OWNER)

    assert plan.writes == (
        Create(
            document={
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {
                    "generateName": "00000-manager.nvidia.com-node-a-",
                    "ownerReferences": [
                        {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": OWNER.node_uid, "controller": True}
                    ],
                },
                "spec": {
                    "driver": "manager.nvidia.com",
                    "nodeName": "node-a",
                    "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
                    "devices": [{"name": "vgpu-0"}, {"name": "vgpu-1"}],
                },
            }
        ),
    )


def test_nothing_is_written_when_the_pool_is_as_it_should_be() -> None:
    plan = plan_pool(contents(pool_of(1)), stored=[store(0, ["vgpu-0"])], owner=OWNER)

    assert (plan.generation, plan.writes) == (4, ())
    assert plan_pool(contents(()), stored=[store(0)], owner=OWNER).writes == ()


def test_one_changed_slice_is_replaced_in_its_generation_and_keeps_its_metadata() -> None:
    stored = store(0, ["vgpu-0"])

    plan = plan_pool(contents(pool_of(2)), stored=[stored], owner=OWNER)

    assert shown(plan.writes) == [f"replace 00000-{PREFIX}x 4 of 1"]
    assert isinstance(plan.writes[0], Replace)
    assert plan.writes[0].document["metadata"] == stored.document["metadata"]


def test_two_changed_slices_raise_the_generation_of_all() -> None:
    wishes = [{"devices": [{"name": "a"}]}, {"devices": [{"name": "b"}]}, {"devices": [{"name": "c"}]}]
    stored = [store(0, ["a"], total=3), store(1, ["B"], total=3), store(2, ["C"], total=3)]

    plan = plan_pool(wishes, stored=stored, owner=OWNER)

    assert shown(plan.writes) == [f"replace {i:05x}-{PREFIX}x 5 of 3" for i in range(3)]


def test_one_of_three_changed_is_the_only_write() -> None:
    wishes = [{"devices": [{"name": "a"}]}, {"devices": [{"name": "b"}]}, {"devices": [{"name": "c"}]}]
    stored = [store(0, ["a"], total=3), store(1, ["B"], total=3), store(2, ["c"], total=3)]

    assert shown(plan_pool(wishes, stored=stored, owner=OWNER).writes) == [f"replace 00001-{PREFIX}x 4 of 3"]


def test_a_missing_slice_raises_the_generation_of_all() -> None:
    wishes = [{"devices": [{"name": "a"}]}, {"devices": [{"name": "b"}]}]

    plan = plan_pool(wishes, stored=[store(0, ["a"], total=2)], owner=OWNER)

    assert shown(plan.writes) == [f"replace 00000-{PREFIX}x 5 of 2", f"create 00001-{PREFIX} 5 of 2"]


def test_a_slice_too_many_is_deleted_before_the_rest_is_written() -> None:
    stored = [store(0, ["vgpu-0"], total=2), store(1, ["vgpu-64"], total=2)]

    plan = plan_pool(contents(pool_of(1)), stored=stored, owner=OWNER)

    assert shown(plan.writes) == [f"delete 00001-{PREFIX}x", f"replace 00000-{PREFIX}x 4 of 1"]


def test_slices_are_written_in_their_order_whether_they_exist_or_not() -> None:
    wishes = [{"sharedCounters": [{"name": "s"}]}, {"devices": [{"name": "a"}]}, {"devices": [{"name": "b"}]}]

    plan = plan_pool(wishes, stored=[store(1, ["a"], total=1)], owner=OWNER)

    assert shown(plan.writes) == [
        f"create 00000-{PREFIX} 5 of 3",
        f"replace 00001-{PREFIX}x 5 of 3",
        f"create 00002-{PREFIX} 5 of 3",
    ]


def test_a_taint_that_was_there_keeps_its_time_and_changes_nothing() -> None:
    xid = {"key": "d/xid", "value": "79", "effect": "NoSchedule"}
    wish = {"name": "a", "taints": [xid]}
    stored = store(0)
    stored.document["spec"]["devices"] = [{"name": "a", "taints": [{**xid, "timeAdded": "2026-11-30T02:00:00Z"}]}]
    lost = {"key": "d/gpu-lost", "effect": "NoSchedule"}

    unchanged = plan_pool([{"devices": [wish]}], stored=[stored], owner=OWNER)
    changed = plan_pool([{"devices": [{"name": "a", "taints": [lost, xid]}]}], stored=[stored], owner=OWNER)
    other = plan_pool([{"devices": [{"name": "a", "taints": [{**xid, "value": "48"}]}]}], stored=[stored], owner=OWNER)

    assert unchanged.writes == ()
    assert _taints(changed) == [lost, {**xid, "timeAdded": "2026-11-30T02:00:00Z"}]
    assert _taints(other) == [{**xid, "value": "48"}]


def _taints(plan: Plan) -> Any:
    (write,) = plan.writes
    assert isinstance(write, Replace)
    return write.document["spec"]["devices"][0]["taints"]


def test_of_two_slices_at_one_index_the_newer_generation_stays() -> None:
    stored = [store(0, ["vgpu-0"], generation=3, name="a"), store(0, ["vgpu-0"], name="b"), store(0, ["vgpu-0"], name="c")]

    plan = plan_pool(contents(pool_of(1)), stored=stored, owner=OWNER)

    assert shown(plan.writes) == [f"delete 00000-{PREFIX}c", f"delete 00000-{PREFIX}a"]


def test_a_rewrite_that_was_broken_off_is_finished_in_its_generation() -> None:
    wishes = [{"devices": [{"name": "a"}]}, {"devices": [{"name": "b"}]}]
    stored = [store(0, ["a"], total=2, generation=5), store(1, ["b"], total=2, generation=4)]

    assert shown(plan_pool(wishes, stored=stored, owner=OWNER).writes) == [f"replace 00001-{PREFIX}x 5 of 2"]


def test_slices_under_another_name_or_pool_are_deleted_and_made_anew_above_their_generation() -> None:
    stored = [store(0, ["vgpu-0"], generated="node-a-manager.nvidia.com-", generation=9), store(0, ["vgpu-0"], pool="other")]

    plan = plan_pool(contents(pool_of(1)), stored=stored, owner=OWNER)

    assert shown(plan.writes) == [
        "delete node-a-manager.nvidia.com-x",
        f"delete 00000-{PREFIX}x",
        f"create 00000-{PREFIX} 10 of 1",
    ]


def test_a_slice_owned_by_an_earlier_node_of_this_name_is_replaced() -> None:
    stored = [store(0, ["vgpu-0"], owner="22222222-2222-2222-2222-222222222222")]

    plan = plan_pool(contents(pool_of(1)), stored=stored, owner=OWNER)

    assert isinstance(plan.writes[0], Replace)
    assert plan.writes[0].document["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": OWNER.node_uid, "controller": True}
    ]


def test_names_begin_with_the_index_so_that_their_order_is_that_of_the_devices() -> None:
    assert generate_name(0, NODE) == "00000-manager.nvidia.com-node-a-"
    assert generate_name(26, NODE) == "0001a-manager.nvidia.com-node-a-"


@given(st.lists(st.tuples(st.integers(0, 200), st.sampled_from(("keep", "wipe", "lose one"))), min_size=1, max_size=6))
def test_after_any_history_one_pass_makes_the_pool_whole_and_a_second_writes_nothing(history: list[tuple[int, str]]) -> None:
    stored: dict[str, StoredSlice] = {}
    numbers = count(1)
    generation = 0
    for device_count, accident in history:
        if accident == "wipe":
            stored.clear()
        elif accident == "lose one" and stored:
            del stored[max(stored)]
        if not stored:
            generation = 0  # nobody remembers
        wishes = contents(pool_of(device_count))

        plan = plan_pool(wishes, stored=stored.values(), owner=OWNER)
        for write in plan.writes:
            _apply(write, stored, number=next(numbers))

        assert plan.generation >= generation
        generation = plan.generation
        pools = [s.spec["pool"] for s in stored.values()]
        assert [(p["generation"], p["resourceSliceCount"]) for p in pools] == [(plan.generation, len(wishes))] * len(wishes)
        names = [d["name"] for _, s in sorted(stored.items()) for d in s.spec.get("devices", [])]
        assert names == [f"vgpu-{i}" for i in range(device_count)]
        assert all(len(s.spec.get("devices", [])) <= DEVICES_PER_SLICE == 64 for s in stored.values())
        assert plan_pool(wishes, stored=stored.values(), owner=OWNER).writes == ()


def _apply(write: object, stored: dict[str, StoredSlice], *, number: int) -> None:
    match write:
        case Delete(stored=s):
            del stored[s.name]
        case Replace(stored=s, document=d):
            stored[s.name] = parse_slice(d)
        case Create(document=d):
            name = f"{d['metadata']['generateName']}{number:05}"
            stored[name] = parse_slice({**d, "metadata": {**d["metadata"], "name": name, "uid": name, "resourceVersion": "1"}})
