"""Holding a call while its refusal may still go away by itself: kubelet asks again only a minute or more after an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from vgpu_daemon import backoff
from vgpu_state.errors import VgpuError

_T = TypeVar("_T")
_FIRST_S = 0.25
_LONGEST_S = 2.0  # what ends the wait is mostly seconds away


async def held(act: Callable[[], Awaitable[_T]], *, over: tuple[type[VgpuError], ...], for_s: float) -> _T:
    """What `act` answers, tried again over refusals of these classes; the last of them where a further try would be too late.

    `for_s`: seconds from now within which the last try begins.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + for_s
    delays = backoff.delays_s(first_s=_FIRST_S, longest_s=_LONGEST_S)
    while True:
        try:
            return await act()
        except over:
            delay = next(delays)
            if loop.time() + delay > deadline:
                raise
        await asyncio.sleep(delay)
