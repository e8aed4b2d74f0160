"""dra-plugin as a process tells an API server what its node has, and says so when it may not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from vgpu_testkit.api_server import ApiServer, cluster_environment
from vgpu_testkit.daemons import DaemonFailed
from vgpu_testkit.dra_bench import DraBench, until


@pytest.fixture
async def server(bench: DraBench, tmp_path: Path) -> AsyncIterator[ApiServer]:
    """The API server that dra-plugin, not started yet, will find."""
    server = ApiServer(node="node-a")
    async with server.serve() as address:
        bench.dra.environment |= cluster_environment(tmp_path, address, node="node-a")
        yield server
        bench.dra.kill()


async def test_gpus_are_published_once_and_again_by_no_restart(bench: DraBench, server: ApiServer) -> None:
    await bench.start()
    await server.until(lambda: server.watches == 1)
    bench.dra.kill()
    await server.until(lambda: server.watches == 0)

    await bench.start()
    await server.until(lambda: server.watches == 1)

    (stored,) = server.slices
    assert [d["name"] for d in stored["spec"]["devices"]] == [f"vgpu-{i}" for i in range(8)]
    assert stored["spec"]["devices"][0]["capacity"]["memory"]["value"] == "81559Mi"
    assert stored["spec"]["devices"][0]["attributes"]["architecture"] == {"string": "Hopper"}
    assert server.writes == 1
    assert bench.dra.stop() == 0
    assert len(server.slices) == 1


async def test_a_node_that_may_not_publish_is_not_ready_and_says_why(bench: DraBench, server: ApiServer) -> None:
    server.fail_next("create", 403, times=10_000)
    bench.dra.start()

    async def is_refused() -> bool:
        try:
            return (await bench.dra.metrics()).get('vgpu_dra_slice_failures_total{reason="refused"}', 0) >= 4
        except OSError:
            return False  # it does not listen yet

    await until(is_refused)
    with pytest.raises(DaemonFailed, match=r"ResourceSlices are not published: the API server refused POST .*: 403"):
        await bench.dra.ready(timeout_s=0.5)

    server.heal()
    await bench.dra.ready()
    assert len(server.slices) == 1
