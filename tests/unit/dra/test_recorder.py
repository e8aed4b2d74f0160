"""What was told is in the API server, or is counted; telling never waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kubernetes_asyncio import client

from vgpu_dra.api_errors import ApiAway, ApiConflict
from vgpu_dra.effects.api_events import ApiEvents
from vgpu_dra.effects.kube_api import KubeApi
from vgpu_dra.event_documents import Create, Raise, Reason, Severity
from vgpu_dra.metrics import Metrics
from vgpu_dra.recorder import EventRecorder
from vgpu_state.ids import NodeName
from vgpu_testkit.api_server import ApiServer
from vgpu_testkit.dra_values import CLAIM, POD


class Bench:
    """A recorder that serves against the stand-in API server."""

    def __init__(self, server: ApiServer, recorder: EventRecorder, metrics: Metrics) -> None:
        self.server = server
        self.recorder = recorder
        self.events = server.events
        self.now_s = 0.0
        self._metrics = metrics

    def count(self, outcome: str) -> float:
        found = self._metrics.registry.get_sample_value("vgpu_dra_kubernetes_events_total", {"outcome": outcome})
        return found or 0.0

    async def until(self, holds: Callable[[], bool]) -> None:
        await self.server.until(holds)


@asynccontextmanager
async def recording(*, before: Callable[[EventRecorder], object] = lambda _: None) -> AsyncIterator[Bench]:
    server, metrics = ApiServer(node="node-a"), Metrics()
    async with server.serve() as address:

        async def connect() -> Any:
            return client.ApiClient(client.Configuration(host=address))

        api = KubeApi(connect)
        recorder = EventRecorder(ApiEvents(api), metrics, node=NodeName("node-a"), clock=lambda: bench.now_s)
        bench = Bench(server, recorder, metrics)
        before(recorder)
        async with asyncio.TaskGroup() as running:
            serving = running.create_task(recorder.serve())
            yield bench
            serving.cancel()
        await api.close()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with recording() as found:
        yield found


async def test_pod_claim_and_node_are_told(bench: Bench) -> None:
    bench.recorder.pod(POD, Reason.PARTITION_REFUSED, "the grant is another's")
    bench.recorder.claim(CLAIM, Reason.PREPARE_REFUSED, "GPU 5 is in use")
    bench.recorder.node(Reason.GPU_RECOVERED, "GPU 5 is well again", Severity.NORMAL)

    await bench.until(lambda: bench.count("written") == 3)

    told = [
        (e["involvedObject"]["kind"], e["metadata"]["namespace"], e["reason"], e["type"]) for e in bench.events.stored.values()
    ]
    assert told == [
        ("Pod", "research", "VgpuPartitionRefused", "Warning"),
        ("ResourceClaim", "research", "VgpuPrepareRefused", "Warning"),
        ("Node", "default", "VgpuGpuRecovered", "Normal"),
    ]


async def test_what_was_told_before_it_serves_is_not_lost() -> None:
    async with recording(before=lambda recorder: recorder.node(Reason.CLAIM_QUARANTINED, "x")) as bench:
        await bench.until(lambda: bench.count("written") == 1)


async def test_count_rises_by_a_patch(bench: Bench) -> None:
    for _ in range(3):
        bench.recorder.pod(POD, Reason.START_REFUSED, "no")
        await bench.until(lambda: bench.count("written") >= 1)
    bench.now_s = 61.0
    bench.recorder.pod(POD, Reason.START_REFUSED, "no")

    await bench.until(lambda: bench.count("written") == 2)

    (event,) = bench.events.of("Pod")
    assert event["count"] == 4
    assert [r.verb for r in bench.server.requests] == ["create event", "patch event"]


async def test_event_that_someone_deleted_is_made_anew(bench: Bench) -> None:
    bench.recorder.pod(POD, Reason.START_REFUSED, "no")
    await bench.until(lambda: bench.count("written") == 1)
    bench.events.stored.clear()
    bench.now_s = 61.0
    bench.recorder.pod(POD, Reason.START_REFUSED, "no")

    await bench.until(lambda: bench.count("written") == 2)

    (event,) = bench.events.of("Pod")
    assert event["count"] == 2


async def test_outage_of_the_api_server_loses_nothing_that_it_ends_in_time() -> None:
    async with recording() as bench:
        bench.server.fail_next("create event", 503, times=2)
        bench.recorder.pod(POD, Reason.START_REFUSED, "no")
        bench.recorder.claim(CLAIM, Reason.PREPARE_REFUSED, "no")

        await bench.until(lambda: bench.count("written") == 2)


async def test_event_into_a_namespace_that_is_gone_is_dropped_and_counted(bench: Bench) -> None:
    bench.events.missing_namespaces.add("research")
    bench.recorder.pod(POD, Reason.START_REFUSED, "no")

    await bench.until(lambda: bench.count("refused") == 1)

    bench.recorder.node(Reason.NRI_AWAY, "x")
    await bench.until(lambda: bench.count("written") == 1)


async def test_missing_permission_is_dropped_and_counted(bench: Bench) -> None:
    bench.server.fail_next("create event", 403)
    bench.recorder.pod(POD, Reason.START_REFUSED, "no")

    await bench.until(lambda: bench.count("refused") == 1)
    assert bench.events.stored == {}


async def test_too_many_different_things_are_dropped_and_counted(bench: Bench) -> None:
    for number in range(300):
        bench.recorder.node(Reason.GPU_UNHEALTHY, f"GPU {number}")

    await bench.until(lambda: bench.count("written") == 25)
    assert bench.count("full") == 44


class LateServer:
    """An API server that stores the first Event and says so too late, and has no two of one name."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def write(self, write: Create | Raise) -> None:
        assert isinstance(write, Create)
        name = write.document["metadata"]["name"]
        if name in self.names:
            raise ApiConflict("POST events", status=409, reason=f'events "{name}" already exists')
        self.names.append(name)
        if len(self.names) == 1:
            raise ApiAway("API server is away: TimeoutError")


async def test_event_whose_answer_came_too_late_is_there_once() -> None:
    server, metrics = LateServer(), Metrics()
    recorder = EventRecorder(server, metrics, node=NodeName("node-a"))
    recorder.pod(POD, Reason.START_REFUSED, "no")

    async with asyncio.timeout(10), asyncio.TaskGroup() as running:
        serving = running.create_task(recorder.serve())
        while not metrics.registry.get_sample_value("vgpu_dra_kubernetes_events_total", {"outcome": "written"}):
            await asyncio.sleep(0)
        serving.cancel()

    assert len(server.names) == 1
