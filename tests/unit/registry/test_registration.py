"""Registrations over real sockets, with the kernel's word in files and a stand-in for dra-plugin."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping

import pytest
from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_state.claims import HolderState
from vgpu_testkit.registry_dra import DraStandIn
from vgpu_testkit.registry_node import (
    ConnectedChannel,
    RegistryNode,
    connect_as_another,
    node_container,
    register,
)

ME = os.getpid()
CONTAINER = node_container(1)


@pytest.mark.usefixtures("registry")
async def test_registration_records_the_containers_pids_ascending(node: RegistryNode, dra: DraStandIn, channel: Channel) -> None:
    node.runs(CONTAINER, [ME, 7, 3000000])
    node.bind(CONTAINER)

    await register(channel, CONTAINER)

    assert node.recorded(CONTAINER) == tuple(sorted([7, ME, 3000000]))
    request = dra.requests[0]
    assert (request.claim_uid, request.partition) == (
        "00000001-3333-4333-8333-333333333333",
        "00000001-1111-4111-8111-111111111111_main",
    )
    assert request.runtime_id == CONTAINER.runtime_id


@pytest.mark.usefixtures("registry", "dra")
async def test_call_is_held_until_the_binding_appears(node: RegistryNode, channel: Channel) -> None:
    node.runs(CONTAINER, [ME])

    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(register(channel, CONTAINER))
        await node.until_held(1, reason="no partition is bound")
        node.bind(CONTAINER, cgroup="")
        await node.until_held(1, reason="the start of container main is not recorded yet")
        assert not call.done()
        node.bind(CONTAINER)

    assert node.recorded(CONTAINER) == (ME,)


@pytest.mark.usefixtures("registry", "dra")
async def test_call_is_held_until_the_caller_is_in_its_containers_cgroup(node: RegistryNode, channel: Channel) -> None:
    node.process(ME, f"/kubepods/burstable/pod{CONTAINER.pod_uid}")
    node.bind(CONTAINER)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(register(channel, CONTAINER))
        await node.until_held(1, reason="not yet in the cgroup of a container")
        node.process(ME, CONTAINER.cgroup)
        node.populate(CONTAINER.cgroup, [])
        await node.until_held(1, reason="the cgroup of container main has no process")
        node.populate(CONTAINER.cgroup, [5])
        await node.until_held(1, reason=f"process {ME} is not in the cgroup of container main")
        node.populate(CONTAINER.cgroup, [5, ME])

    assert node.recorded(CONTAINER) == (5, ME)


@pytest.mark.usefixtures("registry")
async def test_call_is_held_until_dra_plugin_is_back(node: RegistryNode, channel: Channel) -> None:
    node.runs(CONTAINER, [ME])
    node.bind(CONTAINER)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(register(channel, CONTAINER))
        await node.until_held(1, reason="dra-plugin is away")
        async with DraStandIn(node).serving():
            await node.until_none_held()

    assert node.recorded(CONTAINER) == (ME,)


@pytest.mark.usefixtures("registry")
async def test_call_is_held_while_dra_plugin_says_not_now_or_superseded(
    node: RegistryNode, dra: DraStandIn, channel: Channel
) -> None:
    node.runs(CONTAINER, [ME])
    node.bind(CONTAINER)
    dra.refusal = GRPCError(Status.UNAVAILABLE, "waiting for the writer lock")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(register(channel, CONTAINER))
        await node.until_held(1, reason="waiting for the writer lock")
        dra.refusal = GRPCError(Status.ABORTED, "a newer container took its place")
        await node.until_held(1, reason="a newer container took its place")
        dra.refusal = None

    assert node.recorded(CONTAINER) == (ME,)


@pytest.mark.usefixtures("registry", "dra")
async def test_call_at_its_deadline_is_unavailable_with_the_last_reason(node: RegistryNode, channel: Channel) -> None:
    node.runs(CONTAINER, [ME])
    node.bind(CONTAINER, state=HolderState.STOPPED)

    with pytest.raises(GRPCError) as caught:
        await register(channel, CONTAINER, timeout_s=1.0)

    assert (caught.value.status, caught.value.message) == (Status.UNAVAILABLE, "container main is stopped")
    assert await node.debug("/debug/held") == (200, [])


@pytest.mark.usefixtures("registry")
async def test_calls_of_one_container_share_their_recordings(node: RegistryNode, dra: DraStandIn, channel: Channel) -> None:
    node.runs(CONTAINER, [ME])
    node.bind(CONTAINER)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(50):
            tasks.create_task(register(channel, CONTAINER))

    assert 1 <= len(dra.requests) <= 25
    assert node.recorded(CONTAINER) == (ME,)


@pytest.mark.usefixtures("registry")
async def test_calls_held_for_one_thing_are_answered_by_one_recording(
    node: RegistryNode, dra: DraStandIn, channel: Channel
) -> None:
    node.runs(CONTAINER, [ME])

    async with asyncio.TaskGroup() as tasks:
        for _ in range(50):
            tasks.create_task(register(channel, CONTAINER))
        await node.until_held(50, reason="no partition is bound")
        node.bind(CONTAINER)

    assert len(dra.requests) == 1


@pytest.fixture
async def another(node: RegistryNode, registry: asyncio.Event) -> AsyncIterator[tuple[Channel, int]]:
    """A connection of another process, and its PID."""
    connected, pid = await asyncio.to_thread(connect_as_another, node.socket)
    channel = ConnectedChannel(connected)
    yield channel, pid
    channel.close()


@pytest.mark.usefixtures("registry", "dra")
async def test_a_container_that_floods_does_not_delay_another(
    node: RegistryNode, channel: Channel, another: tuple[Channel, int]
) -> None:
    other_channel, other_pid = another
    other = node_container(2)
    node.runs(CONTAINER, [ME])
    node.runs(other, [other_pid])
    node.bind(other)
    more = Channel(path=str(node.socket))

    async with asyncio.TaskGroup() as tasks:
        flood = [tasks.create_task(_refusal(c)) for c in (channel, more) for _ in range(100)]
        await node.until_held(200)
        began_s = time.monotonic()
        await register(other_channel, other)
        took_s = time.monotonic() - began_s
        for call in flood:
            call.cancel()
    more.close()

    assert took_s < 1.0
    assert node.recorded(other) == (other_pid,)


@pytest.mark.usefixtures("registry", "dra")
async def test_a_caller_that_goes_away_leaves_nothing(node: RegistryNode, channel: Channel) -> None:
    node.runs(CONTAINER, [ME])

    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(_refusal(channel))
        await node.until_held(1)
        call.cancel()
    await node.until_none_held()

    _, history = await node.debug("/debug/registrations")
    assert [entry["verdict"] for entry in history] == ["gone"]


@pytest.mark.usefixtures("registry", "dra")
async def test_debug_and_metrics_tell_what_happened(node: RegistryNode, channel: Channel) -> None:
    node.runs(CONTAINER, [ME])
    node.bind(CONTAINER)
    await register(channel, CONTAINER)
    await _refusal(channel, {"pod_uid": "99999999-1111-4111-8111-111111111111"})

    _, history = await node.debug("/debug/registrations")
    _, index = await node.debug("/debug/index")
    _, metrics = await node.debug("/metrics")

    assert [(e["verdict"], e["peer_pid"], e["container_id"]) for e in history] == [
        ("ok", ME, CONTAINER.runtime_id),
        ("denied", ME, CONTAINER.runtime_id),
    ]
    assert history[0]["claim_uid"] == CONTAINER.claim_uid
    assert index == {f"{CONTAINER.claim_uid}/{CONTAINER.partition}": CONTAINER.runtime_id}
    assert 'vgpu_registrations_total{verdict="ok"} 1.0' in metrics
    assert 'vgpu_registrations_total{verdict="denied"} 1.0' in metrics
    assert "vgpu_registry_indexed_containers 1.0" in metrics


async def _refusal(channel: Channel, said: Mapping[str, str] | None = None) -> tuple[Status, str | None]:
    with pytest.raises(GRPCError) as caught:
        await register(channel, CONTAINER, said=said)
    return caught.value.status, caught.value.message
