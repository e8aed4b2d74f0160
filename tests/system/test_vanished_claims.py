"""Claims that the API server has no more and that kubelet forgot are unprepared; never on less than the API server's word."""

from __future__ import annotations

from typing import Any

import pytest

from vgpu_testkit import polling
from vgpu_testkit.api_server import ApiServer
from vgpu_testkit.dra_bench import Container, DraBench, half_a_gpu

VANISHED = half_a_gpu("vanished")
KEPT = half_a_gpu("kept", device="vgpu-1", uid="4a1d2f7e-8f0a-4f57-9d0e-6a6d1b2c7e10")
CONTAINER = Container()
REMOVED = 'vgpu_dra_events_total{reason="vanished_claim_removed"}'


@pytest.fixture
async def server(bench: DraBench, server: ApiServer) -> ApiServer:
    """The API server that dra-plugin, which runs, has prepared both claims from."""
    for claim in (VANISHED, KEPT):
        server.claims.put(claim.document())
    await bench.start()
    await bench.prepare(VANISHED, KEPT)
    return server


async def known(bench: DraBench) -> set[str]:
    return set(await bench.dra.debug("claims"))


async def restarted(bench: DraBench, server: ApiServer) -> None:
    """dra-plugin looks at its start; returns when it has asked about both claims, or has given up."""
    bench.dra.kill()
    asked = len([r for r in server.requests if r.verb == "get claim"])
    await bench.start()
    await server.until(lambda: len([r for r in server.requests if r.verb == "get claim"]) > asked)


async def lines(bench: DraBench, event: str) -> list[dict[str, Any]]:
    async def is_there() -> bool:
        return any(entry["event"] == event for entry in bench.dra.entries())

    await polling.until(is_there)
    return [entry for entry in bench.dra.entries() if entry["event"] == event]


async def test_claim_that_kubelet_forgot_is_unprepared_and_told_to_the_node(bench: DraBench, server: ApiServer) -> None:
    del server.claims.stored["research", "vanished"]

    await restarted(bench, server)

    await server.until(lambda: bool(server.events.of("Node")))
    (event,) = server.events.of("Node")
    assert (event["reason"], event["type"]) == ("VgpuVanishedClaimRemoved", "Normal")
    assert f"claim research/vanished ({VANISHED.uid}) is not in the API server any more" in event["message"]
    assert await known(bench) == {KEPT.uid}
    assert (bench.cdi_file(VANISHED).exists(), bench.cdi_file(KEPT).exists()) == (False, True)
    assert (bench.claim_dir(VANISHED).exists(), bench.claim_dir(KEPT).exists()) == (False, True)
    assert (await bench.dra.metrics())[REMOVED] == 1
    await bench.unprepare(VANISHED)


async def test_claim_that_was_replaced_under_its_name_is_unprepared(bench: DraBench, server: ApiServer) -> None:
    server.claims.put(half_a_gpu("vanished", uid="99999999-8f0a-4f57-9d0e-6a6d1b2c7e10").document())

    await restarted(bench, server)

    await server.until(lambda: bool(server.events.of("Node")))
    assert await known(bench) == {KEPT.uid}


async def test_claim_of_a_container_that_runs_is_left_and_said_so(bench: DraBench, server: ApiServer) -> None:
    await bench.ensure(VANISHED, CONTAINER)
    bench.run(CONTAINER)
    await bench.record_start(CONTAINER)
    del server.claims.stored["research", "vanished"]

    await restarted(bench, server)

    (line,) = await lines(bench, "vanished claim left")
    assert (line["claim_uid"], line["reason"]) == (VANISHED.uid, "a container of it still runs")
    assert await known(bench) == {VANISHED.uid, KEPT.uid}


async def test_quarantined_claim_that_vanished_is_told_apart_by_its_name(bench: DraBench, server: ApiServer) -> None:
    bench.dra.kill()
    record = bench.claim_dir(VANISHED) / "claim.json"
    record.write_text(record.read_text().replace('"sha256": "', '"sha256": "0'))
    del server.claims.stored["research", "vanished"]

    await restarted(bench, server)

    (line,) = await lines(bench, "vanished claim left")
    assert line["claim"] == "research/vanished"
    assert line["reason"] == "it is quarantined: its containers cannot be known; kubelet's Unprepare removes it"
    assert bench.claim_dir(VANISHED).is_dir()


@pytest.mark.parametrize("status", [0, 403, 500, 503])
async def test_api_server_that_does_not_answer_costs_no_claim(bench: DraBench, server: ApiServer, status: int) -> None:
    server.claims.stored.clear()
    server.fail_next("get claim", status, times=10)

    await restarted(bench, server)

    (line,) = await lines(bench, "vanished claims are not looked for")
    assert line["reason"]
    assert await known(bench) == {VANISHED.uid, KEPT.uid}


async def test_api_server_that_knows_no_claims_at_all_costs_none(bench: DraBench, server: ApiServer) -> None:
    server.claims.is_served = False

    await restarted(bench, server)

    (line,) = await lines(bench, "vanished claims are not looked for")
    assert "does not serve ResourceClaims" in line["reason"]
    assert await known(bench) == {VANISHED.uid, KEPT.uid}
