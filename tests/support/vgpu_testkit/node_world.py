"""The one node of a state machine's many examples, and the event loop that everything on this side of it runs in."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from vgpu_testkit.light_node import LightNode


class World:
    """The node that all examples share; a new one after an example that failed."""

    def __init__(self, native: Path) -> None:
        self._native = native
        self._runner = asyncio.Runner()
        self._node: LightNode | None = None
        self.tally: Counter[str] = Counter()
        self.has_failed = False
        self.steps_done = 0
        self.examples_done = 0

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    @property
    def node(self) -> LightNode:
        if self._node is None:
            self._node = self.run(LightNode(self._native).__aenter__())
        return self._node

    def report(self, history: str) -> None:
        """Prints how the first failure came about; Hypothesis shows only what it could make of it."""
        if not self.has_failed:
            logs = [f"== the last lines of {service.name}\n{service.log_tail()}" for service in self.node.services]
            print(f"== the steps that failed\n{history}", *logs, sep="\n")
        self.has_failed = True

    def discard(self) -> None:
        """The node is not to be used any more."""
        if self._node is not None:
            self.run(self._node.__aexit__(None, None, None))
            self._node = None

    def close(self) -> None:
        self.discard()
        self._runner.close()
