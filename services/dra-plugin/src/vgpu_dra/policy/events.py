"""Which Events are written, and how often: an API server must not suffer from a thousand crash-looping pods. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime

from vgpu_dra import event_documents
from vgpu_dra.event_documents import Create, Occurrence, Raise, Reporter, Tally

SAME_S = 600.0  # the same thing within so long is one Event
COUNT_S = 60.0  # how often its count is written at most
KEPT_S = 600.0  # how long it waits for an API server that is away
MAX_ENTRIES = 256
# A node may write a burst, and then one Event in two seconds.
BURST = 25
REFILL_PER_S = 0.5


@dataclass(slots=True, kw_only=True)
class _Entry:
    occurrence: Occurrence
    name: str
    first: datetime
    last: datetime
    seen_s: float
    waits_since_s: float | None  # None: all of it is written
    count: int = 1
    written_s: float | None = None  # None: it is not there

    def due_s(self) -> float | None:
        """When it is to be written, None when all of it is."""
        if self.waits_since_s is None:
            return None
        return self.waits_since_s if self.written_s is None else max(self.waits_since_s, self.written_s + COUNT_S)


@dataclass(slots=True, kw_only=True)
class Journal:
    """What has happened and is not written. Times are seconds of one clock that never goes back; `datetime`s are for display."""

    reporter: Reporter
    dropped_full: int = 0
    dropped_late: int = 0
    _entries: dict[Occurrence, _Entry] = field(default_factory=dict)
    _tokens: float = float(BURST)
    _refilled_s: float = 0.0

    def note(self, occurrence: Occurrence, *, now_s: float, now: datetime) -> None:
        """It has happened once more. One too many of different things is dropped and counted."""
        self._forget(now_s)
        entry = self._entries.get(occurrence)
        if entry is not None:
            entry.count += 1
            entry.last, entry.seen_s = now, now_s
            if entry.waits_since_s is None:
                entry.waits_since_s = now_s
        elif len(self._entries) >= MAX_ENTRIES and not self._make_room():
            self.dropped_full += 1
        else:
            self._entries[occurrence] = _Entry(
                occurrence=occurrence,
                name=_name(occurrence, now_s),
                first=now,
                last=now,
                seen_s=now_s,
                waits_since_s=now_s,
            )

    def next_in_s(self, now_s: float) -> float | None:
        """Seconds until something is to be written; None when nothing is."""
        self._forget(now_s)
        dues = [due for entry in self._entries.values() if (due := entry.due_s()) is not None]
        if not dues:
            return None
        self._refill(now_s)
        for_a_token = max(0.0, 1 - self._tokens) / REFILL_PER_S
        return max(0.0, min(dues) - now_s, for_a_token)

    def take(self, now_s: float) -> tuple[Occurrence, Create | Raise]:
        """What has waited longest. To be called when `next_in_s` is 0, and answered by `written`, `failed` or `drop`."""
        entry = min((e for e in self._entries.values() if e.due_s() is not None), key=lambda e: e.due_s() or 0.0)
        self._tokens -= 1
        tally = Tally(count=entry.count, first=_timestamp(entry.first), last=_timestamp(entry.last))
        if entry.written_s is None:
            return entry.occurrence, event_documents.create(entry.occurrence, tally, name=entry.name, reporter=self.reporter)
        return entry.occurrence, event_documents.raise_count(entry.occurrence, tally, name=entry.name)

    def written(self, occurrence: Occurrence, count: int, *, now_s: float) -> None:
        """The API server has it with this count."""
        if (entry := self._entries.get(occurrence)) is not None:
            entry.written_s = now_s
            entry.waits_since_s = None if entry.count == count else now_s

    def gone(self, occurrence: Occurrence, *, now_s: float) -> None:
        """The Event is not there any more: it is made anew under another name."""
        if (entry := self._entries.get(occurrence)) is not None:
            entry.written_s = None
            entry.name = _name(occurrence, now_s)

    def drop(self, occurrence: Occurrence) -> None:
        """It cannot be written."""
        self._entries.pop(occurrence, None)

    def _forget(self, now_s: float) -> None:
        for occurrence, entry in list(self._entries.items()):
            if entry.waits_since_s is None and now_s - entry.seen_s > SAME_S:
                del self._entries[occurrence]
            elif entry.waits_since_s is not None and now_s - entry.waits_since_s > KEPT_S:
                del self._entries[occurrence]
                self.dropped_late += 1

    def _make_room(self) -> bool:
        """Forgets what is written and was seen longest ago; whether there was any."""
        settled = [(e.seen_s, o) for o, e in self._entries.items() if e.waits_since_s is None]
        if not settled:
            return False
        del self._entries[min(settled, key=lambda one: one[0])[1]]
        return True

    def _refill(self, now_s: float) -> None:
        self._tokens = min(float(BURST), self._tokens + (now_s - self._refilled_s) * REFILL_PER_S)
        self._refilled_s = now_s


def _name(occurrence: Occurrence, now_s: float) -> str:
    digits = hashlib.sha256(f"{occurrence!r}{now_s!r}".encode()).hexdigest()[:16]
    return event_documents.event_name(occurrence.subject, digits)


def _timestamp(moment: datetime) -> str:
    """RFC 3339 in whole seconds, as the API has it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
