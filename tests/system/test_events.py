"""What a user must see is an Event of the object that the user looks at, and no secret is in it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from grpclib.exceptions import GRPCError

from vgpu_testkit.api_server import ApiServer
from vgpu_testkit.dra_bench import Container, DraBench, half_a_gpu
from vgpu_testkit.kubelet_values import KubeletRefusal
from vgpu_testkit.manifests import Manifest

CLAIM = half_a_gpu()
CONTAINER = Container()
POD_UID = "0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c11"


async def prepared(bench: DraBench, server: ApiServer, claim: Manifest = CLAIM) -> None:
    server.claims.put(claim.document())
    await bench.start()
    await bench.prepare(claim)


def told(event: dict[str, Any]) -> tuple[str, str, str, str]:
    about = event["involvedObject"]
    return about.get("namespace", ""), about["name"], about["uid"], event["reason"]


async def test_refused_container_is_told_to_its_pod_without_the_secret(bench: DraBench, server: ApiServer) -> None:
    await prepared(bench, server)
    shown = bench.shown(CLAIM, CONTAINER)
    nonce = shown.grants[0].value.rpartition("/")[2]
    del shown.devices[:]

    for _ in range(3):
        with pytest.raises(GRPCError):
            await bench.calls.ensure(shown)

    await server.until(lambda: bool(server.events.of("Pod")))
    (event,) = server.events.of("Pod")
    assert told(event) == ("research", "two-workers-0", POD_UID, "VgpuPartitionRefused")
    assert "was not given its device /dev/nvidia5: the grant is another container's" in event["message"]
    assert nonce not in json.dumps(event)


async def test_refused_start_is_told_to_the_pod(bench: DraBench, server: ApiServer) -> None:
    await prepared(bench, server)
    await bench.ensure(CLAIM, CONTAINER)
    bench.host.populate(CONTAINER.cgroup, [CONTAINER.pid])
    bench.host.show_process(CONTAINER.pid, cgroup=CONTAINER.cgroup, mounts={})

    with pytest.raises(GRPCError):
        await bench.record_start(CONTAINER)

    await server.until(lambda: bool(server.events.of("Pod")))
    (event,) = server.events.of("Pod")
    assert told(event) == ("research", "two-workers-0", POD_UID, "VgpuStartRefused")
    assert "does not show what we mounted there" in event["message"]


async def test_refused_prepare_is_told_to_the_claim_and_its_pods(bench: DraBench, server: ApiServer) -> None:
    document = CLAIM.document()
    document["status"]["reservedFor"] = [{"resource": "pods", "name": "two-workers-0", "uid": POD_UID}]
    document["status"]["allocation"]["devices"]["results"][0]["device"] = "vgpu-77"
    server.claims.put(document)
    await bench.start()

    with pytest.raises(KubeletRefusal):
        await bench.prepare(CLAIM)

    await server.until(lambda: len(server.events.stored) == 2)
    (of_claim,), (of_pod,) = server.events.of("ResourceClaim"), server.events.of("Pod")
    assert told(of_claim) == ("research", "half", CLAIM.uid, "VgpuPrepareRefused")
    assert told(of_pod) == ("research", "two-workers-0", POD_UID, "VgpuPrepareRefused")
    assert "vgpu-77" in of_claim["message"]


async def test_claim_of_a_corrupt_record_is_told_to_node_and_claim(bench: DraBench, server: ApiServer) -> None:
    await prepared(bench, server)
    bench.dra.kill()
    record = bench.claim_dir(CLAIM) / "claim.json"
    record.write_text(record.read_text().replace('"sha256": "', '"sha256": "0'))

    await bench.start()

    await server.until(lambda: len(server.events.stored) == 2)
    (of_claim,), (of_node,) = server.events.of("ResourceClaim"), server.events.of("Node")
    assert told(of_claim) == ("research", "half", CLAIM.uid, "VgpuClaimQuarantined")
    assert told(of_node) == ("", "node-a", "node-a", "VgpuClaimQuarantined")
    assert "its checksum does not fit its content; delete its pods to unprepare it" in of_node["message"]


async def test_record_that_names_no_claim_is_told_to_the_node_alone(bench: DraBench, server: ApiServer) -> None:
    await prepared(bench, server)
    bench.dra.kill()
    (bench.claim_dir(CLAIM) / "claim.json").write_text("no record")

    await bench.start()

    await server.until(lambda: bool(server.events.stored))
    (event,) = server.events.of("Node")
    assert f"claim {CLAIM.uid} is quarantined" in event["message"]


async def test_slices_that_the_api_server_refuses_are_told_to_the_node(bench: DraBench, server: ApiServer) -> None:
    server.fail_next("create", 403, times=10_000)
    bench.dra.start()

    await server.until(lambda: bool(server.events.of("Node")), timeout_s=30)

    (event,) = server.events.of("Node")
    assert event["reason"] == "VgpuResourceSlicesRefused"


async def test_api_server_that_is_away_keeps_no_container_waiting(bench: DraBench, server: ApiServer) -> None:
    await prepared(bench, server)
    server.fail_next("create event", 0, times=3)
    shown = bench.shown(CLAIM, CONTAINER)
    del shown.devices[:]

    with pytest.raises(GRPCError):
        await bench.calls.ensure(shown)
    answer = await bench.ensure(CLAIM, dataclasses.replace(CONTAINER, attempt=1))

    assert answer.partition == CONTAINER.partition
    await server.until(lambda: bool(server.events.of("Pod")), timeout_s=20)


async def test_what_goes_well_is_no_event(bench: DraBench, server: ApiServer) -> None:
    await prepared(bench, server)
    await bench.ensure(CLAIM, CONTAINER)
    bench.run(CONTAINER)
    await bench.record_start(CONTAINER)
    bench.end(CONTAINER)
    await bench.unprepare(CLAIM)

    await server.until(lambda: server.watches == 1)
    assert server.count("create event", "patch event") == 0
