"""What kubelet, the runtime and registry repeat is answered the same and writes nothing."""

from __future__ import annotations

from vgpu_testkit import trees
from vgpu_testkit.dra_bench import Container, DraBench, half_a_gpu
from vgpu_testkit.dra_calls import STOPPED

CLAIM = half_a_gpu()
CONTAINER = Container()


async def test_repeated_prepare_writes_nothing(bench: DraBench) -> None:
    CLAIM.write(bench.claims)
    await bench.start()
    devices = await bench.prepare(CLAIM)
    before = trees.stamps(*bench.roots)

    repeated = [await bench.prepare(CLAIM) for _ in range(5)]

    assert repeated == [devices] * 5
    assert trees.stamps(*bench.roots) == before


async def test_repeated_ensure_writes_nothing(bench: DraBench) -> None:
    CLAIM.write(bench.claims)
    await bench.start()
    await bench.prepare(CLAIM)
    answer = await bench.ensure(CLAIM, CONTAINER)
    before = trees.stamps(*bench.roots)

    repeated = [await bench.ensure(CLAIM, CONTAINER, session=session) for session in (2, 2, 3, 4)]

    assert repeated == [answer] * 4
    assert trees.stamps(*bench.roots) == before


async def test_repeated_start_pids_and_stop_write_nothing(bench: DraBench) -> None:
    CLAIM.write(bench.claims)
    await bench.start()
    await bench.prepare(CLAIM)
    await bench.ensure(CLAIM, CONTAINER)
    bench.run(CONTAINER)
    await bench.record_start(CONTAINER)
    assert await bench.record_pids(CLAIM, CONTAINER, 7, CONTAINER.pid) is True
    recorded = trees.stamps(*bench.roots)

    assert await bench.record_pids(CLAIM, CONTAINER, CONTAINER.pid, 7) is False
    await bench.ensure(CLAIM, CONTAINER)

    assert trees.stamps(*bench.roots) == recorded
    bench.end(CONTAINER)
    await bench.calls.release(CONTAINER.runtime_id, STOPPED)
    stopped = trees.stamps(*bench.roots)
    await bench.calls.release(CONTAINER.runtime_id, STOPPED)
    assert trees.stamps(*bench.roots) == stopped


async def test_restart_of_kubelet_and_of_dra_plugin_write_nothing(bench: DraBench) -> None:
    CLAIM.write(bench.claims)
    await bench.start()
    devices = await bench.prepare(CLAIM)
    await bench.ensure(CLAIM, CONTAINER)
    before = trees.stamps(*bench.roots)

    assert bench.kubelet is not None
    await bench.kubelet.restart()
    await bench.serving()
    assert await bench.prepare(CLAIM) == devices
    bench.dra.stop()
    await bench.start()
    assert await bench.prepare(CLAIM) == devices
    await bench.ensure(CLAIM, CONTAINER)

    assert trees.stamps(*bench.roots) == before


async def test_repeated_unprepare_and_that_of_an_unknown_claim_succeed_and_write_nothing(bench: DraBench) -> None:
    CLAIM.write(bench.claims)
    await bench.start()
    await bench.prepare(CLAIM)
    await bench.unprepare(CLAIM)
    await bench.until_trash_is_empty()
    before = trees.stamps(*bench.roots)

    await bench.unprepare(CLAIM)
    await bench.unprepare(half_a_gpu("never", uid="99999999-0f8a-4f57-9d0e-6a6d1b2c7e10"))

    assert trees.stamps(*bench.roots) == before
