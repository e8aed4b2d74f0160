"""Worker threads for the claims/ tree: bounded, and an operation that has begun always runs to its end."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")

THREADS = 8  # more than the disk does at once; an operation waits for another of its own claim only


class TreeWorkers:
    """Runs blocking operations beside the event loop."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="tree")

    async def run(self, work: Callable[[], _T]) -> _T:
        """`work`'s result. A caller that is cancelled stops waiting; the work goes on, and bears repetition."""
        context = contextvars.copy_context()
        return await asyncio.wrap_future(self._executor.submit(context.run, work))

    def post(self, work: Callable[[], object]) -> None:
        """Has `work` done some time; it reports its own faults."""
        self._executor.submit(work)
