"""Who is refused over the real socket, with which status and in which words."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

import pytest
from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_testkit.registry_dra import DraStandIn
from vgpu_testkit.registry_node import (
    RegistryNode,
    node_container,
    register,
)

ME = os.getpid()
CONTAINER = node_container(1)


@pytest.mark.parametrize(
    ("refusal", "status", "message"),
    [
        (
            GRPCError(Status.PERMISSION_DENIED, "claim is not prepared"),
            Status.PERMISSION_DENIED,
            "dra-plugin refuses the PID list: claim is not prepared",
        ),
        (
            GRPCError(Status.INVALID_ARGUMENT, "field pids"),
            Status.INTERNAL,
            "dra-plugin cannot record the PID list of 00000001-3333-4333-8333-333333333333/"
            "00000001-1111-4111-8111-111111111111_main: field pids",
        ),
        (
            GRPCError(Status.INTERNAL, "cannot write pids.config: ENOSPC"),
            Status.INTERNAL,
            "dra-plugin cannot record the PID list of 00000001-3333-4333-8333-333333333333/"
            "00000001-1111-4111-8111-111111111111_main: cannot write pids.config: ENOSPC",
        ),
    ],
)
@pytest.mark.usefixtures("registry")
async def test_a_refusal_of_dra_plugin_that_cannot_change_ends_the_call(
    node: RegistryNode, dra: DraStandIn, channel: Channel, refusal: GRPCError, status: Status, message: str
) -> None:
    node.runs(CONTAINER, [ME])
    node.bind(CONTAINER)
    dra.refusal = refusal

    with pytest.raises(GRPCError) as caught:
        await register(channel, CONTAINER)

    assert (caught.value.status, caught.value.message) == (status, message)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            {"pod_uid": "99999999-1111-4111-8111-111111111111"},
            f"the call says pod 99999999-1111-4111-8111-111111111111, but process {ME} is in pod {CONTAINER.pod_uid}",
        ),
        ({"container_name": "sidecar"}, f"the call says container sidecar, but process {ME} is in container main"),
        (
            {
                "pod_uid": "99999999-1111-4111-8111-111111111111",
                "container_name": "",
                "register_uuid": "55555555-5555-4555-8555-555555555555",
            },
            f"the call says pod 99999999-1111-4111-8111-111111111111, but process {ME} is in pod {CONTAINER.pod_uid}",
        ),
        (
            {"pod_uid": "", "container_name": "sidecar", "register_uuid": "55555555-5555-4555-8555-555555555555"},
            f"the call says container sidecar, but process {ME} is in container main",
        ),
    ],
)
@pytest.mark.usefixtures("registry")
async def test_a_caller_that_says_it_is_another_is_refused_at_once(
    node: RegistryNode, dra: DraStandIn, channel: Channel, said: dict[str, str], words: str
) -> None:
    node.runs(CONTAINER, [ME])
    node.bind(CONTAINER)

    with pytest.raises(GRPCError) as caught:
        await register(channel, CONTAINER, said=said)

    assert (caught.value.status, caught.value.message) == (Status.PERMISSION_DENIED, words)
    assert (dra.binds, dra.requests) == ([], [])


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            {"pod_uid": ""},
            "pod_uid is empty and there is no register_uuid; expected both pod_uid and container_name",
        ),
        (
            {"container_name": ""},
            "container_name is empty and there is no register_uuid; expected both pod_uid and container_name",
        ),
        (
            {"pod_uid": "../../etc"},
            "pod uid is '../../etc'; expected a lower-case UUID (static pods have none)",
        ),
        (
            {"container_name": "a/b\n"},
            "container name is 'a/b\\n'; expected a DNS label of at most 63 characters",
        ),
        (
            {"register_uuid": "55555555-5555-4555-8555-55555555555F"},
            "register uuid of 36 characters; expected a lower-case UUID",
        ),
        (
            {"pod_uid": "x", "container_name": "", "register_uuid": "55555555-5555-4555-8555-555555555555"},
            "pod uid is 'x'; expected a lower-case UUID (static pods have none)",
        ),
    ],
)
@pytest.mark.usefixtures("registry", "dra")
async def test_a_malformed_request_is_an_invalid_argument(channel: Channel, said: dict[str, str], message: str) -> None:
    with pytest.raises(GRPCError) as caught:
        await register(channel, CONTAINER, said=said)

    assert (caught.value.status, caught.value.message) == (Status.INVALID_ARGUMENT, message)


@pytest.mark.usefixtures("registry", "dra")
async def test_a_process_of_the_host_is_refused_at_once(node: RegistryNode, channel: Channel) -> None:
    node.process(ME, "/system.slice/sshd.service")
    node.bind(CONTAINER)

    with pytest.raises(GRPCError) as caught:
        await register(channel, CONTAINER)

    assert (caught.value.status, caught.value.message) == (
        Status.PERMISSION_DENIED,
        f"process {ME} is not a container of a pod",
    )


@pytest.mark.usefixtures("registry", "dra")
async def test_a_pid_that_now_belongs_to_another_process_is_refused(node: RegistryNode, channel: Channel) -> None:
    node.runs(CONTAINER, [ME])

    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(_refusal(channel))
        await node.until_held(1, reason="no partition is bound")
        node.process(ME, CONTAINER.cgroup, ticks=2000)
        node.bind(CONTAINER)

    assert call.result() == (Status.PERMISSION_DENIED, f"process {ME} is not the one that called any more")


@pytest.mark.usefixtures("registry")
async def test_more_than_a_thousand_processes_are_refused(node: RegistryNode, dra: DraStandIn, channel: Channel) -> None:
    node.process(ME, CONTAINER.cgroup)
    node.populate(CONTAINER.cgroup, [ME, *range(4000000, 4001000)])
    node.bind(CONTAINER)

    refusal = await _refusal(channel)

    assert refusal == (Status.PERMISSION_DENIED, "container main has 1001 processes; the library reads at most 1000")
    assert dra.requests == []


async def _refusal(channel: Channel, said: Mapping[str, str] | None = None) -> tuple[Status, str | None]:
    with pytest.raises(GRPCError) as caught:
        await register(channel, CONTAINER, said=said)
    return caught.value.status, caught.value.message
