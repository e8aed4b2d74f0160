"""The real process and the library's client as processes: what a container without NRI goes through when it registers."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace

import pytest

from vgpu_state.ids import PartitionName
from vgpu_testkit.registry_client import Clients
from vgpu_testkit.registry_dra import DraStandIn
from vgpu_testkit.registry_node import RegistryNode, Started, node_container, restarted

UUID = "6d0c1c5e-0e4b-4a7d-8a52-4f2a70f3c001"
UNKNOWN = "6d0c1c5e-0e4b-4a7d-8a52-4f2a70f3cfff"
CONTAINER = replace(node_container(1), component=PartitionName("cg-0123456789ab"))


@pytest.mark.parametrize("has_names", [False, True])
async def test_the_device_client_registers_by_uuid(
    node: RegistryNode, dra: DraStandIn, clients: Clients, started: Started, has_names: bool
) -> None:
    dra.prepare(CONTAINER, register_uuid=UUID)

    async with started():
        client = await clients.call(CONTAINER, register_uuid=UUID, has_names=has_names)
        assert await client.wait() == 0

    assert node.recorded(CONTAINER) == (client.pid,)
    assert [bind.pid for bind in dra.binds] == [client.pid]


async def test_fifty_processes_that_start_at_once_all_register_by_one_binding(
    node: RegistryNode, dra: DraStandIn, clients: Clients, started: Started
) -> None:
    dra.prepare(CONTAINER, register_uuid=UUID)

    async with started():
        calling = await clients.call_at_once(CONTAINER, 50, register_uuid=UUID, has_names=False)
        assert [await client.wait() for client in calling] == 50 * [0]

    assert len(dra.binds) == 1
    assert node.recorded(CONTAINER) == tuple(sorted(client.pid for client in calling))


async def test_a_second_live_container_and_an_unknown_uuid_end_the_client(
    node: RegistryNode, dra: DraStandIn, clients: Clients, started: Started
) -> None:
    dra.prepare(CONTAINER, register_uuid=UUID)

    async with started():
        first = await clients.call(CONTAINER, register_uuid=UUID, has_names=False)
        assert await first.wait() == 0
        node.populate(CONTAINER.cgroup, [first.pid])
        second = await clients.call(restarted(CONTAINER, 77), register_uuid=UUID, has_names=False)
        _, held = await second.communicate()
        third = await clients.call(restarted(CONTAINER, 78), register_uuid=UNKNOWN, has_names=False)
        _, unknown = await third.communicate()

    assert (second.returncode, third.returncode) == (1, 1)
    assert b"is held by container main of pod team-a/train-0, which still runs" in held
    assert b"dra-plugin refuses the register_uuid: no claim of this node has a partition with it" in unknown
    assert node.recorded(CONTAINER) == (first.pid,)


async def test_a_client_waits_for_a_dra_plugin_that_is_away(node: RegistryNode, clients: Clients, started: Started) -> None:
    dra = DraStandIn(node)
    dra.prepare(CONTAINER, register_uuid=UUID)

    async with started():
        client = await clients.call(CONTAINER, register_uuid=UUID, has_names=False)
        await node.until_held(1, reason="dra-plugin is away")
        async with dra.serving():
            assert await client.wait() == 0

    assert node.recorded(CONTAINER) == (client.pid,)


async def test_sigterm_lets_a_call_finish_that_waits_for_dra_plugin(
    node: RegistryNode, clients: Clients, started: Started
) -> None:
    dra = DraStandIn(node)
    dra.prepare(CONTAINER, register_uuid=UUID)

    async with started() as process:
        client = await clients.call(CONTAINER, register_uuid=UUID, has_names=False)
        await node.until_held(1, reason="dra-plugin is away")
        process.send_signal(signal.SIGTERM)
        async with dra.serving(), asyncio.timeout(10):
            assert await client.wait() == 0
            assert await process.wait() == 0

    assert node.recorded(CONTAINER) == (client.pid,)


async def test_the_next_registry_goes_by_the_binding(
    node: RegistryNode, dra: DraStandIn, clients: Clients, started: Started
) -> None:
    dra.prepare(CONTAINER, register_uuid=UUID)
    async with started() as process:
        first = await clients.call(CONTAINER, register_uuid=UUID, has_names=False)
        assert await first.wait() == 0
        process.kill()
        await process.wait()

    async with started():
        second = await clients.call(CONTAINER, register_uuid=UUID, has_names=False)
        async with asyncio.timeout(10):
            assert await second.wait() == 0

    assert len(dra.binds) == 1
    assert node.recorded(CONTAINER) == (second.pid,)
