"""How many calls are held, and for how long."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator

import pytest
from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_daemon import sockets
from vgpu_registry import app
from vgpu_registry.app import Parts
from vgpu_registry.batches import Call
from vgpu_registry.config import parse_config
from vgpu_registry.limits import QueueFull
from vgpu_registry.policy import Caller, Words
from vgpu_testkit.registry_node import RegistryNode, node_container, register

ME = os.getpid()
CONTAINER = node_container(1)
CALLER = Caller(pid=ME, started_ticks=1000, pod_uid=CONTAINER.pod_uid, container_id=CONTAINER.runtime_id)
SAID = Words(pod_uid=CONTAINER.pod_uid, container=CONTAINER.name)


@pytest.fixture
async def parts(node: RegistryNode) -> AsyncIterator[Parts]:
    """What the process is made of, with its lanes running."""
    parts = app.compose(parse_config(node.argv, {}))
    await parts.index.build()
    async with parts.dra, asyncio.TaskGroup() as tasks:
        lanes = tasks.create_task(parts.batches.serve())
        await asyncio.sleep(0)
        yield parts
        lanes.cancel()
    parts.index.close()
    parts.processes.close()


def _call() -> Call:
    return Call(peer_pid=ME, since_s=0.0, op_id="00000000")


async def test_a_container_has_at_most_1024_calls_held_and_another_is_not_touched(parts: Parts) -> None:
    other = node_container(2)
    other_caller = Caller(pid=7, started_ticks=1000, pod_uid=other.pod_uid, container_id=other.runtime_id)
    other_said = Words(pod_uid=other.pod_uid, container=other.name)

    async with asyncio.TaskGroup() as tasks:
        held = [tasks.create_task(parts.batches.join(_call(), caller=CALLER, said=SAID)) for _ in range(1024)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull) as caught:
            await parts.batches.join(_call(), caller=CALLER, said=SAID)
        held.append(tasks.create_task(parts.batches.join(_call(), caller=other_caller, said=other_said)))
        await asyncio.sleep(0)
        assert not held[-1].done()
        for call in held:
            call.cancel()

    assert str(caught.value) == f"container {CONTAINER.runtime_id} has 1024 calls waiting; no more are held"


async def test_a_process_has_at_most_1024_calls_looked_at(node: RegistryNode, parts: Parts) -> None:
    node.process(ME, CONTAINER.cgroup)

    async with asyncio.TaskGroup() as tasks:
        looks = [tasks.create_task(parts.processes.look(ME)) for _ in range(1024)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull) as caught:
            await parts.processes.look(ME)

    assert str(caught.value) == f"process {ME} has 1024 calls waiting; at most 1024 are held"
    assert {look.result() for look in looks} == {CALLER}


async def test_a_drain_answers_held_calls_before_its_end(node: RegistryNode, channel: Channel, parts: Parts) -> None:
    app.check_start(parse_config(node.argv, {}))
    node.process(ME, f"/kubepods/pod{CONTAINER.pod_uid}")
    await parts.server.start(sockets.publish(node.socket, mode=0o666))

    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(_refusal(channel))
        async with asyncio.timeout(5):
            while not parts.service.held():
                await asyncio.sleep(0.01)
        began_s = time.monotonic()
        parts.service.drain(0.1)
        status, message = await call
    await parts.server.stop(1.0)

    assert (status, message) == (
        Status.UNAVAILABLE,
        f"process {ME} is in pod {CONTAINER.pod_uid}, not yet in the cgroup of a container",
    )
    assert time.monotonic() - began_s < 5.0


async def _refusal(channel: Channel) -> tuple[Status, str | None]:
    with pytest.raises(GRPCError) as caught:
        await register(channel, CONTAINER)
    return caught.value.status, caught.value.message
