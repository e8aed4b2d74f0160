"""Which partition a runtime id holds: an index over the bindings of the claims/ tree, never trusted without a look at the file.

Owns all reading of the tree, in one thread of its own, so that a slow disk stalls registrations and nothing else. A hit reads
its binding again; a miss looks for what changed in the tree since the last.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from vgpu_registry.bindings_tree import BindingsTree
from vgpu_registry.policy import Holding, PartitionRef
from vgpu_state import pids as pid_list
from vgpu_state.errors import NotReady, StorageFailed
from vgpu_state.ids import RuntimeId
from vgpu_state.layout import Layout
from vgpu_state.reader import read_file

_T = TypeVar("_T")
_MAX_LIST_BYTES = 64 << 10
_PER_JOB = 64


class Index:
    """Bindings by runtime id. Its methods may be called from the event loop only."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        # One worker owns the tree; the loop only reads its `partition_by_id`.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="claims")
        self._tree = BindingsTree(layout)
        self._scan_began_ns = 0
        self.is_built = False

    @property
    def partition_by_id(self) -> Mapping[RuntimeId, PartitionRef]:
        """As the last scan found it."""
        return self._tree.partition_by_id

    async def build(self) -> None:
        """The first scan; until it is done `find` has no answer.

        Raises:
            StorageFailed: the tree cannot be listed.
        """
        await self._in_thread(self._scan)
        self.is_built = True

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def find(self, runtime_id: RuntimeId) -> Holding | None:
        """The partition that `runtime_id` holds by its binding as it is on disk now.

        Raises:
            NotReady: the index is being built.
            StorageFailed: the tree cannot be read.
        """
        if not self.is_built:
            raise NotReady("the index of containers is being built")
        return await self._in_thread(functools.partial(self._find, runtime_id, asked_ns=time.monotonic_ns()))

    async def find_in(self, partition: PartitionRef, runtime_id: RuntimeId) -> Holding | None:
        """The partition, if `runtime_id` holds it by its binding as it is on disk now: no look at the rest of the tree."""
        return await self._in_thread(functools.partial(self._held, partition, runtime_id))

    async def holdings(self) -> tuple[Holding, ...]:
        """Every partition with its binding as it is on disk now.

        Raises:
            StorageFailed: the tree cannot be listed.
        """
        await self._in_thread(self._scan)
        known = list(self.partition_by_id)
        found: list[Holding] = []
        for first in range(0, len(known), _PER_JOB):  # in parts, so that a registration never waits for a whole node's files
            some = known[first : first + _PER_JOB]
            found += await self._in_thread(functools.partial(self._look_up_all, some))
        return tuple(found)

    async def recorded_pids(self, partition: PartitionRef) -> tuple[int, ...]:
        """What pids.config holds; () when it cannot be read."""
        return await self._in_thread(functools.partial(self._recorded_pids, partition))

    async def _in_thread(self, look: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, look)

    def _find(self, runtime_id: RuntimeId, *, asked_ns: int) -> Holding | None:
        holding = self._look_up(runtime_id)
        if holding is None and self._scan_began_ns < asked_ns:  # else a scan for somebody else has just been made
            self._scan()
            holding = self._look_up(runtime_id)
        return holding

    def _look_up_all(self, runtime_ids: Sequence[RuntimeId]) -> list[Holding]:
        return [holding for runtime_id in runtime_ids if (holding := self._look_up(runtime_id)) is not None]

    def _recorded_pids(self, partition: PartitionRef) -> tuple[int, ...]:
        try:
            raw = read_file(self._layout.pids(partition.claim_uid, partition.name), limit=_MAX_LIST_BYTES)
        except StorageFailed:
            return ()
        return pid_list.decode_pids(raw or b"")

    def _look_up(self, runtime_id: RuntimeId) -> Holding | None:
        partition = self.partition_by_id.get(runtime_id)
        return None if partition is None else self._held(partition, runtime_id)

    def _held(self, partition: PartitionRef, runtime_id: RuntimeId) -> Holding | None:
        holding = self._tree.read(partition)
        return holding if holding is not None and holding.binding.runtime_id == runtime_id else None

    def _scan(self) -> None:
        self._scan_began_ns = time.monotonic_ns()
        self._tree.scan()
