"""Which containers are ours, as far as this process knows, and which releases dra-plugin has not heard of. Memory only.

It outlives sessions and decides nothing about partitions: dra-plugin's bindings are the truth. It exists because the runtime
leaves the env out of some events, and because a release is said once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from vgpu_nri.containers import Stage, VgpuContainer

# A node runs a few hundred containers; a dra-plugin that is away for hours must not fill the memory.
MAX_KEPT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A live vGPU container. `partition` is "" where it was learnt from Synchronize or a start."""

    container: VgpuContainer
    session_id: int
    partition: str = ""


class Ledger:
    """The live set, the ids that are ours although not live, and the undelivered releases, in order."""

    def __init__(self) -> None:
        self._live: dict[str, Holding] = {}
        self._leaving: dict[str, None] = {}
        self._undelivered: dict[str, Stage] = {}

    @property
    def live(self) -> Mapping[str, Holding]:
        return MappingProxyType(self._live)

    @property
    def undelivered(self) -> Mapping[str, Stage]:
        return MappingProxyType(self._undelivered)

    def is_ours(self, runtime_id: str) -> bool:
        return runtime_id in self._live or runtime_id in self._leaving

    def expect(self, runtime_id: str) -> None:
        """A partition is about to be asked for: whatever comes of it, the runtime's undo must be passed on."""
        if runtime_id not in self._live:
            self._leaving[runtime_id] = None
            _bound(self._leaving)

    def hold(self, container: VgpuContainer, *, session_id: int, partition: str = "") -> None:
        """The container is live; what is known of it replaces what was."""
        known = self._live.get(container.runtime_id)
        self._leaving.pop(container.runtime_id, None)
        self._live[container.runtime_id] = Holding(
            container=container, session_id=session_id, partition=partition or (known.partition if known else "")
        )

    def release(self, runtime_id: str, stage: Stage) -> None:
        """The container stopped or was removed. It stays ours until it is removed."""
        self._live.pop(runtime_id, None)
        if stage is Stage.STOPPED:
            self._leaving[runtime_id] = None
            _bound(self._leaving)
        else:
            self._leaving.pop(runtime_id, None)

    def keep_release(self, runtime_id: str, stage: Stage) -> None:
        """dra-plugin may not have heard of this stage, and must."""
        if self._undelivered.get(runtime_id) is not Stage.REMOVED:
            self._undelivered[runtime_id] = stage
            _bound(self._undelivered)

    def delivered(self, runtime_id: str, stage: Stage) -> None:
        """dra-plugin has heard of this stage, which includes the one before. A later one stays to be delivered."""
        if stage is Stage.REMOVED or self._undelivered.get(runtime_id) is stage:
            self._undelivered.pop(runtime_id, None)

    def synchronize(self, containers: Iterable[VgpuContainer], *, session_id: int) -> None:
        """The runtime's list replaces the live set, but for containers of this session.

        NRI 0.6 leaves out a container whose CreateContainer was answered while it made the list.
        """
        own = {runtime_id: held for runtime_id, held in self._live.items() if held.session_id == session_id}
        listed = {
            container.runtime_id: Holding(
                container=container,
                session_id=session_id,
                partition=self._live[container.runtime_id].partition if container.runtime_id in self._live else "",
            )
            for container in containers
        }
        self._live = {**listed, **own}


def _bound(kept: dict[str, Any]) -> None:
    while len(kept) > MAX_KEPT:
        del kept[next(iter(kept))]
