"""The inventory as the rest of the process sees it: cached, refreshed by one thread that may hang without harm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import structlog

from vgpu_dra.inventory import Inventory
from vgpu_state.errors import NotReady

_log = structlog.get_logger()

REFRESH_S = 10.0


class Gpus:
    """The last inventory that could be read. `read` may block for ever; it is never called twice at a time."""

    def __init__(self, read: Callable[[], Inventory], *, on_change: Callable[[], None]) -> None:
        self._read = read
        self._on_change = on_change
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="nvml")
        self._pending: Future[Inventory] | None = None
        self._inventory: Inventory | None = None
        self.fault: str | None = "the GPU inventory has not been read yet"

    def inventory(self) -> Inventory:
        """The cached inventory, also while NVML hangs.

        Raises:
            NotReady: it was never read; says why.
        """
        if self._inventory is None:
            raise NotReady(f"the GPUs of this node are not known: {self.fault}")
        return self._inventory

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Why GPUs are left out of the inventory. No fault of ours: the others serve."""
        return () if self._inventory is None else self._inventory.unreadable

    async def refresh(self, *, patience_s: float) -> None:
        """Reads anew, or goes on waiting for the reading under way, for `patience_s` seconds."""
        if self._pending is None:
            self._pending = self._executor.submit(self._read)
        waiting = asyncio.wrap_future(self._pending)
        try:
            # Not wait_for(): on Python 3.11 it swallows a cancellation that meets the answer, and this task would never end.
            done, _ = await asyncio.wait((waiting,), timeout=patience_s)
        finally:
            if not waiting.done():
                waiting.cancel()
        if not done:
            self._note(f"NVML has not answered for more than {patience_s:g} s")
            return
        self._pending = None
        try:
            found = waiting.result()
        except NotReady as exc:
            self._note(str(exc))
            return
        self.fault = None
        if found != self._inventory:
            self._inventory = found
            _log.info("GPU inventory", gpus=len(found.gpus), driver_version=found.driver_version)
            for reason in found.unreadable:
                _log.error("GPU left out", reason=reason)
            self._on_change()

    async def serve(self) -> None:
        """Refreshes every ten seconds, until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_S)
            await self.refresh(patience_s=REFRESH_S)

    def _note(self, fault: str) -> None:
        if fault != self.fault:
            _log.warning("GPU inventory not refreshed", reason=fault, is_cached=self._inventory is not None)
        self.fault = fault
