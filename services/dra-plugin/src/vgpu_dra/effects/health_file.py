"""The file health.json in the manager directory. Nobody but this process reads it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from vgpu_dra import health_record
from vgpu_dra.effects import durable
from vgpu_dra.policy.health import NodeHealth
from vgpu_state.layout import Layout


class HealthFile:
    """Kept over restarts and power cuts."""

    def __init__(self, agent: Layout) -> None:
        self._path = Path(agent.health)
        self._writing = threading.Lock()

    def load(self) -> NodeHealth | None:
        """What was saved last, None if nothing was.

        Raises:
            StorageFailed: the disk refused.
            HealthUnusable: what is there cannot be read.
        """
        with durable.storage("read", self._path):
            try:
                with self._path.open("rb") as file:
                    raw = file.read(health_record.MAX_BYTES + 1)
            except FileNotFoundError:
                return None
        if len(raw) > health_record.MAX_BYTES:
            raise health_record.HealthUnusable(f"{self._path} has more than {health_record.MAX_BYTES} bytes")
        return health_record.decode_health(raw)

    def save(self, current: Callable[[], NodeHealth]) -> NodeHealth:
        """Saves what `current` says when its turn comes, so that a save which was delayed undoes no later one.

        Raises:
            StorageFailed: the disk refused; the file is as it was.
        """
        with self._writing:
            node = current()
            durable.replace_file(self._path, health_record.encode_health(node), mode=0o600)
            return node
