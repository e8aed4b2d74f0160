"""Which runtime id holds which partition, by the bindings on disk; reads again only what has changed since it was read.

Owns what is remembered of the tree. Blocks, and is used by one thread at a time. Three levels of directories show a change by
their mtime: claims/ when a claim comes or goes, a claim when a partition does, a partition when its binding.json is replaced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Generic, TypeVar

import structlog

from vgpu_registry.policy import Holding, PartitionRef
from vgpu_state.bindings import BindingUnusable
from vgpu_state.errors import StorageFailed
from vgpu_state.ids import ClaimUid, PartitionName, RuntimeId
from vgpu_state.layout import Layout
from vgpu_state.reader import ClaimsReader, Stamp, directory_stamp

_log = structlog.get_logger()
_T = TypeVar("_T")
# File systems stamp a directory with a clock that may stand still for some milliseconds: a change right after a look can leave
# the same mtime. A directory is believed unchanged only when its stamp was this old before it was read.
_SETTLED_NS = 1_000_000_000


class BindingsTree:
    """The bindings below one manager directory. `clock` is the one that file systems stamp with, in ns.

    `partition_by_id` is replaced whole: another thread may read it meanwhile.
    """

    def __init__(self, layout: Layout, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._layout = layout
        self._clock = clock
        self._reader = ClaimsReader(layout)
        self._uids = _Remembered(layout.claims, read=self._reader.claim_uids, clock=clock)
        self._claims: dict[ClaimUid, _Claim] = {}
        self._unusable: dict[ClaimUid | PartitionRef, str] = {}
        self.partition_by_id: Mapping[RuntimeId, PartitionRef] = {}

    def scan(self) -> None:
        """Brings `partition_by_id` up to date.

        Raises:
            StorageFailed: claims/ cannot be listed.
        """
        if has_changed := self._uids.refresh():
            self._claims = {uid: self._claims.get(uid) or self._claim(uid) for uid in self._uids.content or ()}
            self._unusable = {what: error for what, error in self._unusable.items() if _claim_of(what) in self._claims}
        for claim in self._claims.values():
            has_changed |= self._refresh_claim(claim)
        if has_changed:
            # Descending, so that the lowest claim wins where two name one container.
            claims = [claim for _, claim in sorted(self._claims.items(), reverse=True)]
            self.partition_by_id = {
                held.content: PartitionRef(claim.uid, name)
                for claim in claims
                for name, held in claim.holder_by_partition.items()
                if held.content is not None
            }

    def read(self, partition: PartitionRef) -> Holding | None:
        """The partition and its holder, by the file as it is now.

        None when nobody holds it, when its binding only refers to the partition in another claim, or when the file is unusable,
        which is logged once.
        """
        try:
            return self._read(partition)
        except StorageFailed as exc:
            self._report(partition, str(exc))
            return None

    def _claim(self, uid: ClaimUid) -> _Claim:
        return _Claim(uid, _Remembered(self._layout.claim(uid), read=lambda: self._reader.partitions(uid), clock=self._clock))

    def _refresh_claim(self, claim: _Claim) -> bool:
        try:
            has_changed = claim.names.refresh()
        except StorageFailed as exc:
            self._report(claim.uid, str(exc))
            claim.holder_by_partition = {}
            return True
        if has_changed:
            known = claim.holder_by_partition
            claim.holder_by_partition = {
                name: known.get(name) or self._holder(PartitionRef(claim.uid, name)) for name in claim.names.content or ()
            }
        for name, holder in claim.holder_by_partition.items():
            try:
                has_changed |= holder.refresh()
            except StorageFailed as exc:
                self._report(PartitionRef(claim.uid, name), str(exc))
                has_changed = True
        return has_changed

    def _holder(self, partition: PartitionRef) -> _Remembered[RuntimeId]:
        def read() -> RuntimeId | None:
            holding = self._read(partition)
            return None if holding is None else holding.binding.runtime_id

        return _Remembered(self._layout.partition(partition.claim_uid, partition.name), read=read, clock=self._clock)

    def _read(self, partition: PartitionRef) -> Holding | None:
        try:
            binding = self._reader.binding(partition.claim_uid, partition.name)
        except BindingUnusable as exc:
            self._report(partition, str(exc))
            return None
        self._unusable.pop(partition, None)
        return None if binding is None or binding.home is not None else Holding(partition=partition, binding=binding)

    def _report(self, what: ClaimUid | PartitionRef, error: str) -> None:
        if self._unusable.get(what) == error:
            return
        self._unusable[what] = error
        name = what.name if isinstance(what, PartitionRef) else None
        _log.warning("binding unusable", claim_uid=_claim_of(what), partition=name, error=error)


class _Remembered(Generic[_T]):
    """What was read of a directory, until the directory has changed. `content` is None where it could not be read."""

    def __init__(self, path: PurePosixPath, *, read: Callable[[], _T | None], clock: Callable[[], int]) -> None:
        self._path = os.fspath(path)  # built once: making a path costs more than asking the kernel for its stamp
        self._read = read
        self._clock = clock
        self._stamp: Stamp | None = None
        self._is_settled = False
        self.content: _T | None = None

    def refresh(self) -> bool:
        """Whether it was read again.

        Raises:
            StorageFailed: the kernel refused; the next refresh reads again.
        """
        is_settled, self._is_settled = self._is_settled, False
        stamp = directory_stamp(self._path)
        if is_settled and stamp == self._stamp:
            self._is_settled = True
            return False
        was_old = stamp is None or abs(self._clock() - stamp.changed_ns) > _SETTLED_NS
        self._stamp, self.content = stamp, None
        self.content = self._read()
        self._is_settled = was_old
        return True


class _Claim:
    """What is remembered of a claim: the names of its partitions, and who holds each."""

    def __init__(self, uid: ClaimUid, names: _Remembered[list[PartitionName]]) -> None:
        self.uid = uid
        self.names = names
        self.holder_by_partition: dict[PartitionName, _Remembered[RuntimeId]] = {}


def _claim_of(what: ClaimUid | PartitionRef) -> ClaimUid:
    return what.claim_uid if isinstance(what, PartitionRef) else what
