"""The inventory as the rest of the process sees it: cached, refreshed by one thread that may hang without harm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import structlog

from vgpu_dra.inventory import Inventory
from vgpu_dra.readings import Look
from vgpu_state.errors import NotReady
from vgpu_state.ids import GpuUuid

_log = structlog.get_logger()

REFRESH_S = 10.0


class GpusUnknown(NotReady):
    """Raised until NVML has answered once: seconds after the start of a node that is well."""


class Watcher(Protocol):
    """Who is told how each look ended."""

    def looked(self, look: Look) -> None:
        """The GPUs answered, those that have a reading."""

    def unreachable(self, reason: str) -> None:
        """There is no driver, or no GPU answers."""

    def unanswered(self) -> None:
        """The look still goes on."""


class Gpus:
    """The last inventory that could be read. `look` may block for ever; it is never called twice at a time."""

    def __init__(self, look: Callable[[], Look], *, on_change: Callable[[], None], watcher: Watcher) -> None:
        self._look = look
        self._on_change = on_change
        self._watcher = watcher
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="nvml")
        self._pending: Future[Look] | None = None
        self._inventory: Inventory | None = None
        self._is_wanted = asyncio.Event()
        self.fault: str | None = "the GPU inventory has not been read yet"

    def inventory(self) -> Inventory:
        """The cached inventory, also while NVML hangs. A GPU that was there once stays in it, as lost.

        Raises:
            GpusUnknown: it was never read; says why.
        """
        if self._inventory is None:
            raise GpusUnknown(f"the GPUs of this node are not known: {self.fault}")
        return self._inventory

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Why GPUs are left out of the inventory. No fault of ours: the others serve."""
        return () if self._inventory is None else self._inventory.unreadable

    @property
    def lost(self) -> tuple[GpuUuid, ...]:
        """The GPUs of the inventory that cannot be reached, in NVML's order."""
        return () if self._inventory is None else tuple(g.uuid for g in self._inventory.gpus if g.uuid in self._inventory.lost)

    def look_soon(self) -> None:
        """Has `serve` look at once, whatever it waits for. To be called on the event loop."""
        self._is_wanted.set()

    async def refresh(self, *, patience_s: float) -> None:
        """Reads anew, or goes on waiting for the reading under way, for `patience_s` seconds."""
        if self._pending is None or self._pending.cancelled():  # a caller went away before the thread had begun
            self._pending = self._executor.submit(self._look)
        waiting = asyncio.wrap_future(self._pending)
        try:
            # Not wait_for(): on Python 3.11 it swallows a cancellation that meets the answer, and this task would never end.
            done, _ = await asyncio.wait((waiting,), timeout=patience_s)
        finally:
            if not waiting.done():
                waiting.cancel()
        if not done:
            self._note(f"NVML has not answered for more than {patience_s:g} s")
            self._watcher.unanswered()
            return
        self._pending = None
        try:
            look = waiting.result()
        except (NotReady, OSError) as exc:  # an I/O error of the driver root is no reason to end
            self._note(str(exc))
            if self._inventory is not None:
                self._become(self._inventory.all_lost())
            self._watcher.unreachable(str(exc))
            return
        self.fault = None
        found = look.inventory
        self._become(found if self._inventory is None else found.keeping(self._inventory))
        self._watcher.looked(look)

    async def serve(self, *, every_s: float = REFRESH_S) -> None:
        """Refreshes every so often, and when `look_soon` was called, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(every_s):
                    await self._is_wanted.wait()
            except TimeoutError:
                pass
            self._is_wanted.clear()
            await self.refresh(patience_s=REFRESH_S)

    def _become(self, inventory: Inventory) -> None:
        if inventory == self._inventory:
            return
        self._inventory = inventory
        _log.info("GPU inventory", gpus=len(inventory.gpus), lost=self.lost, driver_version=inventory.driver_version)
        for reason in inventory.unreadable:
            _log.error("GPU not readable", reason=reason)
        self._on_change()

    def _note(self, fault: str) -> None:
        if fault != self.fault:
            _log.warning("GPU inventory not refreshed", reason=fault, is_cached=self._inventory is not None)
        self.fault = fault
