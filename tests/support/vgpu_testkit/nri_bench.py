"""nri-plugin within the event loop of a test, and what its pages say."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from vgpu_nri import app
from vgpu_nri.config import Config
from vgpu_testkit import polling
from vgpu_testkit.daemons import read_page, waiting_socket


@asynccontextmanager
async def running(config: Config, timing: app.Timing) -> AsyncIterator[None]:
    """The whole process but for its signals, in this event loop; its debug socket is there."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(app.serve(config, stop, timing=timing))
        try:
            async with asyncio.timeout(10):
                while not any(config.debug_socket.parent.glob("nri*.sock")):  # published by rename, nothing tells
                    await asyncio.sleep(0.001)
            yield
        finally:
            stop.set()


async def page(config: Config, path: str) -> str:
    """From the instance in charge; from this one while it waits, as nobody else is in charge then."""
    waiting = waiting_socket(config.debug_socket, os.getpid())
    _, text = await read_page(waiting if waiting.exists() else config.debug_socket, path)
    return text


async def debug(config: Config, name: str) -> Any:
    """The JSON at /debug/<name>."""
    return json.loads(await page(config, f"/debug/{name}"))


async def until_page(config: Config, path: str, text: str) -> None:
    """Asks for a page until it says `text`: the plugin has no other sign that an outside event has reached it."""

    async def says() -> bool:
        return text in await page(config, path)

    await polling.until(says)
