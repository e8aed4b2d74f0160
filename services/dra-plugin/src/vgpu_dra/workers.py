"""Worker threads for the claims/ tree: bounded, and an operation that has begun always runs to its end."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

_log = structlog.get_logger()
_T = TypeVar("_T")

# Each of them that computes competes with the event loop for the interpreter: with eight, GetInfo takes twice as long while many
# claims are prepared. Fewer wait for a slow disk: at 10 ms a write, 32 Prepares take 0.6 s on four threads, 0.9 s on three.
THREADS = 4


class TreeWorkers:
    """Runs blocking operations beside the event loop."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="tree")

    async def run(self, work: Callable[[], _T]) -> _T:
        """`work`'s result. A caller that is cancelled stops waiting; the work goes on, and bears repetition."""
        context = contextvars.copy_context()
        return await asyncio.wrap_future(self._executor.submit(context.run, work))


class Errand:
    """One piece of work, done on a thread of its own: nobody waits for it, and it keeps no worker from a container's start."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        self._name = name
        self._work = work
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._guard = threading.Lock()
        self._is_asked = False

    def ask(self) -> None:
        """Has the work begin once more from now on; asking again before it has begun is the same asking."""
        with self._guard:
            if self._is_asked:
                return
            self._is_asked = True
        self._executor.submit(self._run)

    def _run(self) -> None:
        with self._guard:
            self._is_asked = False
        try:
            self._work()
        except Exception:  # noqa: BLE001 - the root of a thread: nobody else would hear of it
            _log.exception("errand failed", errand=self._name)
