"""What dra-plugin is told outside hooks: Synchronize in its forms, the lease, releases that could not be delivered."""

from __future__ import annotations

import asyncio
import contextlib

from vgpu_nri import app
from vgpu_nri.config import Config
from vgpu_nri.lease import Pace
from vgpu_nri.link import LinkTiming
from vgpu_nri.ttrpc.envelope import Response
from vgpu_proto import nri, partitions
from vgpu_state import errors
from vgpu_testkit import fake_partitions, nri_bench, nri_messages
from vgpu_testkit.fake_partitions import FakePartitions
from vgpu_testkit.nri_messages import ID
from vgpu_testkit.nri_runtime_end import PluginConnection, RuntimeEnd

_RUNNING = int(nri.CONTAINER_RUNNING)
_MORE = Response(payload=b"\x10\x01")


def _many(count: int, *, padding: int) -> list[nri.Container]:
    return [
        nri_messages.container(
            f"{number:064x}", env=(nri_messages.GRANT if number % 2 else "A=b", "X=" + "x" * padding), state=_RUNNING
        )
        for number in range(count)
    ]


async def test_whole_synchronize_reaches_dra_plugin_with_live_vgpu_containers_only(
    dra: FakePartitions, runtime: RuntimeEnd, plugin: None
) -> None:
    states = (nri.CONTAINER_CREATED, nri.CONTAINER_RUNNING, nri.CONTAINER_PAUSED, nri.CONTAINER_STOPPED, nri.CONTAINER_UNKNOWN)
    ours = [nri_messages.container(f"{state:064x}", state=state, pid=100 + state) for state in states]
    connection = await runtime.accept()

    await connection.attach([*ours, nri_messages.container("f" * 64, env=(), state=_RUNNING)], [nri_messages.pod()])

    (request,) = await dra.wait_for("Synchronize")
    assert [container.runtime_id[-1] for container in request.containers] == ["1", "3", "2"]
    assert [container.pid for container in request.containers] == [101, 103, 102]
    assert request.containers[0].pod == partitions.Pod(
        uid=nri_messages.POD_UID, namespace="team-a", name="train-0", runtime_handler="nvidia"
    )
    assert request.session > 0


async def test_parts_are_answered_with_more_and_reach_dra_plugin_as_one(
    dra: FakePartitions, runtime: RuntimeEnd, plugin: None
) -> None:
    connection = await runtime.accept()
    await connection.accept_registration()
    containers = _many(6, padding=1)

    first = await connection.call("Synchronize", nri.SynchronizeRequest(containers=containers[:4], more=True))
    empty = await connection.call("Synchronize", nri.SynchronizeRequest(more=True))
    last = await connection.call("Synchronize", nri.SynchronizeRequest(containers=containers[4:]))

    assert [first, empty, last] == [_MORE, _MORE, Response()]
    (request,) = await dra.wait_for("Synchronize")
    assert [int(container.runtime_id, 16) for container in request.containers] == [1, 3, 5]


async def test_synchronize_above_4_mib_as_one_message_is_taken_as_nri_0_6_sends_it(
    dra: FakePartitions, runtime: RuntimeEnd, plugin: None
) -> None:
    containers = _many(600, padding=10_000)
    assert nri.SynchronizeRequest(containers=containers).ByteSize() > 6_000_000
    connection = await runtime.accept()

    await connection.attach(containers)

    (request,) = await dra.wait_for("Synchronize")
    assert len(request.containers) == 300


async def test_synchronize_is_answered_while_dra_plugin_hangs(dra: FakePartitions, runtime: RuntimeEnd, plugin: None) -> None:
    dra.hung["Synchronize"] = asyncio.Event()
    connection = await runtime.accept()

    await connection.attach([nri_messages.container(state=_RUNNING)])
    await dra.wait_for("Synchronize")

    assert (await connection.call("CreateContainer", nri_messages.create("b" * 64))).code == 0


async def test_malformed_grant_in_synchronize_goes_to_dra_plugin_as_it_is(
    dra: FakePartitions, runtime: RuntimeEnd, plugin: None
) -> None:
    connection = await runtime.accept()

    await connection.attach([nri_messages.container(env=("VGPU_GRANT_x=nonsense",), state=_RUNNING)])

    (request,) = await dra.wait_for("Synchronize")
    assert list(request.containers[0].grants) == [partitions.Grant(key="x", value="nonsense")]


async def test_synchronize_is_said_again_until_dra_plugin_takes_it(
    dra: FakePartitions, runtime: RuntimeEnd, plugin: None
) -> None:
    dra.faults["Synchronize"] = errors.NotReady("waiting for the writer lock")
    connection = await runtime.accept()
    await connection.attach([nri_messages.container(state=_RUNNING)])
    await dra.wait_for("Synchronize", 3)

    del dra.faults["Synchronize"]

    await dra.wait_for("RenewSession")
    assert [len(request.containers) for request in dra.asked("Synchronize")][-1] == 1


