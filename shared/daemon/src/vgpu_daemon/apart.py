"""Awaiting a grpclib call without losing a cancellation.

grpclib ends a broken call by cancelling the task that runs it and turns every cancellation that it then finds into its own
error. One that came from outside at that moment would be lost: the task would go on, and whoever ends it would wait for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
_END_S = 1.0  # a call that is cancelled sends a reset and ends; one that does not is left behind


async def run_apart(call: Coroutine[Any, Any, _T], *, timeout_s: float | None = None) -> _T:
    """The call's result, from a task of its own; a caller that is cancelled always sees that it is.

    Raises:
        TimeoutError: the call did not end within `timeout_s` seconds.
    """
    task = asyncio.get_running_loop().create_task(call)
    task.add_done_callback(_take_notice)
    try:
        done, _ = await asyncio.wait((task,), timeout=timeout_s)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=_END_S)
    if not done:
        raise TimeoutError(f"no end within {timeout_s} s")
    return task.result()


def _take_notice(task: asyncio.Task[Any]) -> None:
    """The error of a call that nobody waits for any more is nobody's."""
    if not task.cancelled():
        task.exception()
