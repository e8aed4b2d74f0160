"""Sessions with a runtime over real sockets: Synchronize in its forms, the lease, the end of a connection and the next one."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from vgpu_nri import app
from vgpu_nri.config import Config
from vgpu_nri.lease import Pace
from vgpu_nri.link import LinkTiming
from vgpu_nri.ttrpc.envelope import Response
from vgpu_proto import nri, partitions
from vgpu_state import errors
from vgpu_testkit import fake_partitions, nri_messages, nri_runtime_end
from vgpu_testkit.daemons import waiting_socket
from vgpu_testkit.fake_partitions import FakePartitions
from vgpu_testkit.nri_messages import ID
from vgpu_testkit.nri_runtime_end import PluginConnection, RuntimeEnd

_RUNNING = int(nri.CONTAINER_RUNNING)
_MORE = Response(payload=b"\x10\x01")


async def _page(config: Config, path: str) -> str:
    """From the instance in charge; from this one while it waits, which nobody is in charge then in these tests."""
    waiting = waiting_socket(config.debug_socket, os.getpid())
    connector = aiohttp.UnixConnector(path=str(waiting if waiting.exists() else config.debug_socket))
    async with aiohttp.ClientSession(connector=connector) as client, client.get(f"http://plugin{path}") as answer:
        return await answer.text()


async def _debug(config: Config, name: str) -> Any:
    return json.loads(await _page(config, f"/debug/{name}"))


async def _until(config: Config, path: str, text: str) -> None:
    """Asks for a page until it says `text`: the plugin has no other sign that an outside event has reached it."""
    async with asyncio.timeout(10):
        while text not in await _page(config, path):
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def _running(config: Config, timing: app.Timing) -> AsyncIterator[None]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(app.serve(config, stop, timing=timing))
        try:
            async with asyncio.timeout(10):
                while not any(config.debug_socket.parent.glob("nri*.sock")):  # published by rename, nothing tells
                    await asyncio.sleep(0.001)
            yield
        finally:
            stop.set()


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

    metrics = await _page(config, "/metrics")

    assert 'vgpu_nri_synchronize_containers{kind="reported"} 2.0' in metrics
    assert 'vgpu_nri_synchronize_containers{kind="rebuilt"} 1.0' in metrics
    assert 'vgpu_nri_synchronize_faults_total{kind="unbound"} 1.0' in metrics
    assert 'vgpu_nri_synchronize_faults_total{kind="drifted"} 1.0' in metrics
    assert "vgpu_nri_session_up 1.0" in metrics


async def test_release_said_to_an_away_dra_plugin_is_delivered_when_it_is_back(
    runtime: RuntimeEnd, config: Config, timing: app.Timing
) -> None:
    fake = FakePartitions()
    async with _running(config, timing):
        connection = await runtime.accept()
        async with fake_partitions.serving(fake, config.partitions_socket):
            await connection.attach()
            await connection.call("CreateContainer", nri_messages.create())

        assert await connection.call("StopContainer", nri_messages.stop()) == Response()
        assert await connection.call("RemoveContainer", nri_messages.remove()) == Response()
        assert (await _debug(config, "session"))["undelivered_releases"] == {ID: "removed"}
        assert "vgpu_nri_undelivered_releases 1.0" in await _page(config, "/metrics")

        async with fake_partitions.serving(fake, config.partitions_socket):
            (request,) = await fake.wait_for("ReleasePartition")
            await _until(config, "/metrics", "vgpu_nri_undelivered_releases 0.0")

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


async def test_plugin_comes_back_under_a_new_session_when_the_runtime_closes(
    dra: FakePartitions, runtime: RuntimeEnd, plugin: None, config: Config
) -> None:
    first = await runtime.accept()
    await first.attach()
    (before,) = await dra.wait_for("Synchronize")
    first.close()

    second = await runtime.accept()
    await second.attach()

    after = (await dra.wait_for("Synchronize", 2))[-1]
    assert after.session > before.session
    metrics = await _page(config, "/metrics")
    assert 'vgpu_nri_closes_total{reason="runtime_closed"} 1.0' in metrics
    assert "vgpu_nri_reconnects_total 1.0" in metrics


async def test_plugin_finds_a_runtime_that_comes_up_later(dra: FakePartitions, config: Config, timing: app.Timing) -> None:
    async with _running(config, timing):
        await _until(config, "/readyz", "the runtime cannot be reached: NRI socket")
        async with nri_runtime_end.listening(Path(config.nri_socket)) as runtime:
            await (await runtime.accept()).attach()
            await dra.wait_for("RenewSession")

            assert await _page(config, "/readyz") == "ok\n"
            assert await _page(config, "/livez") == "ok\n"


async def test_absent_runtime_is_dialled_briskly_at_first_and_then_by_the_slow_schedule(
    dra: FakePartitions, config: Config, timing: app.Timing
) -> None:
    slow = LinkTiming(first_retry_s=60.0, longest_retry_s=60.0, brisk_retry_s=0.01, brisk_for_s=0.3)
    async with _running(config, app.Timing(link=slow, pace=timing.pace)):
        await _until(config, "/readyz", "the runtime cannot be reached: NRI socket")
        async with nri_runtime_end.listening(Path(config.nri_socket)) as runtime:
            await (await runtime.accept()).attach()
            await dra.wait_for("RenewSession")
        # A session that ends soon after its beginning is met slowly: the runtime answers, and fails.
        await _until(config, "/metrics", 'vgpu_nri_closes_total{reason="runtime_closed"} 1.0')
        assert "vgpu_nri_reconnects_total 0.0" in await _page(config, "/metrics")

    async with _running(config, app.Timing(link=replace(slow, brisk_for_s=0.0), pace=timing.pace)):
        await _until(config, "/metrics", 'vgpu_nri_closes_total{reason="unreachable"} 1.0')


async def test_runtime_that_ends_after_a_lasting_session_is_dialled_briskly(
    dra: FakePartitions, config: Config, timing: app.Timing
) -> None:
    lasting = LinkTiming(first_retry_s=60.0, longest_retry_s=60.0, brisk_retry_s=0.01, stable_s=0.0)
    async with _running(config, app.Timing(link=lasting, pace=timing.pace)):
        for _ in range(2):
            async with nri_runtime_end.listening(Path(config.nri_socket)) as runtime:
                await (await runtime.accept()).attach()
                await dra.wait_for("RenewSession")


async def test_watchdog_drops_a_runtime_that_never_synchronizes(
    dra: FakePartitions, runtime: RuntimeEnd, config: Config, timing: app.Timing
) -> None:
    quick = app.Timing(link=LinkTiming(watchdog_s=0.1, first_retry_s=0.01, longest_retry_s=0.01), pace=timing.pace)
    async with _running(config, quick):
        first = await runtime.accept()
        await first.accept_registration()

        await first.closed.wait()
        second = await runtime.accept()
        await second.attach()
        await dra.wait_for("RenewSession")

        assert 'vgpu_nri_closes_total{reason="not_synchronized"} 1.0' in await _page(config, "/metrics")


async def test_watchdog_drops_a_runtime_that_never_answers_the_registration(
    runtime: RuntimeEnd, config: Config, timing: app.Timing
) -> None:
    quick = app.Timing(link=LinkTiming(watchdog_s=0.05, first_retry_s=0.01, longest_retry_s=0.01), pace=timing.pace)
    async with _running(config, quick):
        await (await runtime.accept()).closed.wait()
        await runtime.accept()


async def test_refused_registration_is_tried_again(runtime: RuntimeEnd, plugin: None, config: Config) -> None:
    first = await runtime.accept()
    first.answer(await first.requests.get(), Response(code=3, message="invalid plugin index"))

    await first.closed.wait()
    await runtime.accept()

    assert 'vgpu_nri_closes_total{reason="registration_refused"} 1.0' in await _page(config, "/metrics")


@pytest.mark.parametrize("garbage", [b"\0\0\0\x01\xff\xff\xff\xff", b"\0\0\0\x01\0\0\0\x0a\xff\xff\xff\xff\0\0\0\x01\x01\x00"])
async def test_bytes_without_meaning_end_the_connection_and_not_the_process(
    dra: FakePartitions, runtime: RuntimeEnd, plugin: None, garbage: bytes
) -> None:
    first = await runtime.accept()
    await first.attach()

    first.send_bytes(garbage)
    await first.closed.wait()

    second = await runtime.accept()
    await second.attach()
    assert (await second.call("CreateContainer", nri_messages.create())).code == 0


async def test_shutdown_is_answered_before_the_connection_ends(dra: FakePartitions, runtime: RuntimeEnd, plugin: None) -> None:
    connection = await runtime.accept()
    await connection.attach()

    assert await connection.call("Shutdown", b"") == Response()
    await connection.closed.wait()
    await runtime.accept()


async def test_standby_is_ready_and_registers_only_once_the_lock_is_free(
    dra: FakePartitions, runtime: RuntimeEnd, config: Config, timing: app.Timing
) -> None:
    holder = os.open(config.lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(holder, fcntl.LOCK_EX)
    async with _running(config, timing):
        await _until(config, "/debug/session", "another instance holds the plugin lock")
        assert await _page(config, "/readyz") == "ok\n"
        assert runtime.connections.empty()

        os.close(holder)

        await (await runtime.accept()).attach()


async def test_standby_stops_when_asked(config: Config, timing: app.Timing) -> None:
    holder = os.open(config.lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(holder, fcntl.LOCK_EX)

    async with asyncio.timeout(5), _running(config, timing):
        await _until(config, "/debug/session", "another instance holds the plugin lock")

    os.close(holder)


async def test_stop_lets_a_hook_be_answered(dra: FakePartitions, runtime: RuntimeEnd, config: Config, timing: app.Timing) -> None:
    dra.hung["EnsurePartition"] = asyncio.Event()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(app.serve(config, stop, timing=timing))
        connection = await runtime.accept()
        await connection.attach()
        answer = tasks.create_task(connection.call("CreateContainer", nri_messages.create()))
        await dra.wait_for("EnsurePartition")

        stop.set()
        dra.hung["EnsurePartition"].set()

    assert answer.result().code == 0


async def test_pages_show_partitions_calls_and_session_without_a_nonce(
    dra: FakePartitions, runtime: RuntimeEnd, plugin: None, config: Config
) -> None:
    connection = await runtime.accept()
    await connection.attach()
    await connection.call("CreateContainer", nri_messages.create())
    await connection.call("CreateContainer", nri_messages.create("f" * 64, env=()))

    (held,) = await _debug(config, "partitions")
    calls = await _debug(config, "calls")
    session = await _debug(config, "session")

    assert (held["container_id"], held["container"], held["claim_uid"]) == (ID, "team-a/train-0/train", nri_messages.CLAIM)
    assert held["partition"] == f"{nri_messages.POD_UID}_train"
    assert [(call["hook"], call["outcome"]) for call in calls] == [
        ("create", "not_ours"),
        ("create", "ok"),
        ("synchronize", "ok"),
        ("configure", "ok"),
    ]
    assert (session["state"], session["runtime"]) == ("synchronized", "containerd v2.1.9")
    for name in ("partitions", "calls", "session"):
        assert nri_messages.NONCE not in await _page(config, f"/debug/{name}")
    assert 'vgpu_nri_hook_seconds_count{hook="create",outcome="ok"} 1.0' in await _page(config, "/metrics")


async def test_renewals_of_a_gone_session_end_with_it(dra: FakePartitions, runtime: RuntimeEnd, config: Config) -> None:
    timing = app.Timing(link=LinkTiming(first_retry_s=60), pace=Pace(renew_s=0.01))
    async with _running(config, timing):
        connection = await runtime.accept()
        await connection.attach()
        await dra.wait_for("RenewSession")
        connection.close()
        await _until(config, "/debug/session", '"state": "closed"')
        renewals = len(dra.asked("RenewSession"))

        await _until(config, "/readyz", "the session ended: the runtime closed the connection")

        assert len(dra.asked("RenewSession")) == renewals
