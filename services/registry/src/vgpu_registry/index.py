"""Which partition a runtime id holds: an index over the bindings of the claims/ tree, never trusted without a look at the file.

Owns all reading of the tree, in one thread of its own, so that a slow disk stalls registrations and nothing else. A hit reads
its binding again; a miss scans the claims whose directory changed since it was scanned.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import structlog

from vgpu_registry.policy import Holding, PartitionRef
from vgpu_state import pids as pid_list
from vgpu_state.bindings import BindingUnusable
from vgpu_state.errors import NotReady, StorageFailed
from vgpu_state.ids import ClaimUid, RuntimeId
from vgpu_state.layout import Layout
from vgpu_state.reader import ClaimsReader, read_file

_log = structlog.get_logger()
_T = TypeVar("_T")
# File systems stamp a directory with a clock that may stand still for some milliseconds: a change right after a scan can leave
# the same mtime. A directory is believed unchanged only when its stamp was this old as it was scanned.
_SETTLED_NS = 1_000_000_000
_MAX_LIST_BYTES = 64 << 10
_PER_JOB = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scanned:
    """A claim as a scan found it. Not settled: the next scan looks again, whatever the directory's mtime says."""

    changed_ns: int
    is_settled: bool
    partition_by_id: Mapping[RuntimeId, PartitionRef]


class Index:
    """Bindings by runtime id. Its methods may be called from the event loop only."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._reader = ClaimsReader(layout)
        # One worker owns the fields below; the loop only reads `partition_by_id`, which is replaced whole.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="claims")
        self._scanned: dict[ClaimUid, _Scanned] = {}
        self._scan_began_ns = 0
        self._unusable: dict[ClaimUid | PartitionRef, str] = {}
        self.partition_by_id: Mapping[RuntimeId, PartitionRef] = {}
        self.is_built = False

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
        holding = None if partition is None else self._read(partition)
        return holding if holding is not None and holding.binding.runtime_id == runtime_id else None

    def _scan(self) -> None:
        self._scan_began_ns = time.monotonic_ns()
        before, self._scanned = self._scanned, {}
        for uid in self._reader.claim_uids():
            changed_ns = self._reader.changed_at(uid)
            known = before.get(uid)
            is_known = known is not None and known.is_settled and known.changed_ns == changed_ns
            self._scanned[uid] = known if known is not None and is_known else self._scan_claim(uid, changed_ns)
        # Descending, so that the lowest claim wins where two name one container.
        claims = sorted(self._scanned.items(), reverse=True)
        self.partition_by_id = {rid: ref for _, scanned in claims for rid, ref in scanned.partition_by_id.items()}
        self._unusable = {what: error for what, error in self._unusable.items() if _claim_of(what) in self._scanned}

    def _scan_claim(self, uid: ClaimUid, changed_ns: int) -> _Scanned:
        is_settled = abs(time.time_ns() - changed_ns) > _SETTLED_NS
        partition_by_id = {}
        try:
            partitions = [PartitionRef(uid, name) for name in self._reader.partitions(uid)]
        except StorageFailed as exc:
            self._report(uid, str(exc))
            return _Scanned(changed_ns=changed_ns, is_settled=False, partition_by_id={})
        for partition in partitions:
            holding = self._read(partition)
            if holding is None:
                is_settled = False  # its binding comes by a rename inside the partition, which the claim's mtime does not show
            else:
                partition_by_id[holding.binding.runtime_id] = partition
        return _Scanned(changed_ns=changed_ns, is_settled=is_settled, partition_by_id=partition_by_id)

    def _read(self, partition: PartitionRef) -> Holding | None:
        """The partition's holder; None when there is none or when its file is unusable, which is logged once."""
        try:
            binding = self._reader.binding(partition.claim_uid, partition.name)
        except (BindingUnusable, StorageFailed) as exc:
            self._report(partition, str(exc))
            return None
        self._unusable.pop(partition, None)
        return None if binding is None else Holding(partition=partition, binding=binding)

    def _report(self, what: ClaimUid | PartitionRef, error: str) -> None:
        if self._unusable.get(what) == error:
            return
        self._unusable[what] = error
        name = what.name if isinstance(what, PartitionRef) else None
        _log.warning("binding unusable", claim_uid=_claim_of(what), partition=name, error=error)


def _claim_of(what: ClaimUid | PartitionRef) -> ClaimUid:
    return what.claim_uid if isinstance(what, PartitionRef) else what
