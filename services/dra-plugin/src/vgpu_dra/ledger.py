"""What this process knows of claims and partitions: the tree's content in memory, and one operation per claim at a time.

The disk is the truth at start; from then on this process is its only writer and the ledger follows each write. Used by worker
threads; holds no file and no socket.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from vgpu_state.claims import Binding, ClaimRecord, ClaimRef, HolderState, PodRef
from vgpu_state.ids import ClaimUid, GpuUuid, PartitionName, RuntimeId

_REMEMBERED_S = 600.0  # a runtime repeats nothing that late


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A partition that a runtime container holds, and the further claims whose shares are part of it, ascending."""

    uid: ClaimUid
    name: PartitionName
    binding: Binding
    further: tuple[ClaimUid, ...]

    @property
    def claims(self) -> tuple[ClaimUid, ...]:
        return (self.uid, *self.further)


class Ledger:
    """Records by claim, bindings by claim and partition, runtime ids that were released.

    `quarantined_gpus` are the GPUs of quarantined claims, by minor number, as far as the CDI file of the claim still says.
    """

    def __init__(self) -> None:
        self._records: dict[ClaimUid, ClaimRecord] = {}
        self._records_by_gpu: dict[GpuUuid, dict[ClaimUid, ClaimRecord]] = {}
        self.quarantined: dict[ClaimUid, str] = {}
        self.quarantined_gpus: dict[ClaimUid, frozenset[int]] = {}
        self.quarantined_names: dict[ClaimUid, ClaimRef] = {}  # of those whose record still says so
        self._bindings: dict[ClaimUid, dict[PartitionName, Binding]] = {}
        self._bound_at: dict[RuntimeId, float] = {}
        self._place_by_runtime_id: dict[RuntimeId, tuple[ClaimUid, PartitionName]] = {}
        self._further_by_runtime_id: dict[RuntimeId, set[ClaimUid]] = {}
        self._released_at: dict[RuntimeId, float] = {}
        self._locks: dict[ClaimUid, threading.Lock] = {}
        self._waiting: dict[ClaimUid, int] = {}
        self._guard = threading.Lock()

    @contextmanager
    def claim(self, uid: ClaimUid) -> Iterator[None]:
        """Holds the claim: its record, partitions and CDI file are changed by one thread at a time."""
        with self._guard:
            lock = self._locks.setdefault(uid, threading.Lock())
            self._waiting[uid] = self._waiting.get(uid, 0) + 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                self._waiting[uid] -= 1
                if not self._waiting[uid]:
                    del self._waiting[uid], self._locks[uid]

    @contextmanager
    def claims_held(self, uids: Iterable[ClaimUid]) -> Iterator[None]:
        """Holds several claims. In one order, whoever asks: two that wait for each other would wait for ever."""
        with ExitStack() as held:
            for uid in sorted(set(uids)):
                held.enter_context(self.claim(uid))
            yield

    @property
    def records(self) -> Mapping[ClaimUid, ClaimRecord]:
        """The record of each claim, as it is now: another thread may change it under a reader that takes more than one step."""
        return MappingProxyType(self._records)

    def note_record(self, record: ClaimRecord) -> None:
        """The record is its claim's from here on."""
        uid = record.claim.uid
        with self._guard:
            previous = self._records.get(uid)
            self._records[uid] = record
            for result in record.results:
                self._records_by_gpu.setdefault(result.gpu_uuid, {})[uid] = record
            if previous is not None and previous.results != record.results:
                self._forget_gpus(previous, but={result.gpu_uuid for result in record.results})

    def records_on(self, gpus: Iterable[GpuUuid]) -> list[ClaimRecord]:
        """The records that have a result on one of the GPUs: a Prepare does not look at hundreds that are elsewhere."""
        with self._guard:
            found = {uid: record for gpu in gpus for uid, record in self._records_by_gpu.get(gpu, {}).items()}
        return list(found.values())

    def claims(self) -> list[ClaimRef]:
        """Every claim on this node that is known by name, the quarantined ones last."""
        return [*(record.claim for record in dict(self.records).values()), *dict(self.quarantined_names).values()]

    def bindings(self, uid: ClaimUid) -> dict[PartitionName, Binding]:
        """A copy: who holds which partition of the claim."""
        with self._guard:
            return dict(self._bindings.get(uid, {}))

    def all_bindings(self) -> list[tuple[ClaimUid, PartitionName, Binding]]:
        with self._guard:
            return [(uid, name, b) for uid, held in self._bindings.items() for name, b in held.items()]

    def conflicts(self) -> int:
        """Grants that two containers hold at a time, which no sequence of calls may bring about."""
        holders = Counter(
            (uid, grant)
            for uid, _, binding in self.all_bindings()
            if binding.state is not HolderState.STOPPED
            for grant in binding.grants
        )
        return sum(1 for count in holders.values() if count > 1)

    def find(self, runtime_id: RuntimeId) -> Held | None:
        """What this runtime container holds."""
        with self._guard:
            place = self._place_by_runtime_id.get(runtime_id)
            if place is None:
                return None
            uid, name = place
            further = tuple(sorted(self._further_by_runtime_id.get(runtime_id, ())))
            return Held(uid=uid, name=name, binding=self._bindings[uid][name], further=further)

    def bindings_of(self, runtime_id: RuntimeId) -> list[tuple[ClaimUid, PartitionName, Binding]]:
        """Every binding of a runtime container, its home first where it has one: a reference may have been left without."""
        found = [(uid, name, b) for uid, name, b in self.all_bindings() if b.runtime_id == runtime_id]
        return sorted(found, key=lambda entry: entry[2].home is not None)

    def pod_of(self, runtime_id: RuntimeId) -> PodRef | None:
        """The pod of a runtime container that is bound."""
        held = self.find(runtime_id)
        return held.binding.pod if held else None

    def bound_at(self, runtime_id: RuntimeId) -> float:
        """Seconds since boot when the binding was made, or first seen by this process."""
        with self._guard:
            return self._bound_at.get(runtime_id, 0.0)

    def bind(self, uid: ClaimUid, name: PartitionName, binding: Binding, *, now_s: float) -> None:
        """Notes a binding. Another runtime id that held the partition is released by it."""
        with self._guard:
            held = self._bindings.setdefault(uid, {})
            previous = held.get(name)
            if previous is not None and previous.runtime_id != binding.runtime_id:
                self._forget(uid, previous, now_s)
            held[name] = binding
            self._bound_at.setdefault(binding.runtime_id, now_s)
            if binding.home is None:
                self._place_by_runtime_id[binding.runtime_id] = (uid, name)
            else:
                self._further_by_runtime_id.setdefault(binding.runtime_id, set()).add(uid)

    def unbind(self, uid: ClaimUid, name: PartitionName, *, now_s: float) -> None:
        with self._guard:
            binding = self._bindings.get(uid, {}).pop(name, None)
            if binding is not None:
                self._forget(uid, binding, now_s)

    def drop_claim(self, uid: ClaimUid, *, now_s: float) -> None:
        """Notes that a claim with all its partitions is gone."""
        with self._guard:
            if (record := self._records.pop(uid, None)) is not None:
                self._forget_gpus(record)
        self.quarantined.pop(uid, None)
        self.quarantined_gpus.pop(uid, None)
        self.quarantined_names.pop(uid, None)
        for name in self.bindings(uid):
            self.unbind(uid, name, now_s=now_s)
        with self._guard:
            self._bindings.pop(uid, None)

    def remember_released(self, runtime_id: RuntimeId, *, now_s: float) -> None:
        """A late Ensure for this id must not bring it back."""
        with self._guard:
            self._released_at[runtime_id] = now_s
            for old in [r for r, at in self._released_at.items() if now_s - at > _REMEMBERED_S]:
                del self._released_at[old]

    def was_released(self, runtime_id: RuntimeId, *, now_s: float) -> bool:
        with self._guard:
            at = self._released_at.get(runtime_id)
        return at is not None and now_s - at <= _REMEMBERED_S

    def _forget_gpus(self, record: ClaimRecord, *, but: Collection[GpuUuid] = ()) -> None:
        for gpu in {result.gpu_uuid for result in record.results}.difference(but):
            self._records_by_gpu[gpu].pop(record.claim.uid, None)

    def _forget(self, uid: ClaimUid, binding: Binding, now_s: float) -> None:
        if binding.home is not None:
            further = self._further_by_runtime_id.get(binding.runtime_id, set())
            further.discard(uid)
            if not further:
                self._further_by_runtime_id.pop(binding.runtime_id, None)
                if binding.runtime_id not in self._place_by_runtime_id:  # its home was never made, or has gone before
                    self._bound_at.pop(binding.runtime_id, None)
            return
        self._place_by_runtime_id.pop(binding.runtime_id, None)
        self._bound_at.pop(binding.runtime_id, None)
        self._released_at[binding.runtime_id] = now_s