async def test_lease_is_renewed_with_runtime_and_time_of_synchronize(
    dra: FakePartitions, runtime: RuntimeEnd, plugin: None
) -> None:
    connection = await runtime.accept()
    await connection.attach()

    first, second = (await dra.wait_for("RenewSession", 2))[:2]

    assert first == second
    assert (first.runtime_name, first.runtime_version) == ("containerd", "v2.1.9")
    assert first.session < first.synchronized_since


async def test_restarted_dra_plugin_gets_the_live_set_of_now(dra: FakePartitions, runtime: RuntimeEnd, plugin: None) -> None:
    connection = await runtime.accept()
    await connection.attach([nri_messages.container("b" * 64, state=_RUNNING), nri_messages.container("c" * 64, state=_RUNNING)])
    await dra.wait_for("RenewSession")
    await connection.call("CreateContainer", nri_messages.create())
    await connection.call("StartContainer", nri_messages.start(pid=4711))
    await connection.call("StopContainer", nri_messages.stop("b" * 64))

    dra.forget()

    request = (await dra.wait_for("Synchronize", 2))[-1]
    assert {(container.runtime_id, container.pid) for container in request.containers} == {("c" * 64, 0), (ID, 4711)}


async def test_drift_is_counted_and_shown(dra: FakePartitions, runtime: RuntimeEnd, plugin: None, config: Config) -> None:
    dra.unbound, dra.drifted = (ID,), ("b" * 64,)
    connection = await runtime.accept()
    await connection.attach([nri_messages.container(state=_RUNNING), nri_messages.container("b" * 64, state=_RUNNING)])
    await dra.wait_for("RenewSession")

    metrics = await nri_bench.page(config, "/metrics")

    assert 'vgpu_nri_synchronize_containers{kind="reported"} 2.0' in metrics
    assert 'vgpu_nri_synchronize_containers{kind="rebuilt"} 1.0' in metrics
    assert 'vgpu_nri_synchronize_faults_total{kind="unbound"} 1.0' in metrics
    assert 'vgpu_nri_synchronize_faults_total{kind="drifted"} 1.0' in metrics
    assert "vgpu_nri_session_up 1.0" in metrics


async def test_renewals_of_a_gone_session_end_with_it(dra: FakePartitions, runtime: RuntimeEnd, config: Config) -> None:
    timing = app.Timing(link=LinkTiming(first_retry_s=60), pace=Pace(renew_s=0.01))
    async with nri_bench.running(config, timing):
        connection = await runtime.accept()
        await connection.attach()
        await dra.wait_for("RenewSession")
        connection.close()
        await nri_bench.until_page(config, "/debug/session", '"state": "closed"')
        renewals = len(dra.asked("RenewSession"))

        await nri_bench.until_page(config, "/readyz", "the session ended: the runtime closed the connection")

        assert len(dra.asked("RenewSession")) == renewals


async def test_release_said_to_an_away_dra_plugin_is_delivered_when_it_is_back(
    runtime: RuntimeEnd, config: Config, timing: app.Timing
) -> None:
    fake = FakePartitions()
    async with nri_bench.running(config, timing):
        connection = await runtime.accept()
        async with fake_partitions.serving(fake, config.partitions_socket):
            await connection.attach()
            await connection.call("CreateContainer", nri_messages.create())

        assert await connection.call("StopContainer", nri_messages.stop()) == Response()
        assert await connection.call("RemoveContainer", nri_messages.remove()) == Response()
        assert (await nri_bench.debug(config, "session"))["undelivered_releases"] == {ID: "removed"}
        assert "vgpu_nri_undelivered_releases 1.0" in await nri_bench.page(config, "/metrics")

        async with fake_partitions.serving(fake, config.partitions_socket):
            (request,) = await fake.wait_for("ReleasePartition")
            await nri_bench.until_page(config, "/metrics", "vgpu_nri_undelivered_releases 0.0")

    assert request == partitions.ReleasePartitionRequest(runtime_id=ID, stage=partitions.ReleasePartitionRequest.REMOVED)


async def test_release_under_way_when_the_runtime_goes_is_delivered_in_the_next_session(
    dra: FakePartitions, runtime: RuntimeEnd, plugin: None
) -> None:
    connection = await runtime.accept()
    await connection.attach()
    await connection.call("CreateContainer", nri_messages.create())
    dra.hung["ReleasePartition"] = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_ignore_end(connection, nri_messages.stop()))
        await dra.wait_for("ReleasePartition")
        connection.close()

    successor = await runtime.accept()
    dra.hung.pop("ReleasePartition").set()
    await successor.attach()

    assert (await dra.wait_for("ReleasePartition", 2))[-1].runtime_id == ID


async def _ignore_end(connection: PluginConnection, message: nri.StopContainerRequest) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await connection.call("StopContainer", message)
