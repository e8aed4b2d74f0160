"""dra-plugin as a process tells an API server what its node has, and says so when it may not."""

from __future__ import annotations

import pytest

from vgpu_testkit import polling
from vgpu_testkit.api_server import ApiServer
from vgpu_testkit.api_slice_gates import Gates
from vgpu_testkit.daemons import DaemonFailed
from vgpu_testkit.dra_bench import DraBench


async def test_gpus_are_published_once_and_again_by_no_restart(bench: DraBench, server: ApiServer) -> None:
    await bench.start()
    await server.until(lambda: server.watches == 1)
    bench.dra.kill()
    await server.until(lambda: server.watches == 0)

    await bench.start()
    await server.until(lambda: server.watches == 1)

    budgets, *gpus = server.slices
    assert len(budgets["spec"]["sharedCounters"]) == 8
    assert [[d["name"] for d in gpu["spec"]["devices"]] for gpu in gpus] == [[f"vgpu-{i}", f"gpu-{i}"] for i in range(8)]
    assert gpus[0]["spec"]["devices"][0]["capacity"]["memory"]["value"] == "81559Mi"
    assert gpus[0]["spec"]["devices"][0]["attributes"]["architecture"] == {"string": "Hopper"}
    assert server.writes == 9
    assert bench.dra.stop() == 0
    assert len(server.slices) == 9


async def test_an_operators_ratios_and_mig_devices_are_published(bench: DraBench, server: ApiServer) -> None:
    bench.dra.environment |= {"VGPU_DEVICE_CORES_RATIO": "200", "VGPU_DEVICE_MEMORY_RATIO": "150"}
    bench.node.partition_gpu("GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000007", (9, 0), (19, 4))

    await bench.start()
    await server.until(lambda: server.watches == 1)

    first, last = server.slices[1], server.slices[8]
    cores, memory = (first["spec"]["devices"][0]["capacity"][name] for name in ("cores", "memory"))
    assert (cores["value"], cores["requestPolicy"]["default"], memory["value"]) == ("200", "100", "122338Mi")
    assert [(d["name"], d["attributes"]["profile"]["string"]) for d in last["spec"]["devices"]] == [
        ("gpu-7-mig-9-0-4", "3g.40gb"),
        ("gpu-7-mig-19-4-1", "1g.10gb"),
    ]
    assert server.writes == 9


async def test_a_cluster_without_counters_gets_the_kind_that_the_operator_chose(bench: DraBench, server: ApiServer) -> None:
    server.gates = Gates(release=(1, 34), partitionable_devices=False, device_taints=False)
    bench.dra.environment |= {"VGPU_DEVICE_KIND_WITHOUT_COUNTERS": "gpu"}

    await bench.start()
    await server.until(lambda: server.watches == 1)

    assert [[d["name"] for d in gpu["spec"]["devices"]] for gpu in server.slices] == [[f"gpu-{i}"] for i in range(8)]


async def test_a_node_that_may_not_publish_is_not_ready_and_says_why(bench: DraBench, server: ApiServer) -> None:
    server.fail_next("create", 403, times=10_000)
    bench.dra.start()

    async def is_refused() -> bool:
        try:
            return (await bench.dra.metrics()).get('vgpu_dra_slice_failures_total{reason="refused"}', 0) >= 4
        except OSError:
            return False  # it does not listen yet

    await polling.until(is_refused)
    with pytest.raises(DaemonFailed, match=r"ResourceSlices are not published: the API server refused POST .*: 403"):
        await bench.dra.ready(timeout_s=0.5)

    server.heal()
    await bench.dra.ready()
    await server.until(lambda: len(server.slices) == 9)
