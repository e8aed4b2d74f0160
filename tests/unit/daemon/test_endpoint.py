"""What a process tells of itself, over TCP and over its private unix socket."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from vgpu_daemon.endpoint import Endpoint
from vgpu_daemon.run import StartFailed


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


async def get(session: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with session.get(path) as answer:
        return answer.status, await answer.text()


async def test_probes_are_ok_or_503_with_the_reason(process: Process, short_dir: Path) -> None:
    async with process.endpoint.serve(tcp="", unix=short_dir / "d.sock"), over_unix(short_dir / "d.sock") as session:
        assert await get(session, "/livez") == (200, "ok\n")
        assert await get(session, "/readyz") == (200, "ok\n")

        process.unready = "waiting for kubelet"
        assert await get(session, "/readyz") == (503, "waiting for kubelet\n")
        assert await get(session, "/livez") == (200, "ok\n")

        process.dead = "no session for 2 min"
        assert await get(session, "/livez") == (503, "no session for 2 min\n")


async def test_metrics_are_those_of_the_registry(process: Process, short_dir: Path) -> None:
    Counter("vgpu_x_things", "Things", registry=process.metrics).inc(3)

    async with process.endpoint.serve(tcp="", unix=short_dir / "d.sock"), over_unix(short_dir / "d.sock") as session:
        status, text = await get(session, "/metrics")

    assert status == 200
    assert "vgpu_x_things_total 3.0\n" in text


async def test_debug_is_json_on_the_private_socket_only(process: Process, short_dir: Path) -> None:
    port = await free_port()

    async with process.endpoint.serve(tcp=f"127.0.0.1:{port}", unix=short_dir / "d.sock"):
        async with over_unix(short_dir / "d.sock") as session:
            status, text = await get(session, "/debug/claims")
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            over_tcp = await get(session, "/debug/claims")
            probes = [(await get(session, path))[0] for path in ("/livez", "/readyz", "/metrics")]

    assert (status, json.loads(text)) == (200, {"uid": [1, 2]})
    assert over_tcp[0] == 404
    assert probes == [200, 200, 200]


async def test_private_socket_is_its_owners(process: Process, short_dir: Path) -> None:
    async with process.endpoint.serve(tcp="", unix=short_dir / "debug/d.sock"):
        assert stat.S_IMODE((short_dir / "debug").stat().st_mode) == 0o700
        assert stat.S_IMODE((short_dir / "debug/d.sock").stat().st_mode) == 0o600


@pytest.mark.parametrize("address", ["localhost", "localhost:", "localhost:http", "127.0.0.1:65536", ":-1"])
async def test_malformed_address_is_a_sentence(process: Process, short_dir: Path, address: str) -> None:
    with pytest.raises(StartFailed) as refusal:
        async with process.endpoint.serve(tcp=address, unix=short_dir / "d.sock"):
            pass

    assert str(refusal.value) == f"--http-listen is {address!r}; expected HOST:PORT"


async def test_taken_address_is_a_sentence_and_leaves_nothing_listening(process: Process, short_dir: Path) -> None:
    taken = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]

    with pytest.raises(StartFailed, match=rf"^cannot listen on 127\.0\.0\.1:{port}: "):
        async with process.endpoint.serve(tcp=f"127.0.0.1:{port}", unix=short_dir / "d.sock"):
            pass

    with pytest.raises(aiohttp.ClientError):
        async with over_unix(short_dir / "d.sock") as session:
            await get(session, "/livez")
    taken.close()
    await taken.wait_closed()


async def test_directory_that_cannot_be_made_is_a_sentence(process: Process, short_dir: Path) -> None:
    (short_dir / "debug").touch()

    with pytest.raises(StartFailed, match=r"^cannot make .*/debug: File exists \(--run-dir\)$"):
        async with process.endpoint.serve(tcp="", unix=short_dir / "debug/d.sock"):
            pass
