"""Whether nri-plugin is there: connected to the runtime, synchronized with us, and heard of a moment ago."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

_log = structlog.get_logger()

LEASE_S = 5.0  # nri-plugin renews every two seconds: one renewal may be lost


class NriLease:
    """Renewed by each sign of life of the synchronized session. For the event loop; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._session = 0
        self._renewed_at_s = clock()
        self._renewed = asyncio.Event()

    def renew(self, session: int, *, is_synchronized: bool) -> None:
        """nri-plugin says that `session` lives. One that is not synchronized with us counts for nothing."""
        if not is_synchronized:
            return
        if session != self._session:
            _log.info("nri session lives", session=session)
        self._session = session
        self._renewed_at_s = self._clock()
        self._renewed.set()
        self._renewed = asyncio.Event()

    @property
    def renewed_at_s(self) -> float:
        """When it was renewed last; when it was made, if it never was."""
        return self._renewed_at_s

    @property
    def has_ever_lived(self) -> bool:
        return self._session != 0

    def is_alive(self) -> bool:
        return self.has_ever_lived and self._clock() - self._renewed_at_s < LEASE_S

    async def wait_alive(self, for_s: float) -> bool:
        """Whether it is alive, at once or within `for_s` seconds."""
        try:
            async with asyncio.timeout(for_s):
                while not self.is_alive():
                    await self._renewed.wait()
        except TimeoutError:
            return self.is_alive()
        return True
