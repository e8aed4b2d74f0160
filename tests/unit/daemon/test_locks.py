"""A lock for life: the second instance gets it when the first one is dead."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu_daemon import locks
from vgpu_daemon.run import StartFailed

HOLDER = """
import asyncio, sys, time
from pathlib import Path
from vgpu_daemon import locks
asyncio.run(locks.hold_for_life(Path(sys.argv[1]), on_wait=lambda: None))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


async def test_free_lock_is_taken_at_once(tmp_path: Path) -> None:
    waited: list[str] = []

    fd = await locks.hold_for_life(tmp_path / "lock", on_wait=lambda: waited.append("waits"))

    assert waited == []
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
    os.close(fd)


async def test_second_process_waits_until_the_first_is_killed(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    waits = asyncio.Event()
    told: list[str] = []

    def note() -> None:
        told.append("waits")
        waits.set()

    async with asyncio.timeout(20):
        taking = asyncio.create_task(locks.hold_for_life(tmp_path / "lock", on_wait=note))
        await waits.wait()
        assert not taking.done()
        holder.kill()
        fd = await taking

    assert told == ["waits"]
    os.close(fd)


@pytest.mark.usefixtures("holder")
async def test_who_stops_waiting_leaves_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    waits = asyncio.Event()
    taking = asyncio.create_task(locks.hold_for_life(tmp_path / "lock", on_wait=waits.set))
    await waits.wait()

    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking

    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("holder")
async def test_who_is_told_to_stop_gives_the_waiting_up(tmp_path: Path) -> None:
    stop, waits = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        taking = tasks.create_task(locks.hold_unless_stopped(tmp_path / "lock", stop, on_wait=waits.set))
        await waits.wait()
        stop.set()

    assert taking.result() is None


async def test_free_lock_is_taken_by_who_was_told_to_stop_too_late(tmp_path: Path) -> None:
    fd = await locks.hold_unless_stopped(tmp_path / "lock", asyncio.Event(), on_wait=lambda: None)

    assert fd is not None
    os.close(fd)


async def test_lock_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StartFailed) as refusal:
        await locks.hold_for_life(tmp_path / "none/lock", on_wait=lambda: None)

    assert str(refusal.value) == f"cannot open lock {tmp_path}/none/lock: No such file or directory"


async def test_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(StartFailed, match="Too many levels of symbolic links"):
        await locks.hold_for_life(tmp_path / "lock", on_wait=lambda: None)
    assert not (tmp_path / "elsewhere").exists()
