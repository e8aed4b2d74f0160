"""The publishing loop with GPUs that are partitioned or not well, and with API servers that keep less than was written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from vgpu_dra.taints import Taint, TaintEffect
from vgpu_testkit import api_slice_rules
from vgpu_testkit.api_server import ApiServer
from vgpu_testkit.api_slice_gates import Gates
from vgpu_testkit.dra_values import INVENTORY, MIG
from vgpu_testkit.slice_bench import NODE, PACE, gpus, publishing

XID = Taint(key="manager.nvidia.com/xid", value="79", effect=TaintEffect.NO_SCHEDULE)
LOST = Taint(key="manager.nvidia.com/gpu-lost", value="", effect=TaintEffect.NO_SCHEDULE)


@pytest.fixture
def server() -> ApiServer:
    return ApiServer(node=NODE)


async def test_a_gpu_that_is_partitioned_changes_its_own_slice_and_no_generation(server: ApiServer) -> None:
    async with publishing(server, inventory=gpus(3)) as bench:
        await bench.until_quiet()

        split = replace(INVENTORY.gpus[1], is_mig=True, mig_devices=(MIG,))
        bench.becomes(replace(INVENTORY, gpus=(INVENTORY.gpus[0], split, INVENTORY.gpus[2])))
        await server.until(lambda: server.writes == 5)

    assert bench.devices() == [[], ["vgpu-0", "gpu-0"], ["gpu-1-mig-19-2-1"], ["vgpu-2", "gpu-2"]]
    assert bench.pools() == [(1, 4)] * 4


async def test_a_taint_is_one_write_that_keeps_the_generation_and_its_time(server: ApiServer) -> None:
    async with publishing(server, inventory=INVENTORY) as bench:
        await bench.until_quiet()

        bench.falls_ill(3, XID)
        await server.until(lambda: server.writes == 10)
        server.change(server.slices[4]["metadata"]["name"], _date_back)
        bench.falls_ill(3, XID, LOST)
        await server.until(lambda: server.writes == 11)
        taints = [device["taints"] for device in server.slices[4]["spec"]["devices"]]
        assert [[taint["key"] for taint in one] for one in taints] == [[XID.key, LOST.key]] * 2
        assert taints[1][0] == {
            "key": "manager.nvidia.com/xid",
            "value": "79",
            "effect": "NoSchedule",
            "timeAdded": "2026-01-01T00:00:00Z",
        }

        bench.falls_ill(3)
        await server.until(lambda: server.writes == 12)

    assert bench.pools() == [(1, 9)] * 9
    assert all("taints" not in device for s in server.slices for device in s["spec"].get("devices", []))


async def test_a_taint_that_is_there_is_not_written_again_by_a_restart(server: ApiServer) -> None:
    for _ in range(2):
        async with publishing(server, inventory=gpus(1), pace=replace(PACE, poll_s=0.05)) as bench:
            bench.falls_ill(0, XID)
            lists = server.count("list")
            await server.until(lambda lists=lists: server.count("list") >= lists + 10)  # type: ignore[misc]

    assert server.writes == 2


async def test_a_taint_that_comes_while_the_server_is_away_is_published_when_it_is_back(server: ApiServer) -> None:
    async with publishing(server, inventory=gpus(1)) as bench:
        await bench.until_quiet()
        server.fail_next("version", 0, times=10_000)

        bench.falls_ill(0, XID)
        await server.until(lambda: bench.sample("vgpu_dra_slice_failures_total", reason="away") >= 3)
        server.heal()
        server.fail_next("update", 503, times=2)
        await server.until(lambda: server.writes == 3)

    assert server.slices[1]["spec"]["devices"][0]["taints"][0]["value"] == "79"


async def test_a_server_without_taints_has_the_gpu_that_is_not_well_taken_away() -> None:
    server = ApiServer(node=NODE, gates=Gates(device_taints=False))

    async with publishing(server, inventory=gpus(2)) as bench:
        await bench.until_quiet()
        bench.falls_ill(0, XID)
        await server.until(lambda: server.writes == 4)
        assert bench.devices() == [[], [], ["vgpu-1", "gpu-1"]]

        bench.falls_ill(0)
        await server.until(lambda: server.writes == 5)

    assert bench.devices() == [[], ["vgpu-0", "gpu-0"], ["vgpu-1", "gpu-1"]]
    assert bench.pools() == [(1, 3)] * 3


async def test_fields_that_the_server_drops_are_taken_as_they_are_and_told_once() -> None:
    server = ApiServer(node=NODE, gates=Gates(consumable_capacity=False))

    async with publishing(server, inventory=gpus(1), pace=replace(PACE, poll_s=0.05)) as bench:
        await server.until(lambda: server.count("list") >= 12)
        assert server.writes == 2
        assert bench.sample("vgpu_dra_slice_failures_total", reason="dropped") == 1

        bench.falls_ill(0, XID)
        await server.until(lambda: server.writes == 3)
        await bench.until_quiet()

    assert server.writes == 3
    assert bench.devices() == [[], ["vgpu-0", "gpu-0"]]
    assert "requestPolicy" not in server.slices[1]["spec"]["devices"][0]["capacity"]["cores"]


async def test_a_taint_more_is_published_where_the_server_drops_other_fields() -> None:
    server = ApiServer(node=NODE, gates=Gates(consumable_capacity=False))

    async with publishing(server, inventory=gpus(1)) as bench:
        await bench.until_quiet()
        bench.falls_ill(0, XID)
        await server.until(lambda: server.writes == 3)
        bench.falls_ill(0, XID, LOST)
        await server.until(lambda: server.writes == 4)
        await bench.until_quiet()

    assert len(server.slices[1]["spec"]["devices"][0]["taints"]) == 2
    assert server.writes == 4


async def test_a_watch_that_broke_off_is_no_reason_to_ask_what_the_server_keeps(server: ApiServer) -> None:
    async with publishing(server) as bench:
        await bench.until_quiet()
        lists = server.count("list")
        server.fail_next("watch", 500)
        server.forget_history()
        await server.until(lambda: server.count("list") >= lists + 2 and server.watches == 1)

    assert server.count("rehearse") == 1


async def test_without_counters_one_kind_is_published_and_nothing_is_written_by_a_restart() -> None:
    server = ApiServer(node=NODE, gates=Gates(partitionable_devices=False))

    for _ in range(2):
        async with publishing(server, inventory=gpus(2), pace=replace(PACE, poll_s=0.05)) as bench:
            lists = server.count("list")
            await server.until(lambda lists=lists: server.count("list") >= lists + 5)  # type: ignore[misc]

    assert bench.devices() == [["vgpu-0"], ["vgpu-1"]]
    assert server.writes == 2
    assert bench.sample("vgpu_dra_slice_failures_total", reason="dropped") == 0


async def test_counters_that_must_be_in_one_slice_with_their_devices_are_not_used() -> None:
    server = ApiServer(node=NODE, gates=Gates(release=(1, 34)))

    async with publishing(server, inventory=gpus(1)) as bench:
        await bench.until_quiet()

    assert bench.devices() == [["vgpu-0"]]


async def test_an_api_server_that_is_upgraded_is_noticed_and_both_kinds_are_published() -> None:
    server = ApiServer(node=NODE, gates=Gates(release=(1, 34), partitionable_devices=False))

    async with publishing(server, inventory=gpus(2), pace=replace(PACE, poll_s=0.05)) as bench:
        await bench.until_quiet()
        assert bench.devices() == [["vgpu-0"], ["vgpu-1"]]

        server.gates = Gates(release=(1, 36))
        await server.until(lambda: len(server.slices) == 3)

    assert bench.devices() == [[], ["vgpu-0", "gpu-0"], ["vgpu-1", "gpu-1"]]
    assert bench.pools() == [(2, 3)] * 3
    assert api_slice_rules.pool_faults(server.slices) == []


async def test_an_api_server_with_other_gates_is_noticed_when_it_was_away() -> None:
    server = ApiServer(node=NODE, gates=Gates(partitionable_devices=False))

    async with publishing(server, inventory=gpus(1)) as bench:
        await bench.until_quiet()
        server.gates = Gates()
        server.fail_next("list", 503)
        bench.becomes(gpus(1))
        await server.until(lambda: len(server.slices) == 2)

    assert bench.devices() == [[], ["vgpu-0", "gpu-0"]]


class TwoServers(ApiServer):
    """Two API servers in the middle of an upgrade: the new one is asked, the old one is written to."""

    def _written(self, body: dict[str, Any], old: dict[str, Any] | None, *, is_rehearsal: bool = False) -> web.Response:
        self.gates = Gates(partitionable_devices=is_rehearsal)
        response = super()._written(body, old, is_rehearsal=is_rehearsal)
        self.whole.append(not api_slice_rules.pool_faults(self.slices))
        return response

    whole: list[bool]


async def test_counters_that_are_dropped_against_the_word_of_the_server_never_leave_both_kinds_in_a_whole_pool() -> None:
    server = TwoServers(node=NODE)
    server.whole = []

    async with publishing(server, inventory=gpus(2)) as bench:
        await bench.until_quiet()

    assert bench.devices() == [["vgpu-0"], ["vgpu-1"]]
    # The rehearsal, the budgets that were dropped, and the two slices that make the pool whole.
    assert server.whole == [False, False, False, True]
    assert bench.sample("vgpu_dra_slice_failures_total", reason="dropped") == 1


def _date_back(slice_: dict[str, Any]) -> None:
    for device in slice_["spec"]["devices"]:
        device["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
