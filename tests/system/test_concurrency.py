"""What hangs holds up what waits for it and nothing else: a claim source, NVML for ever, a container that does not end.

One second is the bound that kubelet gives GetInfo.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from aiohttp import web

from vgpu_testkit import kubelet_wire, polling
from vgpu_testkit.api_environment import cluster_environment
from vgpu_testkit.api_server import ApiServer
from vgpu_testkit.dra_bench import DRIVER, Container, DraBench, half_a_gpu
from vgpu_testkit.kubelet_values import KubeletRefusal, Timings
from vgpu_testkit.manifests import Manifest

# Manifests are looked through in the order of their names: what hangs is found last.
HELD = half_a_gpu("zz-held", device="vgpu-1", uid="11111111-0f8a-4f57-9d0e-6a6d1b2c7e10")
FREE = half_a_gpu("free", device="vgpu-2", uid="22222222-0f8a-4f57-9d0e-6a6d1b2c7e10")
CONTAINER = Container()
NODE = "node-a"
_T = TypeVar("_T")


async def within_a_second(work: Awaitable[_T]) -> _T:
    started = time.monotonic()
    answer = await work
    assert time.monotonic() - started < 1.0
    return answer


async def get_info(bench: DraBench) -> str:
    socket = str(bench.node.kubelet_dir / f"plugins_registry/{DRIVER}-reg.sock")
    async with kubelet_wire.dialled(socket, Timings()) as channel:
        return (await kubelet_wire.get_info(channel, socket=socket, timeout_s=1.0)).name


async def test_claim_is_prepared_while_another_manifest_cannot_be_read(bench: DraBench) -> None:
    FREE.write(bench.claims)
    pipe = bench.claims / "research.zz-held.json"
    os.mkfifo(pipe)
    await bench.start()

    async with asyncio.TaskGroup() as group:
        held = group.create_task(bench.prepare(HELD))
        writer = await _writer_of(pipe)  # somebody reads it now, and goes on reading until the writer closes it
        await within_a_second(bench.prepare(FREE))
        await within_a_second(bench.unprepare(FREE))
        assert await within_a_second(get_info(bench)) == DRIVER
        assert not held.done()
        with os.fdopen(writer, "w") as file:
            file.write(json.dumps(HELD.document()))

    assert [device.device_name for device in held.result()] == ["vgpu-1"]


async def test_claim_is_prepared_while_the_api_server_holds_another(bench: DraBench, tmp_path: Path) -> None:
    async with _api_server({HELD.name: HELD, FREE.name: FREE}, holds=HELD.name) as (address, release):
        bench.dra.environment |= cluster_environment(tmp_path, address, node=NODE)
        await bench.start()

        async with asyncio.TaskGroup() as group:
            held = group.create_task(bench.prepare(HELD))
            # The first claim loads the API client: the loop must answer meanwhile.
            assert await within_a_second(get_info(bench)) == DRIVER
            await polling.until(_is_waiting(release))
            await within_a_second(bench.prepare(FREE))
            assert not held.done()
            release.set()

    assert [device.device_name for device in held.result()] == ["vgpu-1"]


async def test_api_server_that_is_away_or_has_no_such_claim_refuses_that_claim(bench: DraBench, tmp_path: Path) -> None:
    async with _api_server({FREE.name: FREE}, holds="") as (address, _):
        bench.dra.environment |= cluster_environment(tmp_path, address, node=NODE)
        await bench.start()
        with pytest.raises(KubeletRefusal, match="ResourceClaim research/zz-held does not exist"):
            await bench.prepare(HELD)
        with pytest.raises(KubeletRefusal, match="API server is away"):
            await bench.prepare(half_a_gpu("broken"))
        await bench.prepare(FREE)

    with pytest.raises(KubeletRefusal, match="API server is away"):
        await bench.prepare(HELD)
    await bench.unprepare(FREE)


async def test_nvml_hung_before_the_start_leaves_get_info_and_unprepare(bench: DraBench) -> None:
    for manifest in (FREE, HELD):
        manifest.write(bench.claims)
    await bench.start()
    await bench.prepare(FREE)
    bench.dra.kill()
    bench.node.hang("*")

    bench.dra.start()
    await bench.until_phase("serving")

    assert await within_a_second(get_info(bench)) == DRIVER
    assert "NVML has not answered" in (await bench.dra.debug("state"))["gpu_fault"]
    assert bench.kubelet is not None
    await bench.kubelet.until(lambda: bool(bench.kubelet and bench.kubelet.connected_endpoints(DRIVER)))
    with pytest.raises(KubeletRefusal, match="the GPUs of this node are not known: NVML has not answered"):
        await within_a_second(bench.prepare(HELD))
    await within_a_second(bench.unprepare(FREE))
    assert not bench.cdi_file(FREE).exists()
    assert bench.dra.stop() == 0


async def test_nvml_hung_after_the_start_leaves_everything(bench: DraBench) -> None:
    FREE.write(bench.claims)
    await bench.start()
    bench.node.hang("*")

    assert await within_a_second(get_info(bench)) == DRIVER
    await within_a_second(bench.prepare(FREE))
    await within_a_second(bench.ensure(FREE, CONTAINER))
    await within_a_second(bench.calls.release(CONTAINER.runtime_id, 2))
    await within_a_second(bench.unprepare(FREE))


async def test_unprepare_waits_for_a_running_container_and_other_claims_do_not(bench: DraBench) -> None:
    for manifest in (FREE, HELD):
        manifest.write(bench.claims)
    await bench.start()
    await bench.prepare(HELD)
    await bench.ensure(HELD, CONTAINER)
    bench.run(CONTAINER)
    await bench.record_start(CONTAINER)

    with pytest.raises(KubeletRefusal, match=r"container train of pod research/two-workers-0 still runs; it is unprepared when"):
        await within_a_second(bench.unprepare(HELD))

    await within_a_second(bench.prepare(FREE))
    assert bench.cdi_file(HELD).exists()
    bench.end(CONTAINER)
    await bench.unprepare(HELD)
    assert not bench.claim_dir(HELD).exists()


async def test_forty_claims_at_once_are_all_prepared_and_unprepared(bench: DraBench) -> None:
    manifests = [_a_fifth(n) for n in range(40)]
    for manifest in manifests:
        manifest.write(bench.claims)
    await bench.start()
    empty = bench.picture()

    devices = await bench.prepare(*manifests)

    assert [device.device_name for device in devices] == [f"vgpu-{n % 8}" for n in range(40)]
    await bench.unprepare(*manifests)
    await bench.until_trash_is_empty()
    assert bench.picture() == empty


def _a_fifth(number: int) -> Manifest:
    claim = half_a_gpu(f"claim-{number}", device=f"vgpu-{number % 8}", uid=f"{number:08d}-0f8a-4f57-9d0e-6a6d1b2c7e10")
    return replace(claim, shares=tuple(replace(share, cores="20") for share in claim.shares))


async def _writer_of(pipe: Path) -> int:
    """A descriptor to write to the pipe, as soon as somebody has opened it to read."""
    async with asyncio.timeout(10):
        while True:
            try:
                return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as exc:
                if exc.errno != errno.ENXIO:
                    raise
            await asyncio.sleep(0.01)


class _Held(asyncio.Event):
    """Set lets the held claim go; `is_waited_for` once somebody asked for it."""

    is_waited_for = False


def _is_waiting(release: _Held) -> Callable[[], Awaitable[bool]]:
    async def is_waiting() -> bool:
        return release.is_waited_for

    return is_waiting


@asynccontextmanager
async def _api_server(claims: dict[str, Manifest], *, holds: str) -> AsyncIterator[tuple[str, _Held]]:
    """An API server that has these ResourceClaims and keeps the one named `holds` back."""
    release = _Held()

    async def get(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name == holds:
            release.is_waited_for = True
            await release.wait()
        if name == "broken":
            assert request.transport is not None
            request.transport.close()
        if name not in claims:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        return web.json_response(claims[name].document())

    app = web.Application()
    ApiServer(node=NODE).add_routes(app)
    app.router.add_get("/apis/resource.k8s.io/v1/namespaces/research/resourceclaims/{name}", get)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", release
    finally:
        release.set()
        await runner.cleanup()
