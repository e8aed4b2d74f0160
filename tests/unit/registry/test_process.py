"""The real process: how it starts, stops and is replaced, and what hostile bytes do to it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.encoding.proto import ProtoCodec
from grpclib.exceptions import GRPCError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vgpu_proto.registry import ContainerDeviceResponse
from vgpu_testkit import polling
from vgpu_testkit.daemons import waiting_socket
from vgpu_testkit.registry_client import Clients
from vgpu_testkit.registry_node import RegistryNode, Started, node_container, register

ME = os.getpid()
CONTAINER = node_container(1)
ROUTE = "/registry.VDeviceRegistry/RegisterContainerDevice"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"


async def test_socket_is_for_everybody_in_a_directory_nobody_lists(node: RegistryNode, started: Started) -> None:
    async with started():
        assert stat.S_IMODE(node.socket.stat().st_mode) == 0o666
        assert stat.S_IMODE(node.socket.parent.stat().st_mode) == 0o711


@pytest.mark.usefixtures("dra")
async def test_the_device_client_registers_from_a_process_of_its_own(
    node: RegistryNode, clients: Clients, started: Started
) -> None:
    node.bind(CONTAINER)

    async with started():
        client = await clients.call(CONTAINER)
        assert await client.wait() == 0

    assert node.recorded(CONTAINER) == (client.pid,)


@pytest.mark.usefixtures("dra")
async def test_sigterm_lets_a_held_call_finish_and_leaves_the_socket(
    node: RegistryNode, clients: Clients, started: Started
) -> None:
    async with started() as process:
        client = await clients.call(CONTAINER)
        await node.until_held(1, reason="no partition is bound")
        process.send_signal(signal.SIGTERM)
        await polling.until(lambda: _refuses(node.socket))
        node.bind(CONTAINER)
        assert await client.wait() == 0
        async with asyncio.timeout(10):
            assert await process.wait() == 0

    assert stat.S_ISSOCK(node.socket.stat().st_mode)
    assert node.recorded(CONTAINER) == (client.pid,)


@pytest.mark.usefixtures("dra")
async def test_path_is_never_missing_while_a_successor_takes_over(node: RegistryNode, started: Started) -> None:
    node.runs(CONTAINER, [ME])
    node.bind(CONTAINER)
    missing: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            try:
                os.stat(node.socket)
            except FileNotFoundError:
                missing.append(1)

    async with started() as first:
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            inode = node.socket.stat().st_ino
            first.send_signal(signal.SIGTERM)
            await first.wait()
            async with started():
                assert node.socket.stat().st_ino != inode
                channel = Channel(path=str(node.socket))
                await register(channel, CONTAINER)
                channel.close()
        finally:
            done.set()
            watcher.join()

    assert missing == []
    assert node.recorded(CONTAINER) == (ME,)


@pytest.mark.usefixtures("dra")
async def test_no_call_is_refused_while_a_waiting_successor_takes_over(node: RegistryNode, started: Started) -> None:
    node.runs(CONTAINER, [ME])
    node.bind(CONTAINER)
    answered: list[None] = []
    over = asyncio.Event()

    async def call_until_over() -> None:
        while not over.is_set():
            channel = Channel(path=str(node.socket))
            await register(channel, CONTAINER)
            channel.close()
            answered.append(None)

    async with AsyncExitStack() as services:
        first = await services.enter_async_context(started())
        before = node.socket.stat().st_ino
        async with _standing_by(node) as second, asyncio.TaskGroup() as callers:
            calling = callers.create_task(call_until_over())
            await polling.until(lambda: _is_true(len(answered) > 3))
            assert node.socket.stat().st_ino == before
            first.send_signal(signal.SIGTERM)
            await first.wait()
            count = len(answered)
            await polling.until(lambda: _is_true(len(answered) > count + 3))
            over.set()
            await calling
            assert second.returncode is None
            assert node.socket.stat().st_ino != before
            await node.until_ready()  # by the debug socket, which is the second one's


@pytest.mark.usefixtures("dra")
async def test_a_kill_loses_nothing_that_the_next_start_needs(node: RegistryNode, started: Started) -> None:
    node.runs(CONTAINER, [ME])
    node.bind(CONTAINER)
    async with started() as process:
        process.kill()
        await process.wait()

    async with started():
        channel = Channel(path=str(node.socket))
        await register(channel, CONTAINER)
        channel.close()

    assert node.recorded(CONTAINER) == (ME,)


GARBAGE = st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=300).map(lambda b: PREFACE + b),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 255), st.integers(0, 9), st.binary(max_size=60)), max_size=8).map(
        lambda frames: PREFACE + b"".join(_frame(*f) for f in frames)
    ),
)


@pytest.mark.usefixtures("dra")
async def test_garbage_ends_its_own_connection_only(node: RegistryNode, channel: Channel, started: Started) -> None:
    node.runs(CONTAINER, [ME])
    node.bind(CONTAINER)

    @settings(max_examples=2000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(raw=GARBAGE)
    def send(raw: bytes) -> None:
        with socket.socket(socket.AF_UNIX) as hostile:
            hostile.settimeout(5)
            hostile.connect(str(node.socket))
            try:
                hostile.sendall(raw)
                hostile.shutdown(socket.SHUT_WR)
                while hostile.recv(4096):
                    pass
            except ConnectionError:
                pass

    async with started() as process:
        await register(channel, CONTAINER)
        before_kib = _rss_kib(process.pid)
        await asyncio.to_thread(send)
        await register(channel, CONTAINER)
        grown_kib = _rss_kib(process.pid) - before_kib

    assert grown_kib < 8192


@pytest.mark.usefixtures("dra")
async def test_an_oversized_request_is_reset_and_the_connection_lives(
    node: RegistryNode, channel: Channel, started: Started
) -> None:
    node.runs(CONTAINER, [ME])
    node.bind(CONTAINER)

    async with started():
        with pytest.raises(Exception, match=r"(?i)reset|terminated"):
            await register(channel, CONTAINER, said={"register_uuid": "x" * 20000})
        await register(channel, CONTAINER)

    assert node.recorded(CONTAINER) == (ME,)


@pytest.mark.usefixtures("dra")
async def test_a_field_of_another_wire_type_is_an_invalid_argument(node: RegistryNode, started: Started) -> None:
    async with started():
        with pytest.raises(GRPCError) as caught:
            await _send_raw(node, b"\x08\x05")

    assert (caught.value.status, caught.value.message) == (
        Status.INVALID_ARGUMENT,
        "pod_uid is of type int; expected text",
    )


@pytest.mark.parametrize("option", ["--manager-dir", "--proc-root", "--cgroup-root"])
def test_a_start_without_a_directory_is_one_sentence_and_exit_1(node: RegistryNode, option: str) -> None:
    missing = node.root / "nowhere"

    ended = subprocess.run(
        [sys.executable, "-m", "vgpu_registry", *node.argv, f"{option}={missing}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    meaning = option.removeprefix("--").replace("-dir", " directory").replace("-", " ")
    assert ended.returncode == 1
    assert ended.stderr == f"vgpu-registry: {meaning} {missing} is missing, or is no directory\n"
    assert not missing.exists()


def test_a_run_directory_that_cannot_be_made_is_one_sentence_and_exit_1(node: RegistryNode) -> None:
    (node.root / "file").write_text("")

    ended = subprocess.run(
        [sys.executable, "-m", "vgpu_registry", *node.argv, f"--run-dir={node.root}/file"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert ended.returncode == 1
    assert ended.stderr == f"vgpu-registry: cannot make directory {node.root}/file/debug: Not a directory\n"


@asynccontextmanager
async def _standing_by(node: RegistryNode) -> AsyncIterator[asyncio.subprocess.Process]:
    """A second registry, ready while the first is in charge."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "vgpu_registry", *node.argv, stdout=subprocess.DEVNULL)
    try:
        await polling.until(lambda: node.is_ready(waiting_socket(node.debug_socket, process.pid)))
        yield process
    finally:
        process.kill()
        await process.wait()


async def _is_true(fact: bool) -> bool:
    return fact


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


async def _refuses(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        return False


def _rss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


class _RawCodec(ProtoCodec):
    """Sends bytes as they are."""

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)


async def _send_raw(node: RegistryNode, raw: bytes) -> None:
    channel = Channel(path=str(node.socket), codec=_RawCodec())
    try:
        await UnaryUnaryMethod[Any, Any](channel, ROUTE, bytes, ContainerDeviceResponse)(raw, timeout=5)
    finally:
        channel.close()
