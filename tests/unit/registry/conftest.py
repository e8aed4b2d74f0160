"""A node on disk and the registry process's parts on real sockets."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from grpclib.client import Channel

from vgpu_registry import app
from vgpu_registry.config import parse_config
from vgpu_testkit.registry_client import Clients
from vgpu_testkit.registry_dra import DraStandIn
from vgpu_testkit.registry_node import RegistryNode, Started


@pytest.fixture(scope="session")
def device_client(native: Path) -> Path:
    """The static C program that stands in for the enforcement library's client, up to date."""
    return native / "device-client"


@pytest.fixture
def node(short_dir: Path) -> RegistryNode:
    return RegistryNode(short_dir)


@pytest.fixture
async def dra(node: RegistryNode) -> AsyncIterator[DraStandIn]:
    stand_in = DraStandIn(node)
    async with stand_in.serving():
        yield stand_in


@pytest.fixture
def serving(node: RegistryNode) -> Callable[[], AbstractAsyncContextManager[asyncio.Event]]:
    """Starts registry on the node; the event stops it as SIGTERM does."""

    @asynccontextmanager
    async def serve() -> AsyncIterator[asyncio.Event]:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(app.serve(parse_config(node.argv, {}), stop))
            await node.until_ready()
            try:
                yield stop
            finally:
                stop.set()

    return serve


@pytest.fixture
def started(node: RegistryNode) -> Started:
    """Runs `python -m vgpu_registry` until the context ends."""

    @asynccontextmanager
    async def start() -> AsyncIterator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "vgpu_registry", *node.argv, stdout=subprocess.DEVNULL
        )
        try:
            await node.until_ready()
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    return start


@pytest.fixture
def clients(node: RegistryNode, device_client: Path) -> Clients:
    return Clients(node, device_client)


@pytest.fixture
async def channel(node: RegistryNode) -> AsyncIterator[Channel]:
    """A connection of this very process to registry's socket."""
    channel = Channel(path=str(node.socket))
    yield channel
    channel.close()


@pytest.fixture
async def registry(serving: Callable[[], AbstractAsyncContextManager[asyncio.Event]]) -> AsyncIterator[asyncio.Event]:
    async with serving() as stop:
        yield stop
