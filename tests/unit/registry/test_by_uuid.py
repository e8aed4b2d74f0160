"""Registrations by the UUID of a partition that was made at Prepare, over real sockets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest
from grpclib.client import Channel
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from vgpu_proto.registrations import BindPartitionRequest, RecordPidsRequest, RecordPidsResponse
from vgpu_state.ids import PartitionName
from vgpu_testkit import registry_dra
from vgpu_testkit.registry_dra import DraStandIn
from vgpu_testkit.registry_node import (
    ConnectedChannel,
    NodeContainer,
    RegistryNode,
    connect_as_another,
    node_container,
    register,
    restarted,
)

ME = os.getpid()
UUID = "6d0c1c5e-0e4b-4a7d-8a52-4f2a70f3c001"
UNKNOWN = "6d0c1c5e-0e4b-4a7d-8a52-4f2a70f3cfff"
CONTAINER = replace(node_container(1), component=PartitionName("cg-0123456789ab"))
UUID_ALONE = {"pod_uid": "", "container_name": "", "register_uuid": UUID}
UUID_AND_NAMES = {"register_uuid": UUID}

Another = tuple[Channel, int]


@pytest.fixture
async def another(node: RegistryNode, registry: asyncio.Event) -> AsyncIterator[Another]:
    """A connection of another process, and its PID."""
    connected, pid = await asyncio.to_thread(connect_as_another, node.socket)
    channel = ConnectedChannel(connected)
    yield channel, pid
    channel.close()


@pytest.mark.parametrize(("said", "name_told"), [(UUID_ALONE, ""), (UUID_AND_NAMES, "main")])
@pytest.mark.usefixtures("registry")
async def test_the_partition_of_a_uuid_is_bound_and_its_pids_recorded(
    node: RegistryNode, dra: DraStandIn, channel: Channel, said: Mapping[str, str], name_told: str
) -> None:
    dra.prepare(CONTAINER, register_uuid=UUID)
    node.runs(CONTAINER, [ME, 7])

    await register(channel, CONTAINER, said=said)

    assert node.recorded(CONTAINER) == tuple(sorted([7, ME]))
    assert dra.binds == [
        BindPartitionRequest(
            register_uuid=UUID,
            runtime_id=CONTAINER.runtime_id,
            pod_uid="00000001-1111-4111-8111-111111111111",
            container_name=name_told,
            pid=ME,
        )
    ]


@pytest.mark.usefixtures("registry")
async def test_what_is_told_of_a_registration_has_the_claim_and_never_the_uuid(
    node: RegistryNode, dra: DraStandIn, channel: Channel, capsys: pytest.CaptureFixture[str]
) -> None:
    dra.prepare(CONTAINER, register_uuid=UUID)
    node.runs(CONTAINER, [ME])
    await register(channel, CONTAINER, said=UUID_ALONE)
    await _refusal(channel, UUID_ALONE | {"container_name": "sidecar"})

    _, history = await node.debug("/debug/registrations")
    _, metrics = await node.debug("/metrics")

    assert [(e["verdict"], e["container_id"], e["claim_uid"], e["container"]) for e in history] == [
        ("ok", CONTAINER.runtime_id, "00000001-3333-4333-8333-333333333333", "main"),
        ("denied", CONTAINER.runtime_id, "00000001-3333-4333-8333-333333333333", "sidecar"),
    ]
    assert 'vgpu_registrations_total{verdict="ok"} 1.0' in metrics
    assert UUID not in f"{history} {metrics} {capsys.readouterr()}"


@pytest.mark.usefixtures("registry")
async def test_a_bound_container_is_judged_by_its_binding_whatever_uuid_it_shows(
    node: RegistryNode, dra: DraStandIn, channel: Channel
) -> None:
    node.runs(CONTAINER, [ME])
    node.bind(CONTAINER)

    await register(channel, CONTAINER, said={"register_uuid": UNKNOWN})
    await register(channel, CONTAINER, said=UUID_ALONE)

    assert node.recorded(CONTAINER) == (ME,)
    assert dra.binds == []


@pytest.mark.usefixtures("registry")
async def test_a_container_that_nri_saw_created_and_not_started_registers_by_its_uuid(
    node: RegistryNode, dra: DraStandIn, channel: Channel
) -> None:
    dra.prepare(CONTAINER, register_uuid=UUID)
    node.bind(CONTAINER, cgroup="")
    node.runs(CONTAINER, [ME])

    await register(channel, CONTAINER, said=UUID_ALONE)

    assert node.recorded(CONTAINER) == (ME,)


@pytest.mark.usefixtures("registry")
async def test_containers_that_take_turns_register_without_a_name(node: RegistryNode, dra: DraStandIn, channel: Channel) -> None:
    said = {"container_name": "", "register_uuid": UUID}  # what the limits file of such a partition has
    serve = restarted(CONTAINER, 77)
    dra.prepare(CONTAINER, register_uuid=UUID, containers=["warm", "serve"])
    node.runs(CONTAINER, [ME])
    await register(channel, CONTAINER, said=said)
    node.populate(CONTAINER.cgroup, [])
    node.runs(serve, [ME])

    await register(channel, CONTAINER, said=said)
    await register(channel, CONTAINER, said=said | {"container_name": "serve"})

    assert [bind.runtime_id for bind in dra.binds] == [CONTAINER.runtime_id, serve.runtime_id]
    assert [request.runtime_id for request in dra.requests] == [CONTAINER.runtime_id, serve.runtime_id, serve.runtime_id]


@pytest.mark.usefixtures("registry")
async def test_an_unknown_uuid_alone_is_refused_at_once(node: RegistryNode, dra: DraStandIn, channel: Channel) -> None:
    node.runs(CONTAINER, [ME])

    assert await _refusal(channel, UUID_ALONE) == (
        Status.PERMISSION_DENIED,
        "dra-plugin refuses the register_uuid: no claim of this node has a partition with it",
    )
    assert len(dra.binds) == 1


@pytest.mark.usefixtures("registry")
async def test_an_unknown_uuid_with_names_waits_for_a_binding(node: RegistryNode, dra: DraStandIn, channel: Channel) -> None:
    node.runs(CONTAINER, [ME])

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(register(channel, CONTAINER, said={"register_uuid": UNKNOWN}))
        await node.until_held(1, reason="no claim of this node has a partition with it")
        (_, (held,)) = await node.debug("/debug/held")
        node.bind(CONTAINER)

    assert held["reason"] == (
        f"no partition is bound to container {CONTAINER.runtime_id}; "
        "dra-plugin refuses the register_uuid: no claim of this node has a partition with it"
    )
    assert node.recorded(CONTAINER) == (ME,)


@pytest.mark.usefixtures("registry")
async def test_a_uuid_that_another_live_container_uses_is_refused_until_that_has_ended(
    node: RegistryNode, dra: DraStandIn, channel: Channel, another: Another
) -> None:
    other_channel, other_pid = another
    second = restarted(CONTAINER, 77)
    dra.prepare(CONTAINER, register_uuid=UUID)
    node.runs(CONTAINER, [other_pid])
    node.runs(second, [ME])
    await register(other_channel, CONTAINER, said=UUID_AND_NAMES)

    refusals = [await _refusal(channel, said) for said in (UUID_ALONE, UUID_AND_NAMES)]
    node.populate(CONTAINER.cgroup, [])
    await register(channel, CONTAINER, said=UUID_ALONE)

    assert refusals == 2 * [
        (
            Status.FAILED_PRECONDITION,
            "partition cg-0123456789ab of claim 00000001-3333-4333-8333-333333333333 is held by "
            "container main of pod team-a/train-0, which still runs",
        )
    ]
    assert node.recorded(CONTAINER) == (ME,)
    _, history = await node.debug("/debug/registrations")
    assert [entry["verdict"] for entry in history] == ["ok", "denied", "denied", "ok"]


@pytest.mark.usefixtures("registry")
async def test_a_uuid_copied_to_another_pod_binds_nothing(node: RegistryNode, dra: DraStandIn, channel: Channel) -> None:
    attacker = node_container(2)
    dra.prepare(CONTAINER, register_uuid=UUID)
    node.runs(attacker, [ME])

    alone = await _refusal(channel, UUID_ALONE)
    as_the_victim = await _refusal(channel, UUID_AND_NAMES)
    as_itself = await _refusal(channel, UUID_AND_NAMES, container=attacker, timeout_s=1.0)

    other_pod = (
        "dra-plugin refuses the register_uuid: it is of a claim of pod 00000001-1111-4111-8111-111111111111, "
        "not of pod 00000002-1111-4111-8111-111111111111"
    )
    assert alone == (Status.PERMISSION_DENIED, other_pod)
    assert as_the_victim == (
        Status.PERMISSION_DENIED,
        f"the call says pod 00000001-1111-4111-8111-111111111111, but process {ME} is in pod {attacker.pod_uid}",
    )
    assert as_itself == (Status.UNAVAILABLE, f"no partition is bound to container {attacker.runtime_id}; {other_pod}")
    assert dra.requests == []


@pytest.mark.usefixtures("registry")
async def test_a_call_that_goes_on_by_its_names_asks_for_its_uuid_no_more(
    node: RegistryNode, dra: DraStandIn, channel: Channel
) -> None:
    node.runs(CONTAINER, [ME])

    await _refusal(channel, {"register_uuid": UNKNOWN}, timeout_s=1.0)

    _, (entry,) = await node.debug("/debug/registrations")
    assert entry["attempts"] > 1
    assert len(dra.binds) == 1


@pytest.mark.usefixtures("registry")
async def test_a_call_is_held_until_dra_plugin_is_back(node: RegistryNode, channel: Channel) -> None:
    node.runs(CONTAINER, [ME])
    dra = DraStandIn(node)
    dra.prepare(CONTAINER, register_uuid=UUID)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(register(channel, CONTAINER, said=UUID_ALONE))
        await node.until_held(1, reason="dra-plugin is away")
        async with dra.serving():
            await node.until_none_held()

    assert node.recorded(CONTAINER) == (ME,)


@pytest.mark.usefixtures("registry")
async def test_a_call_is_held_while_dra_plugin_says_not_now_or_is_older(node: RegistryNode, channel: Channel) -> None:
    node.runs(CONTAINER, [ME])
    dra = DraStandIn(node, refusal=GRPCError(Status.UNAVAILABLE, "waiting for the writer lock"))
    dra.prepare(CONTAINER, register_uuid=UUID)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(register(channel, CONTAINER, said=UUID_ALONE))
        async with registry_dra.served(node, _Older()):
            await node.until_held(1, reason="dra-plugin is of a version without register UUIDs")
        async with dra.serving():
            await node.until_held(1, reason="waiting for the writer lock")
            dra.refusal = GRPCError(Status.ABORTED, "the container was released")
            await node.until_held(1, reason="the container was released")
            dra.refusal = None
            await node.until_none_held()

    assert node.recorded(CONTAINER) == (ME,)


@pytest.mark.usefixtures("registry")
async def test_a_call_at_its_deadline_is_unavailable_with_the_last_reason(
    node: RegistryNode, dra: DraStandIn, channel: Channel
) -> None:
    node.runs(CONTAINER, [ME])
    dra.refusal = GRPCError(Status.UNAVAILABLE, "waiting for the writer lock")

    refusal = await _refusal(channel, UUID_ALONE, timeout_s=1.0)

    assert refusal == (Status.UNAVAILABLE, "waiting for the writer lock")
    _, (entry,) = await node.debug("/debug/registrations")
    assert (entry["verdict"], entry["attempts"]) == ("unavailable", len(dra.binds))


@pytest.mark.usefixtures("registry")
async def test_a_fault_of_dra_plugin_ends_the_call(node: RegistryNode, dra: DraStandIn, channel: Channel) -> None:
    node.runs(CONTAINER, [ME])
    dra.refusal = GRPCError(Status.INTERNAL, "cannot write binding.json: ENOSPC")

    assert await _refusal(channel, UUID_ALONE) == (
        Status.INTERNAL,
        f"dra-plugin cannot bind a partition to container {CONTAINER.runtime_id}: cannot write binding.json: ENOSPC",
    )


@pytest.mark.usefixtures("registry")
async def test_fifty_calls_of_one_container_bind_once(node: RegistryNode, dra: DraStandIn, channel: Channel) -> None:
    dra.prepare(CONTAINER, register_uuid=UUID)
    node.runs(CONTAINER, [ME])

    async with asyncio.TaskGroup() as tasks:
        for _ in range(50):
            tasks.create_task(register(channel, CONTAINER, said=UUID_ALONE))

    assert len(dra.binds) == 1
    assert node.recorded(CONTAINER) == (ME,)
    _, history = await node.debug("/debug/registrations")
    assert [entry["verdict"] for entry in history] == 50 * ["ok"]


@pytest.mark.usefixtures("registry")
async def test_a_refusal_is_that_of_who_asked_the_same(
    node: RegistryNode, dra: DraStandIn, channel: Channel, another: Another
) -> None:
    other_channel, other_pid = another
    node.runs(CONTAINER, [ME, other_pid])
    dra.prepare(CONTAINER, register_uuid=UUID)
    dra.refusal = GRPCError(Status.UNAVAILABLE, "waiting for the writer lock")

    async with asyncio.TaskGroup() as tasks:
        liar = tasks.create_task(_refusal(other_channel, UUID_ALONE | {"register_uuid": UNKNOWN}))
        await node.until_held(1, reason="waiting for the writer lock")
        misnamed = tasks.create_task(_refusal(other_channel, UUID_ALONE | {"container_name": "sidecar"}))
        await node.until_held(2, reason="waiting for the writer lock")
        tasks.create_task(register(channel, CONTAINER, said=UUID_ALONE))
        await node.until_held(3, reason="waiting for the writer lock")
        dra.refusal = None

    assert liar.result()[0] is misnamed.result()[0] is Status.PERMISSION_DENIED
    assert misnamed.result()[1] == "dra-plugin refuses the register_uuid: its partition is not for container sidecar"
    assert node.recorded(CONTAINER) == tuple(sorted([ME, other_pid]))


@pytest.mark.usefixtures("registry")
async def test_a_caller_whose_pid_is_another_process_by_now_takes_nobody_with_it(
    node: RegistryNode, dra: DraStandIn, channel: Channel, another: Another
) -> None:
    other_channel, other_pid = another
    elsewhere = node_container(2)
    node.runs(CONTAINER, [ME, other_pid])
    dra.prepare(CONTAINER, register_uuid=UUID)
    dra.refusal = GRPCError(Status.UNAVAILABLE, "waiting for the writer lock")

    async with asyncio.TaskGroup() as tasks:
        ended = tasks.create_task(_refusal(other_channel, UUID_ALONE))
        await node.until_held(1, reason="waiting for the writer lock")
        tasks.create_task(register(channel, CONTAINER, said=UUID_ALONE))
        await node.until_held(2, reason="waiting for the writer lock")
        node.process(other_pid, elsewhere.cgroup, ticks=2000)
        node.populate(CONTAINER.cgroup, [ME])
        dra.refusal = None

    assert ended.result() == (Status.PERMISSION_DENIED, f"process {other_pid} is not the one that called any more")
    assert node.recorded(CONTAINER) == (ME,)


class _Older:
    """A dra-plugin that knows no register UUIDs."""

    def __mapping__(self) -> dict[str, Handler]:
        async def refuse(_: object) -> None:
            raise GRPCError(Status.UNAVAILABLE, "starting")

        route = "/vgpu.registrations.v1.Registrations/RecordPids"
        return {route: Handler(refuse, Cardinality.UNARY_UNARY, RecordPidsRequest, RecordPidsResponse)}


async def _refusal(
    channel: Channel, said: Mapping[str, str], *, container: NodeContainer = CONTAINER, timeout_s: float = 12.0
) -> tuple[Status, str | None]:
    with pytest.raises(GRPCError) as caught:
        await register(channel, container, said=said, timeout_s=timeout_s)
    return caught.value.status, caught.value.message
