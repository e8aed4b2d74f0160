"""Which plugins the stand-in runtime takes, and which it closes: late, dead and malformed ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from grpclib.const import Status

from vgpu_proto import nri
from vgpu_testkit.nri_frames import Request, Response
from vgpu_testkit.nri_runtime import NriTimeouts
from vgpu_testkit.pods import ContainerState
from vgpu_testkit.runtime import StandInRuntime
from vgpu_testkit.runtime_process import Isolation
from vgpu_testkit.runtime_sample_plugin import OURS, SamplePlugin


async def test_socket_lies_in_a_folder_of_its_owner_only(node: StandInRuntime, socket: Path) -> None:
    assert socket.parent.stat().st_mode & 0o777 == 0o700


async def test_plugin_that_never_registers_is_closed(node: StandInRuntime, socket: Path) -> None:
    async with SamplePlugin(socket) as plugin:
        await node.create_container(await node.run_pod())

        await plugin.until(lambda: plugin.is_closed)

        assert plugin.calls == []


@pytest.mark.parametrize("index", ["5", "005", "a1", ""])
async def test_index_that_is_not_two_digits_is_refused(node: StandInRuntime, socket: Path, index: str) -> None:
    async with SamplePlugin(socket, index=index) as plugin:
        answer = await plugin.register()

        assert answer.code == Status.UNKNOWN.value
        assert answer.message == f'invalid plugin index: invalid plugin index "{index}", must be 2 digits'


async def test_subscription_to_an_event_that_is_not_known_ends_the_connection(node: StandInRuntime, socket: Path) -> None:
    async with SamplePlugin(socket, events=OURS | 0x800) as plugin:
        await plugin.register()

        await plugin.until(lambda: plugin.is_closed)

        assert "Synchronize" not in plugin.calls


async def test_late_plugin_is_closed_and_the_container_goes_on_unadjusted(node: StandInRuntime, socket: Path) -> None:
    async def late(request: Request) -> Response:
        if request.method == "CreateContainer":
            await asyncio.Event().wait()
        return Response()

    async with SamplePlugin(socket, late, events=OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)

        container = await node.create_container(await node.run_pod())

        await plugin.until(lambda: plugin.is_closed)
        assert (await node.status(container)).state is ContainerState.CREATED
        assert node.nri.plugins == ()
        reason = "failed to handle CreateContainer request: context deadline exceeded"
        assert node.nri.log == [f"closing plugin 10-sample: {reason}"]


async def test_plugin_that_dies_in_a_request_lets_the_container_go_on(node: StandInRuntime, socket: Path) -> None:
    plugins: list[SamplePlugin] = []

    async def die(request: Request) -> Response:
        if request.method == "CreateContainer":
            plugins[0].die()
        return Response()

    async with SamplePlugin(socket, die, events=OURS) as plugin:
        plugins.append(plugin)
        await plugin.register()
        await node.nri.until_plugins(1)

        container = await node.create_container(await node.run_pod())

        assert (await node.status(container)).state is ContainerState.CREATED
        assert node.nri.plugins == ()


async def test_late_synchronize_closes_the_plugin(node: StandInRuntime, socket: Path) -> None:
    async def late(request: Request) -> Response:
        await asyncio.Event().wait()
        return Response()

    async with SamplePlugin(socket, late) as plugin:
        await plugin.register()

        await plugin.until(lambda: plugin.is_closed)

        assert node.nri.plugins == ()


async def test_late_synchronize_leaves_the_plugin_of_1_7_connected_and_never_called(
    make_runtime: Callable[..., AbstractAsyncContextManager[StandInRuntime]], socket: Path, timeouts: NriTimeouts
) -> None:
    may_answer = asyncio.Event()

    async def late(request: Request) -> Response:
        await may_answer.wait()
        return Response()

    options = {"isolation": Isolation.PATHS_MAPPED, "timeouts": timeouts}
    async with make_runtime(version="1.7.24", **options) as node, SamplePlugin(socket, late) as plugin:
        await plugin.register()
        await plugin.until(lambda: "Synchronize" in plugin.calls)
        # The pod waits for its turn, which comes when Synchronize is given up.
        await node.run_pod()

        assert plugin.calls == ["Configure", "Synchronize"]
        assert not plugin.is_closed
        assert node.nri.log == [
            "failed to synchronize plugin 10-sample: failed to handle Synchronize request: context deadline exceeded"
        ]
        configure = nri.ConfigureRequest.FromString(plugin.requests[0].payload)
        assert (configure.registration_timeout, configure.request_timeout) == (0, 0)
        assert configure.runtime_version.startswith("1.7.24")


async def test_restart_closes_plugins_and_containers_live_on(node: StandInRuntime, socket: Path) -> None:
    async with SamplePlugin(socket, events=OURS) as plugin:
        await plugin.register()
        await node.nri.until_plugins(1)
        container = await node.run_container(await node.run_pod())

        await node.restart()

        await plugin.until(lambda: plugin.is_closed)
        assert (await node.status(container)).state is ContainerState.RUNNING
    async with SamplePlugin(socket, events=OURS) as again:
        await again.register()
        await node.nri.until_plugins(1)
        told = nri.SynchronizeRequest.FromString(again.requests[1].payload)
        assert [one.id for one in told.containers] == [container]
