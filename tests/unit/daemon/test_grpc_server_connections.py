"""Who may hold how many connections, and for how long: one tenant must not lock out the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from grpclib.client import Channel

from vgpu_daemon import sockets
from vgpu_daemon.grpc_server import GrpcServer, Limits
from vgpu_proto import registry

CALL = registry.ContainerDeviceRequest(pod_uid="p", container_name="c", register_uuid="")


class Answering(registry.VDeviceRegistryBase):
    """Answers every registration."""

    async def register_container_device(
        self, container_device_request: registry.ContainerDeviceRequest
    ) -> registry.ContainerDeviceResponse:
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
    limits = Limits(group_of=lambda _: next(groups), max_connections_per_group=2)

    async with serving(short_dir / "s", limits):
        pairs = [await asyncio.open_unix_connection(short_dir / "s") for _ in range(3)]
        opened = [await is_open(reader) for reader, _ in pairs]
        async with Channel(path=str(short_dir / "s")) as channel:
            answer = await registry.VDeviceRegistryStub(channel).register_container_device(CALL)
        for _, writer in pairs:
            await closed(writer)

    assert opened == [True, True, False]
    assert answer == registry.ContainerDeviceResponse()


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
