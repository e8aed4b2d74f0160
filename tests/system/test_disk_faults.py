"""A disk that refuses: the operation fails naming path and errno, nothing half stays, others go on, and it works when it may."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_testkit import trees
from vgpu_testkit.crash_control import CrashControl
from vgpu_testkit.dra_bench import DraBench, half_a_gpu
from vgpu_testkit.dra_calls import REMOVED, STOPPED
from vgpu_testkit.dra_eager_operations import EAGER_OPERATIONS
from vgpu_testkit.dra_operations import CLAIM, OPERATIONS, TRAIN, Operation, Scene
from vgpu_testkit.kubelet_values import KubeletRefusal
from vgpu_testkit.manifests import Consumer, PodManifest

NEIGHBOUR = PodManifest(name="neighbour", containers=(Consumer(uses={"bystander": ()}),))
BYSTANDER = replace(
    half_a_gpu("bystander", device="vgpu-7", uid="77777777-0f8a-4f57-9d0e-6a6d1b2c7e10"), reserved_for=(NEIGHBOUR,)
)
LEAVES_NO_TRACE = (
    "prepare",
    "ensure",
    "record pids",
    "release stopped",
    "prepare without NRI",
    "ensure on what was made at Prepare",
    "record pids of one that has registered",
    "release stopped, directory made at Prepare",
    "ensure with two claims",
)

PREPARES = ("prepare", "prepare without NRI", "restore a directory made at Prepare")

Fault = Callable[[CrashControl, int], None]


def disk_stays_full(control: CrashControl, number: int) -> None:
    control.fail_from(number, errno.ENOSPC)


def one_call_is_an_io_error(control: CrashControl, number: int) -> None:
    control.fail(number, errno.EIO)


@pytest.mark.parametrize("fault", [disk_stays_full, one_call_is_an_io_error], ids=lambda f: f.__name__)
@pytest.mark.parametrize("operation", [*OPERATIONS, *EAGER_OPERATIONS], ids=lambda o: o.name)
async def test_call_that_the_disk_refuses_fails_its_operation_alone(
    bench: DraBench, control: CrashControl, operation: Operation[Scene], fault: Fault
) -> None:
    for manifest in (BYSTANDER, NEIGHBOUR):
        manifest.write(bench.claims)
    scene = operation.scene(bench)
    await bench.start()
    bystander = await bench.prepare(BYSTANDER)
    await operation.arrange(scene)
    control.count()
    await operation.act(scene)
    await bench.until_trash_is_empty()
    calls = control.disarm()
    clean = bench.picture()

    for number, call in enumerate(calls, start=1):
        where = f"{operation.name}, call {number} of {len(calls)}: {call.name} {call.path}"
        await operation.arrange(scene)
        before = bench.picture()
        fault(control, number)
        refusal = await _refusal(operation, scene)
        assert trees.halves(*bench.roots) == [], where
        assert await bench.prepare(BYSTANDER) == bystander, where
        if operation.name in PREPARES and fault is disk_stays_full:
            await bench.until_trash_is_empty()  # the disk needs the room now
        control.disarm()
        await _empty_trash(bench)
        if refusal is not None:
            assert ("ENOSPC" if fault is disk_stays_full else "EIO") in refusal, where
            assert str(bench.node.root) in refusal, where
            if operation.name in LEAVES_NO_TRACE:
                assert bench.picture() == before, where
        await (operation.retry or operation.act)(scene)
        await _empty_trash(bench)
        assert bench.picture() == clean, where
    assert bench.dra.process is not None
    assert bench.dra.process.poll() is None


async def test_read_only_disk_refuses_every_change_and_what_is_there_goes_on(bench: DraBench, control: CrashControl) -> None:
    for manifest in (CLAIM, BYSTANDER):
        manifest.write(bench.claims)
    await bench.start()
    devices = await bench.prepare(BYSTANDER)
    await bench.ensure(BYSTANDER, TRAIN)
    bench.run(TRAIN)
    await bench.record_start(TRAIN)
    before = trees.stamps(*bench.roots)
    control.fail_all(errno.EROFS)

    with pytest.raises(KubeletRefusal, match=rf"{bench.claim_dir(CLAIM)}: EROFS \(Read-only file system\)"):
        await bench.prepare(CLAIM)
    with pytest.raises(GRPCError, match=r"pids.config: EROFS \(Read-only file system\)"):
        await bench.record_pids(BYSTANDER, TRAIN, 7)
    with pytest.raises(GRPCError, match=r"binding.json: EROFS \(Read-only file system\)"):
        await bench.calls.release(TRAIN.runtime_id, STOPPED)
    bench.end(TRAIN)
    with pytest.raises(KubeletRefusal, match=rf"{bench.cdi_file(BYSTANDER)}: EROFS \(Read-only file system\)"):
        await bench.unprepare(BYSTANDER)
    assert await bench.prepare(BYSTANDER) == devices

    assert trees.stamps(*bench.roots) == before
    control.disarm()
    await bench.prepare(CLAIM)
    await bench.unprepare(CLAIM, BYSTANDER)


async def _refusal(operation: Operation[Scene], scene: Scene) -> str | None:
    """What the operation was refused with; None when it was not, which deleting what is in the trash cannot cause."""
    try:
        await operation.act(scene)
    except KubeletRefusal as exc:
        return exc.reason
    except GRPCError as exc:
        return exc.message or "" if exc.status is Status.INTERNAL else f"{exc.status}: {exc.message}"
    return None


async def _empty_trash(bench: DraBench) -> None:
    """What a fault left in the trash goes with the next removal."""
    await bench.calls.release("f" * 64, REMOVED)
    await bench.until_trash_is_empty()
