"""What a process tells of itself, over TCP and over its private unix socket."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from vgpu_daemon import sockets
from vgpu_daemon.endpoint import Endpoint
from vgpu_daemon.run import BadUsage, StartFailed


class Process:
    """What a test makes its endpoint say."""

    def __init__(self) -> None:
        self.dead: str | None = None
        self.unready: str | None = None
        self.metrics = CollectorRegistry()
        self.endpoint = Endpoint(
            live=lambda: self.dead,
            ready=lambda: self.unready,
            metrics=self.metrics,
            debug={"claims": lambda: {"uid": [1, 2]}},
        )


@pytest.fixture
def process() -> Process:
    return Process()


async def free_port() -> int:
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


@asynccontextmanager
async def over_unix(path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession("http://x", connector=aiohttp.UnixConnector(str(path))) as session:
        yield session


@asynccontextmanager
async def in_charge(process: Process, unix: Path, *, tcp: str = "") -> AsyncIterator[None]:
    async with process.endpoint.serve(tcp=tcp, unix=unix) as debug_socket:
        debug_socket.take_name()
        yield


async def get(session: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with session.get(path) as answer:
        return answer.status, await answer.text()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def unready(path: Path) -> str:
    async with over_unix(path) as session:
        return (await get(session, "/readyz"))[1]


async def answers(session: aiohttp.ClientSession) -> bool:
    try:
        return (await get(session, "/livez"))[0] == 200
    except aiohttp.ClientError:
        return False


async def test_probes_are_ok_or_503_with_the_reason(process: Process, short_dir: Path) -> None:
    async with in_charge(process, short_dir / "d.sock"), over_unix(short_dir / "d.sock") as session:
        assert await get(session, "/livez") == (200, "ok\n")
        assert await get(session, "/readyz") == (200, "ok\n")

        process.unready = "waiting for kubelet"
        assert await get(session, "/readyz") == (503, "waiting for kubelet\n")
        assert await get(session, "/livez") == (200, "ok\n")

        process.dead = "no session for 2 min"
        assert await get(session, "/livez") == (503, "no session for 2 min\n")


async def test_metrics_are_those_of_the_registry(process: Process, short_dir: Path) -> None:
    Counter("vgpu_x_things", "Things", registry=process.metrics).inc(3)

    async with in_charge(process, short_dir / "d.sock"), over_unix(short_dir / "d.sock") as session:
        status, text = await get(session, "/metrics")

    assert status == 200
    assert "vgpu_x_things_total 3.0\n" in text


async def test_debug_is_json_on_the_private_socket_only(process: Process, short_dir: Path) -> None:
    port = await free_port()

    async with in_charge(process, short_dir / "d.sock", tcp=f"127.0.0.1:{port}"):
        async with over_unix(short_dir / "d.sock") as session:
            status, text = await get(session, "/debug/claims")
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            over_tcp = await get(session, "/debug/claims")
            probes = [(await get(session, path))[0] for path in ("/livez", "/readyz", "/metrics")]

    assert (status, json.loads(text)) == (200, {"uid": [1, 2]})
    assert over_tcp[0] == 404
    assert probes == [200, 200, 200]


async def test_private_socket_is_its_owners(process: Process, short_dir: Path) -> None:
    async with in_charge(process, short_dir / "debug/d.sock"):
        assert stat.S_IMODE((short_dir / "debug").stat().st_mode) == 0o700
        assert stat.S_IMODE((short_dir / "debug/d.sock").stat().st_mode) == 0o600


@pytest.mark.parametrize("address", ["localhost", "localhost:", "localhost:http", "127.0.0.1:65536", ":-1"])
async def test_malformed_address_is_a_sentence(process: Process, short_dir: Path, address: str) -> None:
    with pytest.raises(StartFailed) as refusal:
        async with process.endpoint.serve(tcp=address, unix=short_dir / "d.sock"):
            pass

    assert str(refusal.value) == f"--http-listen is {address!r}; expected HOST:PORT"


async def test_taken_address_is_waited_for_while_the_private_socket_serves(process: Process, short_dir: Path) -> None:
    predecessor = await asyncio.start_server(lambda _r, writer: writer.close(), "127.0.0.1", 0)
    port = predecessor.sockets[0].getsockname()[1]

    async with in_charge(process, short_dir / "d.sock", tcp=f"127.0.0.1:{port}"):
        async with over_unix(short_dir / "d.sock") as session:
            assert await get(session, "/readyz") == (200, "ok\n")
        predecessor.close()
        await predecessor.wait_closed()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session, asyncio.timeout(20):
            while not await answers(session):
                await asyncio.sleep(0.02)


async def test_an_end_while_the_address_is_taken_leaves_nothing(process: Process, short_dir: Path) -> None:
    predecessor = await asyncio.start_server(lambda _r, writer: writer.close(), "127.0.0.1", 0)

    async with in_charge(process, short_dir / "d.sock", tcp=f"127.0.0.1:{predecessor.sockets[0].getsockname()[1]}"):
        tasks = {task.get_name() for task in asyncio.all_tasks()}
    predecessor.close()
    await predecessor.wait_closed()

    assert "http address" in tasks
    assert "http address" not in {task.get_name() for task in asyncio.all_tasks()}
    assert names(short_dir) == []


async def test_address_that_cannot_be_had_is_a_sentence(process: Process, short_dir: Path) -> None:
    with pytest.raises(StartFailed, match=r"^cannot listen on 192\.0\.2\.1:1: "):
        async with process.endpoint.serve(tcp="192.0.2.1:1", unix=short_dir / "d.sock"):
            pass

    assert names(short_dir) == []


async def test_waiting_instance_has_a_socket_of_its_own_until_it_takes_the_plain_name(process: Process, short_dir: Path) -> None:
    other = Process()
    async with in_charge(other, short_dir / "d.sock"):
        process.unready = other.unready = "I am another"
        async with process.endpoint.serve(tcp="", unix=short_dir / "d.sock") as debug_socket:
            other.unready = "I am the other"
            own = short_dir / f"d-{os.getpid()}.sock"
            assert await unready(own) == "I am another\n"
            assert await unready(short_dir / "d.sock") == "I am the other\n"

            debug_socket.take_name()

            assert not own.exists()
            assert await unready(short_dir / "d.sock") == "I am another\n"

    assert names(short_dir) == []


async def test_the_end_of_a_predecessor_leaves_the_name_to_who_has_taken_it(process: Process, short_dir: Path) -> None:
    async with AsyncExitStack() as predecessor:
        await predecessor.enter_async_context(in_charge(Process(), short_dir / "d.sock"))
        async with in_charge(process, short_dir / "d.sock"):
            await predecessor.aclose()

            async with over_unix(short_dir / "d.sock") as session:
                assert await get(session, "/livez") == (200, "ok\n")


async def test_who_takes_the_name_clears_away_what_killed_waiting_instances_left(process: Process, short_dir: Path) -> None:
    sockets.publish(short_dir / "d-1.sock", mode=0o600).close()
    with sockets.publish(short_dir / "d-2.sock", mode=0o600):
        async with in_charge(process, short_dir / "d.sock"):
            assert names(short_dir) == ["d-2.sock", "d.sock"]


async def test_debug_socket_whose_path_is_too_long_is_a_sentence(process: Process, short_dir: Path) -> None:
    with pytest.raises(BadUsage, match=r"^socket path .* bytes, a unix socket's has room for 107; choose a shorter --run-dir$"):
        async with process.endpoint.serve(tcp="", unix=short_dir / ("d" * 90) / "d.sock"):
            pass


async def test_directory_that_cannot_be_made_is_a_sentence(process: Process, short_dir: Path) -> None:
    (short_dir / "debug").touch()

    with pytest.raises(StartFailed, match=r"^cannot make .*/debug: File exists \(--run-dir\)$"):
        async with process.endpoint.serve(tcp="", unix=short_dir / "debug/d.sock"):
            pass
