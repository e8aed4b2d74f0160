"""The end of a connection to the runtime, whoever ends it, and the next one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vgpu_nri import app
from vgpu_nri.config import Config
from vgpu_nri.link import LinkTiming
from vgpu_nri.ttrpc.envelope import Response
from vgpu_testkit import nri_bench, nri_messages, nri_runtime_end
from vgpu_testkit.fake_partitions import FakePartitions
from vgpu_testkit.nri_runtime_end import RuntimeEnd


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
    metrics = await nri_bench.page(config, "/metrics")
    assert 'vgpu_nri_closes_total{reason="runtime_closed"} 1.0' in metrics
    assert "vgpu_nri_reconnects_total 1.0" in metrics


async def test_plugin_finds_a_runtime_that_comes_up_later(dra: FakePartitions, config: Config, timing: app.Timing) -> None:
    async with nri_bench.running(config, timing):
        await nri_bench.until_page(config, "/readyz", "the runtime cannot be reached: NRI socket")
        async with nri_runtime_end.listening(Path(config.nri_socket)) as runtime:
            await (await runtime.accept()).attach()
            await dra.wait_for("RenewSession")

            assert await nri_bench.page(config, "/readyz") == "ok\n"
            assert await nri_bench.page(config, "/livez") == "ok\n"


async def test_absent_runtime_is_dialled_briskly_at_first_and_then_by_the_slow_schedule(
    dra: FakePartitions, config: Config, timing: app.Timing
) -> None:
    slow = LinkTiming(first_retry_s=60.0, longest_retry_s=60.0, brisk_retry_s=0.01, brisk_for_s=0.3)
    async with nri_bench.running(config, app.Timing(link=slow, pace=timing.pace)):
        await nri_bench.until_page(config, "/readyz", "the runtime cannot be reached: NRI socket")
        async with nri_runtime_end.listening(Path(config.nri_socket)) as runtime:
            await (await runtime.accept()).attach()
            await dra.wait_for("RenewSession")
        # A session that ends soon after its beginning is met slowly: the runtime answers, and fails.
        await nri_bench.until_page(config, "/metrics", 'vgpu_nri_closes_total{reason="runtime_closed"} 1.0')
        assert "vgpu_nri_reconnects_total 0.0" in await nri_bench.page(config, "/metrics")

    async with nri_bench.running(config, app.Timing(link=replace(slow, brisk_for_s=0.0), pace=timing.pace)):
        await nri_bench.until_page(config, "/metrics", 'vgpu_nri_closes_total{reason="unreachable"} 1.0')


async def test_runtime_that_ends_after_a_lasting_session_is_dialled_briskly(
    dra: FakePartitions, config: Config, timing: app.Timing
) -> None:
    lasting = LinkTiming(first_retry_s=60.0, longest_retry_s=60.0, brisk_retry_s=0.01, stable_s=0.0)
    async with nri_bench.running(config, app.Timing(link=lasting, pace=timing.pace)):
        for _ in range(2):
            async with nri_runtime_end.listening(Path(config.nri_socket)) as runtime:
                await (await runtime.accept()).attach()
                await dra.wait_for("RenewSession")


async def test_watchdog_drops_a_runtime_that_never_synchronizes(
    dra: FakePartitions, runtime: RuntimeEnd, config: Config, timing: app.Timing
) -> None:
    quick = app.Timing(link=LinkTiming(watchdog_s=0.1, first_retry_s=0.01, longest_retry_s=0.01), pace=timing.pace)
    async with nri_bench.running(config, quick):
        first = await runtime.accept()
        await first.accept_registration()

        await first.closed.wait()
        second = await runtime.accept()
        await second.attach()
        await dra.wait_for("RenewSession")

        assert 'vgpu_nri_closes_total{reason="not_synchronized"} 1.0' in await nri_bench.page(config, "/metrics")


async def test_watchdog_drops_a_runtime_that_never_answers_the_registration(
    runtime: RuntimeEnd, config: Config, timing: app.Timing
) -> None:
    quick = app.Timing(link=LinkTiming(watchdog_s=0.05, first_retry_s=0.01, longest_retry_s=0.01), pace=timing.pace)
    async with nri_bench.running(config, quick):
        await (await runtime.accept()).closed.wait()
        await runtime.accept()


async def test_refused_registration_is_tried_again(runtime: RuntimeEnd, plugin: None, config: Config) -> None:
    first = await runtime.accept()
    first.answer(await first.requests.get(), Response(code=3, message="invalid plugin index"))

    await first.closed.wait()
    await runtime.accept()

    assert 'vgpu_nri_closes_total{reason="registration_refused"} 1.0' in await nri_bench.page(config, "/metrics")


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
