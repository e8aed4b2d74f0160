"""A small supervisor: starts the three services and restarts each alone when it ends, as kubelet does in a pod."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from vgpu_testkit.daemons import Daemon, Stack

_LOOK_S = 0.05


class Supervisor:
    """Keeps the daemons of a stack running until the context ends; counts the restarts of each."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.restarts = {d.name: 0 for d in stack.daemons}
        self._kept_away: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Supervisor:
        for daemon in self._stack.daemons:
            daemon.start()
        self._task = asyncio.create_task(self._watch(), name="supervisor")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await asyncio.to_thread(self._stack.stop)

    def keep_away(self, daemon: Daemon) -> None:
        """It is killed and not started again until `let_return`."""
        self._kept_away.add(daemon.name)
        daemon.kill()

    def let_return(self, daemon: Daemon) -> None:
        self._kept_away.discard(daemon.name)

    async def _watch(self) -> None:
        while True:
            for daemon in self._stack.daemons:
                is_wanted = daemon.name not in self._kept_away
                if is_wanted and daemon.process is not None and daemon.process.poll() is not None:
                    self._restart(daemon)
            await asyncio.sleep(_LOOK_S)

    def _restart(self, daemon: Daemon) -> None:
        self.restarts[daemon.name] += 1
        daemon.start()
