"""Who may hold how many connections, and for how long: one tenant must not lock out the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from grpclib.client import Channel
from grpclib.exceptions import StreamTerminatedError

from vgpu_daemon import sockets
from vgpu_daemon.crowd import Bound
from vgpu_daemon.grpc_server import GrpcServer, Limits
from vgpu_proto import registry

CALL = registry.ContainerDeviceRequest(pod_uid="p", container_name="c", register_uuid="")


class Answering(registry.VDeviceRegistryBase):
    """Answers every registration."""

    async def register_container_device(
        self, container_device_request: registry.ContainerDeviceRequest
    ) -> registry.ContainerDeviceResponse:
        return registry.ContainerDeviceResponse()


class Holding(registry.VDeviceRegistryBase):
    """Holds every registration until it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self._here = 0
        self._came = asyncio.Condition()

    async def are_here(self, count: int) -> None:
        async with self._came:
            await self._came.wait_for(lambda: self._here >= count)

    async def register_container_device(
        self, container_device_request: registry.ContainerDeviceRequest
    ) -> registry.ContainerDeviceResponse:
        async with self._came:
            self._here += 1
            self._came.notify_all()
        await self.let_go.wait()
        return registry.ContainerDeviceResponse()


@asynccontextmanager
async def serving(path: Path, limits: Limits) -> AsyncIterator[GrpcServer]:
    server = GrpcServer([Answering()], name="test", limits=limits)
    await server.start(sockets.publish(path, mode=0o600))
    try:
        yield server
    finally:
        await server.stop(1)


async def is_open(reader: asyncio.StreamReader) -> bool:
    """Whether the server talks (its SETTINGS come first) rather than hangs up."""
    try:
        return await reader.read(1) != b""
    except ConnectionResetError:
        return False


async def test_a_group_at_its_limit_is_refused_and_another_group_is_served(short_dir: Path) -> None:
    groups = iter(["hoarder", "hoarder", "hoarder", "neighbour"])
    limits = Limits(group_of=lambda _: next(groups), connections=Bound(of_all=256, of_group=2))

    async with serving(short_dir / "s", limits):
        pairs = [await asyncio.open_unix_connection(short_dir / "s") for _ in range(3)]
        opened = [await is_open(reader) for reader, _ in pairs]
        async with Channel(path=str(short_dir / "s")) as channel:
            answer = await registry.VDeviceRegistryStub(channel).register_container_device(CALL)
        for _, writer in pairs:
            await closed(writer)

    assert opened == [True, True, False]
    assert answer == registry.ContainerDeviceResponse()


async def test_calls_beyond_a_groups_part_are_refused_unprocessed_until_one_ends(short_dir: Path) -> None:
    service = Holding()
    server = GrpcServer([service], name="test", limits=Limits(streams=Bound(of_all=256, of_group=2)))
    await server.start(sockets.publish(short_dir / "s", mode=0o600))
    async with Channel(path=str(short_dir / "s")) as channel, asyncio.TaskGroup() as calls:
        stub = registry.VDeviceRegistryStub(channel)
        held = [calls.create_task(stub.register_container_device(CALL)) for _ in range(2)]
        await service.are_here(2)

        with pytest.raises(StreamTerminatedError, match="error_code: 7"):
            await stub.register_container_device(CALL)
        service.let_go.set()
        await asyncio.wait(held)

        assert await stub.register_container_device(CALL) == registry.ContainerDeviceResponse()
    await server.stop(1)


async def test_a_connection_without_a_call_is_closed(short_dir: Path) -> None:
    async with serving(short_dir / "s", Limits(idle_s=0.05)) as server:
        reader, writer = await asyncio.open_unix_connection(short_dir / "s")
        await asyncio.wait_for(reader.read(), 5)  # until the end of the stream

        assert server.connections == set()
        await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@pytest.mark.parametrize("calls", [1, 3])
async def test_a_connection_that_calls_is_kept_without_an_idle_limit(short_dir: Path, calls: int) -> None:
    async with serving(short_dir / "s", Limits()) as server, Channel(path=str(short_dir / "s")) as channel:
        stub = registry.VDeviceRegistryStub(channel)
        for _ in range(calls):
            await stub.register_container_device(CALL)

        assert len(server.connections) == 1
