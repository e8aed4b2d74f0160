"""A lock that is held for the life of the process, so that two instances never do one job."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from vgpu_daemon.run import StartFailed

_RETRY_S = 0.1


async def hold_for_life(path: Path, *, on_wait: Callable[[], None]) -> int:
    """Takes an exclusive flock on `path` (made if missing, mode 0600) and returns its descriptor, which must stay open.

    While another process holds it, calls `on_wait` once and tries again ten times a second: a predecessor that was killed gives
    its lock up with its life.

    Raises:
        StartFailed: the file cannot be made or opened.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise StartFailed(f"cannot open lock {path}: {exc.strerror}") from exc
    try:
        await _lock(fd, on_wait)
    except BaseException:
        os.close(fd)
        raise
    return fd


async def hold_unless_stopped(path: Path, stop: asyncio.Event, *, on_wait: Callable[[], None]) -> int | None:
    """As `hold_for_life`, but gives the waiting up with None once `stop` is set.

    Raises:
        StartFailed: the file cannot be made or opened; within a group.
    """
    async with asyncio.TaskGroup() as racing:
        taking = racing.create_task(hold_for_life(path, on_wait=on_wait), name="lock")
        stopping = racing.create_task(stop.wait(), name="stop")
        await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        taking.cancel()  # without effect on a lock that is held by now
    return None if taking.cancelled() else taking.result()


async def _lock(fd: int, on_wait: Callable[[], None]) -> None:
    has_waited = False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not has_waited:
                has_waited = True
                on_wait()
            await asyncio.sleep(_RETRY_S)
        else:
            return
