"""What the stand-in runtime tells plugins of, in which order, and what it waits for."""

from __future__ import annotations

import asyncio
from pathlib import Path

from grpclib.const import Status

from vgpu_proto import nri
from vgpu_testkit.nri_frames import Request, Response
from vgpu_testkit.pods import ContainerSpec, PodSpec
from vgpu_testkit.runtime import StandInRuntime
from vgpu_testkit.runtime_sample_plugin import ALL_EVENTS, OURS, SamplePlugin, adjustment, answering, refusal

_UID = "0b7e4a1c-2f63-4d0e-9b5a-000000000001"


async def test_life_of_a_container_is_told_in_containerds_order(node: StandInRuntime, socket: Path) -> None:
    async with SamplePlugin(socket) as plugin:
        assert await plugin.register() == Response()
        await node.nri.until_plugins(1)
        pod = await node.run_pod()
        container = await node.run_container(pod)
        await node.stop(container)
        await node.remove(container)
        await node.remove_pod(pod)

        assert plugin.calls == [
            "Configure",
            "Synchronize",
            "RUN_POD_SANDBOX",
            "CreateContainer",
            "POST_CREATE_CONTAINER",
            "START_CONTAINER",
            "POST_START_CONTAINER",
            "StopContainer",
            "REMOVE_CONTAINER",
            "STOP_POD_SANDBOX",
            "REMOVE_POD_SANDBOX",
        ]
        configure = nri.ConfigureRequest.FromString(plugin.requests[0].payload)
        assert (configure.runtime_name, configure.runtime_version) == ("containerd", "2.1.9+unknown")
        assert (configure.registration_timeout, configure.request_timeout) == (500, 500)
        assert plugin.requests[1].payload == b""
        assert {request.timeout_nano for request in plugin.requests} == {500_000_000}


async def test_pid_and_state_are_those_of_the_step(node: StandInRuntime, socket: Path) -> None:
    async with SamplePlugin(socket) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)
        container = await node.run_container(await node.run_pod())
        pid = (await node.status(container)).pid
        await node.remove(container)

        created = plugin.event("POST_CREATE_CONTAINER").container
        start = plugin.event("START_CONTAINER").container
        started = plugin.event("POST_START_CONTAINER").container
        stop = nri.StopContainerRequest.FromString(plugin.requests[plugin.calls.index("StopContainer")].payload).container
        removed = plugin.event("REMOVE_CONTAINER").container
        assert (created.state, created.pid) == (nri.CONTAINER_CREATED, 0)
        assert (start.state, start.pid) == (nri.CONTAINER_CREATED, pid)
        assert (started.state, started.pid) == (nri.CONTAINER_RUNNING, pid)
        assert (stop.state, stop.pid) == (nri.CONTAINER_RUNNING, pid)
        assert (removed.state, removed.pid) == (nri.CONTAINER_STOPPED, 0)


async def test_only_subscribed_events_come(node: StandInRuntime, socket: Path) -> None:
    async with SamplePlugin(socket, events=OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)
        container = await node.run_container(await node.run_pod())
        await node.remove(container)

        assert plugin.calls[2:] == ["CreateContainer", "START_CONTAINER", "StopContainer", "REMOVE_CONTAINER"]


async def test_errors_of_other_events_are_forgotten(node: StandInRuntime, socket: Path) -> None:
    answer = refusal(Status.INTERNAL, "no")
    names = ("POST_CREATE_CONTAINER", "POST_START_CONTAINER", "StopContainer", "REMOVE_CONTAINER", "STOP_POD_SANDBOX")
    async with SamplePlugin(socket, answering(**dict.fromkeys(names, answer)), events=ALL_EVENTS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)
        pod = await node.run_pod()

        await node.remove(await node.run_container(pod))
        await node.remove_pod(pod)

        assert plugin.calls[-1] == "REMOVE_POD_SANDBOX"


async def test_synchronize_tells_of_created_and_running_containers_as_they_are(node: StandInRuntime, socket: Path) -> None:
    pod = await node.run_pod(PodSpec(uid=_UID, name="pod-7", namespace="team-b"))
    running = await node.run_container(pod, ContainerSpec(name="a", env={"A": "1"}))
    created = await node.create_container(pod, ContainerSpec(name="b"))
    ended = await node.run_container(pod, ContainerSpec(name="c"))
    await node.stop(ended)

    async with SamplePlugin(socket, events=OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)

        told = nri.SynchronizeRequest.FromString(plugin.requests[1].payload)
        assert [(one.id, one.name, one.namespace, one.uid) for one in told.pods] == [(pod.id, "pod-7", "team-b", _UID)]
        pid = (await node.status(running)).pid
        assert [(one.id, one.state, one.pid) for one in told.containers] == [
            (running, nri.CONTAINER_RUNNING, pid),
            (created, nri.CONTAINER_CREATED, 0),
        ]
        assert "A=1" in told.containers[0].env
        assert told.containers[0].linux.cgroups_path == f"/kubepods/besteffort/pod{_UID}/{running}"


async def test_create_waits_for_a_synchronize_under_way_and_is_adjusted(node: StandInRuntime, socket: Path) -> None:
    may_answer = asyncio.Event()
    adjusted = adjustment(env=[nri.KeyValue(key="ADJUSTED", value="1")])

    async def slow(request: Request) -> Response:
        if request.method == "Synchronize":
            await may_answer.wait()
        return adjusted if request.method == "CreateContainer" else Response()

    pod = await node.run_pod()
    async with SamplePlugin(socket, slow, events=OURS) as plugin, asyncio.TaskGroup() as group:
        await plugin.register()
        await plugin.until(lambda: "Synchronize" in plugin.calls)
        creating = group.create_task(node.create_container(pod))
        may_answer.set()

        container = await creating

        assert "ADJUSTED=1" in (await node.status(container)).oci_spec["process"]["env"]


async def test_requests_are_serial_on_the_whole_node(node: StandInRuntime, socket: Path) -> None:
    under_way = 0
    most = 0

    async def count(request: Request) -> Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(20):
            await asyncio.sleep(0)
        under_way -= 1
        return Response()

    async with SamplePlugin(socket, count) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)
        pod = await node.run_pod()

        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(node.create_container(pod, ContainerSpec(attempt=number)))
                group.create_task(node.run_pod())

        assert plugin.calls.count("CreateContainer") == 4
        assert most == 1
