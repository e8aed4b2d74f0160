"""The publishing loop against an API server over HTTP: what it writes, when it writes nothing, what it does when told no."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vgpu_testkit import api_slice_rules
from vgpu_testkit.api_server import ApiServer
from vgpu_testkit.dra_values import INVENTORY
from vgpu_testkit.slice_bench import NODE, ONE_GPU, PACE, gpus, publishing

# With counters: the budgets, then each GPU's two devices in a slice of their own.
EIGHT = [[], *[[f"vgpu-{i}", f"gpu-{i}"] for i in range(8)]]

ONE = EIGHT[:2]


@pytest.fixture
def server() -> ApiServer:
    return ApiServer(node=NODE)


async def test_eight_gpus_are_nine_slices_of_the_node_that_the_api_server_takes(server: ApiServer) -> None:
    async with publishing(server, inventory=INVENTORY) as bench:
        await server.until(lambda: len(server.slices) == 9)
        budgets, first, *_ = server.slices

    assert [s["metadata"]["name"][:31] for s in (budgets, first)] == [
        "00000-manager.nvidia.com-node-a",
        "00001-manager.nvidia.com-node-a",
    ]
    assert budgets["metadata"]["ownerReferences"][0]["uid"] == server.nodes["node-a"]
    assert [s["name"] for s in budgets["spec"]["sharedCounters"]] == [f"gpu-{i}-counter-set" for i in range(8)]
    assert bench.devices() == EIGHT
    assert bench.pools() == [(1, 9)] * 9
    assert api_slice_rules.pool_faults(server.slices) == []
    assert server.writes == 9
    assert bench.sample("vgpu_dra_published_devices") == 16


async def test_nothing_is_written_when_nothing_changed(server: ApiServer) -> None:
    pace = replace(PACE, poll_s=0.05)
    # A total that the API server writes its own way: 81920Mi is 80Gi.
    inventory = replace(INVENTORY, gpus=(replace(INVENTORY.gpus[0], memory_bytes=80 << 30),))
    async with publishing(server, pace=pace, inventory=inventory):
        await server.until(lambda: server.count("list") >= 20)
    assert server.slices[1]["spec"]["devices"][0]["capacity"]["memory"]["value"] == "80Gi"
    assert server.writes == 2

    async with publishing(server, pace=pace, inventory=inventory) as bench:
        await server.until(lambda: server.count("list") >= 40)

    assert server.writes == 2
    assert server.count("rehearse") == 2
    assert bench.fault is None


async def test_a_changed_inventory_is_published_at_once(server: ApiServer) -> None:
    async with publishing(server, inventory=gpus(8)) as bench:
        await bench.until_quiet()

        bench.becomes(gpus(7))
        await server.until(lambda: len(server.slices) == 8 and bench.pools() == [(2, 8)] * 8)

    assert bench.devices() == EIGHT[:8]


async def test_no_gpu_is_one_slice_without_devices(server: ApiServer) -> None:
    async with publishing(server, inventory=gpus(0)) as bench:
        await server.until(lambda: len(server.slices) == 1)

    assert bench.devices() == [[]]
    assert bench.sample("vgpu_dra_published_devices") == 0


async def test_nothing_is_published_or_deleted_before_the_gpus_are_known(server: ApiServer) -> None:
    async with publishing(server):
        await server.until(lambda: len(server.slices) == 2)
    requests = len(server.requests)

    async with publishing(server, inventory=None) as bench:
        bench.becomes(ONE_GPU)
        await server.until(lambda: server.watches == 1)

    assert [r.verb for r in server.requests[requests:]][-3:] == ["get", "list", "watch"]
    assert server.writes == 2


async def test_slices_deleted_by_kubelet_are_there_again(server: ApiServer) -> None:
    async with publishing(server) as bench:
        for writes in (1, 2, 3):
            await server.until(lambda writes=writes: server.writes == 2 * writes and server.watches == 1)  # type: ignore[misc]
            server.wipe()
        await server.until(lambda: server.writes == 8)

    assert bench.devices() == ONE


async def test_a_deletion_that_no_event_tells_of_is_found_by_the_look_after_a_write(server: ApiServer) -> None:
    async with publishing(server, pace=replace(PACE, recheck_s=2.0)) as bench:
        await bench.until_quiet()
        server.lose_silently()
        await server.until(lambda: server.writes == 4)

    assert bench.devices() == ONE


async def test_a_deletion_that_no_event_tells_of_is_found_by_the_slow_poll(server: ApiServer) -> None:
    async with publishing(server, pace=replace(PACE, recheck_s=0.05, poll_s=0.1)) as bench:
        await server.until(lambda: server.count("list") >= 6)
        server.lose_silently()
        await server.until(lambda: server.writes == 4)

    assert bench.devices() == ONE


async def test_a_slice_that_somebody_changed_is_put_right(server: ApiServer) -> None:
    async with publishing(server) as bench:
        await server.until(lambda: server.writes == 2 and server.watches == 1)
        server.change(server.slices[1]["metadata"]["name"], lambda s: s["spec"]["devices"].pop())
        await server.until(lambda: server.writes == 3)

    assert bench.devices() == ONE


async def test_slices_of_other_drivers_and_nodes_are_left_alone(server: ApiServer) -> None:
    pool = {"name": "node-b", "generation": 1, "resourceSliceCount": 1}
    server.put({"metadata": {"name": "a"}, "spec": {"driver": "manager.nvidia.com", "nodeName": "node-b", "pool": pool}})
    server.put({"metadata": {"name": "b"}, "spec": {"driver": "other.example.com", "nodeName": "node-a", "pool": pool}})

    async with publishing(server) as bench:
        await server.until(lambda: len(server.slices) == 4)
        await bench.until_quiet()

    assert (server.count("delete"), server.writes) == (0, 2)


@pytest.mark.parametrize(
    ("verb", "status", "reason"),
    [("create", 0, "away"), ("create", 503, "away"), ("create", 429, "away"), ("list", 500, "away"), ("get", 503, "away")],
)
async def test_a_fault_of_the_server_is_tried_again_and_no_fault_of_ours(
    server: ApiServer, verb: str, status: int, reason: str
) -> None:
    server.fail_next(verb, status, times=3)

    async with publishing(server) as bench:
        await server.until(lambda: len(server.slices) == 2)
        await bench.until_quiet()

    assert bench.sample("vgpu_dra_slice_failures_total", reason=reason) == 3
    assert bench.fault is None


@pytest.mark.parametrize(("verb", "status"), [("create", 422), ("create", 403), ("list", 403), ("get", 404)])
async def test_a_refusal_is_a_fault_until_it_is_mended(server: ApiServer, verb: str, status: int) -> None:
    server.fail_next(verb, status, times=10_000)

    async with publishing(server) as bench:
        await server.until(lambda: bench.fault is not None)
        assert bench.sample("vgpu_dra_slice_failures_total", reason="refused") == 4
        assert bench.fault is not None
        assert bench.fault.startswith("ResourceSlices are not published: the API server refused ")
        assert bench.fault.endswith(f": {status} an error that the test wanted")

        server.heal()
        await server.until(lambda: len(server.slices) == 2)
        await bench.until_quiet()
        assert bench.fault is None


async def test_a_server_that_does_not_know_its_roles_yet_makes_no_fault(server: ApiServer) -> None:
    server.fail_next("list", 403, times=3)
    faults: list[str | None] = []

    async with publishing(server) as bench:
        await server.until(lambda: faults.append(bench.fault) is None and len(server.slices) == 2)

    assert set(faults) == {None}


async def test_a_conflict_is_resolved_by_a_new_look(server: ApiServer) -> None:
    async with publishing(server) as bench:
        await server.until(lambda: len(server.slices) == 2)
        await bench.until_quiet()
        server.fail_next("update", 409)

        bench.becomes(replace(INVENTORY, gpus=(replace(INVENTORY.gpus[0], name="another"),)))
        await server.until(lambda: server.writes == 3)
        await bench.until_quiet()

    assert bench.devices() == ONE
    assert bench.sample("vgpu_dra_slice_failures_total", reason="refused") == 0


async def test_a_watch_that_lost_its_place_is_followed_by_a_list(server: ApiServer) -> None:
    async with publishing(server) as bench:
        await bench.until_quiet()
        lists = server.count("list")
        server.forget_history()
        await server.until(lambda: server.count("list") > lists and server.watches == 1)
        server.wipe()
        await server.until(lambda: server.writes == 4)

    assert bench.fault is None


async def test_a_watch_that_ends_in_time_goes_on_from_its_bookmark_without_a_list(server: ApiServer) -> None:
    async with publishing(server, pace=replace(PACE, watch_s=1.0, recheck_s=600.0)) as bench:
        await bench.until_quiet()
        lists = server.count("list")
        server.put(_foreign())  # the version goes on, and only the bookmark tells
        await server.until(lambda: server.count("watch") >= server.count("list") + 2)
        assert server.count("list") == lists
        server.wipe()
        await server.until(lambda: server.writes == 4)

    assert bench.devices() == ONE


async def test_a_watch_that_is_refused_or_breaks_off_does_not_end_the_loop(server: ApiServer) -> None:
    server.fail_next("watch", 0)
    server.fail_next("watch", 410)
    server.fail_next("watch", 500)

    async with publishing(server) as bench:
        await server.until(lambda: server.watches == 1)
        await bench.until_quiet()

    assert server.writes == 2
    assert bench.fault is None


async def test_slices_follow_a_node_that_was_registered_anew(server: ApiServer) -> None:
    async with publishing(server) as bench:
        await bench.until_quiet()
        server.nodes["node-a"] = "99999999-9999-9999-9999-999999999999"
        server.wipe()  # the garbage collector
        await server.until(lambda: server.writes == 4)

    assert server.slices[0]["metadata"]["ownerReferences"][0]["uid"] == "99999999-9999-9999-9999-999999999999"
    assert bench.fault is None


async def test_slices_stay_when_the_publisher_ends(server: ApiServer) -> None:
    async with publishing(server):
        await server.until(lambda: server.watches == 1)

    assert len(server.slices) == 2


def _foreign() -> dict[str, Any]:
    pool = {"name": "node-b", "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": "foreign"}, "spec": {"driver": "other.example.com", "nodeName": "node-b", "pool": pool}}
