"""One plugin from the wait for its lock to its end, and the pages that it shows meanwhile."""

from __future__ import annotations

import asyncio
import fcntl
import os

from vgpu_nri import app
from vgpu_nri.config import Config
from vgpu_testkit import nri_bench, nri_messages
from vgpu_testkit.fake_partitions import FakePartitions
from vgpu_testkit.nri_messages import ID
from vgpu_testkit.nri_runtime_end import RuntimeEnd


async def test_standby_is_ready_and_registers_only_once_the_lock_is_free(
    dra: FakePartitions, runtime: RuntimeEnd, config: Config, timing: app.Timing
) -> None:
    holder = os.open(config.lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(holder, fcntl.LOCK_EX)
    async with nri_bench.running(config, timing):
        await nri_bench.until_page(config, "/debug/session", "another instance holds the plugin lock")
        assert await nri_bench.page(config, "/readyz") == "ok\n"
        assert runtime.connections.empty()

        os.close(holder)

        await (await runtime.accept()).attach()


async def test_standby_stops_when_asked(config: Config, timing: app.Timing) -> None:
    holder = os.open(config.lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(holder, fcntl.LOCK_EX)

    async with asyncio.timeout(5), nri_bench.running(config, timing):
        await nri_bench.until_page(config, "/debug/session", "another instance holds the plugin lock")

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

    (held,) = await nri_bench.debug(config, "partitions")
    calls = await nri_bench.debug(config, "calls")
    session = await nri_bench.debug(config, "session")

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
        assert nri_messages.NONCE not in await nri_bench.page(config, f"/debug/{name}")
    assert 'vgpu_nri_hook_seconds_count{hook="create",outcome="ok"} 1.0' in await nri_bench.page(config, "/metrics")
