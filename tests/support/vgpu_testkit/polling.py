"""The wait for what nothing tells of: it is asked for, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

_POLL_S = 0.01


async def until(condition: Callable[[], Awaitable[Any]], *, timeout_s: float = 20.0) -> None:
    """Returns once the awaited `condition` holds.

    Raises:
        TimeoutError: it did not within `timeout_s`.
    """
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(_POLL_S)
