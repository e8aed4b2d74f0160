"""Says once when nri-plugin's session with the runtime has been away for too long: what was prepared with it does not start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from vgpu_dra.event_documents import Reason
from vgpu_dra.recorder import Recorder

_log = structlog.get_logger()

AWAY_S = 120.0  # as long as nri-plugin itself gives it before it is not live
_LOOK_S = 10.0


class SessionWatch:
    """Looks at when the session was renewed last, in seconds of `clock`."""

    def __init__(self, renewed_at: Callable[[], float], recorder: Recorder, *, clock: Callable[[], float]) -> None:
        self._renewed_at = renewed_at
        self._recorder = recorder
        self._clock = clock
        self._began_at = clock()
        self._told_of: float | None = None

    async def serve(self, *, every_s: float = _LOOK_S) -> None:
        """Looks, until cancelled. An absence from before, while it was not served, does not count."""
        self._began_at = self._clock()
        while True:
            self.look()
            await asyncio.sleep(every_s)

    def look(self) -> None:
        """Tells of an absence that has become too long, once."""
        renewed = max(self._renewed_at(), self._began_at)
        if self._clock() - renewed < AWAY_S or self._told_of == renewed:
            return
        self._told_of = renewed
        note = (
            f"nri-plugin has had no session with the container runtime for {AWAY_S:g} s: containers of claims that were prepared "
            "with it do not start until it is back, new claims are prepared without it"
        )
        _log.error("nri session away", reason=note)
        self._recorder.node(Reason.NRI_AWAY, f"{note}; look at /readyz of nri-plugin and at NRI in the runtime's configuration")
