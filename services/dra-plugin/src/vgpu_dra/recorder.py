"""Tells users through Kubernetes Events. Telling never blocks and never fails; what cannot be told is counted."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

import structlog

from vgpu_daemon import backoff
from vgpu_dra import event_documents
from vgpu_dra.api_errors import ApiAway, ApiConflict, ApiNotFound, ApiRefused
from vgpu_dra.event_documents import Create, Occurrence, Raise, Reason, Reporter, Severity, Subject
from vgpu_dra.metrics import Metrics
from vgpu_dra.policy.events import Journal
from vgpu_state.claims import ClaimRef, PodRef
from vgpu_state.ids import NodeName

_log = structlog.get_logger()


class Recorder(Protocol):
    """Whom to tell what a user must see. To be called on the event loop. `note` is a sentence without secrets."""

    def pod(self, pod: PodRef, reason: Reason, note: str) -> None: ...
    def claim(self, claim: ClaimRef, reason: Reason, note: str) -> None: ...
    def node(self, reason: Reason, note: str, severity: Severity = Severity.WARNING) -> None: ...


class NoRecorder:
    """Where there is no cluster, the log and the metrics are all there is."""

    def pod(self, pod: PodRef, reason: Reason, note: str) -> None: ...
    def claim(self, claim: ClaimRef, reason: Reason, note: str) -> None: ...
    def node(self, reason: Reason, note: str, severity: Severity = Severity.WARNING) -> None: ...


class EventsPort(Protocol):
    """The API server's Events. Raises ApiAway or ApiRefused."""

    async def write(self, write: Create | Raise) -> None: ...


class EventRecorder:
    """Writes Events of this node while it serves; what is told before that waits for it."""

    def __init__(self, api: EventsPort, metrics: Metrics, *, node: NodeName, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._metrics = metrics
        self._node = node
        self._clock = clock
        self._journal = Journal(reporter=Reporter(node=node, instance=f"{node}-{secrets.token_hex(4)}"[-128:]))
        self._told = asyncio.Event()
        self._refusal = ""

    def pod(self, pod: PodRef, reason: Reason, note: str) -> None:
        self._tell(event_documents.pod_subject(pod), reason, note, Severity.WARNING)

    def claim(self, claim: ClaimRef, reason: Reason, note: str) -> None:
        self._tell(event_documents.claim_subject(claim), reason, note, Severity.WARNING)

    def node(self, reason: Reason, note: str, severity: Severity = Severity.WARNING) -> None:
        self._tell(event_documents.node_subject(self._node), reason, note, severity)

    async def serve(self) -> None:
        """Writes, until cancelled."""
        pauses = backoff.delays_s()
        while True:
            self._told.clear()
            wait_s = self._journal.next_in_s(self._clock())
            self._count_dropped()
            if wait_s is None or wait_s > 0:
                await self._until_told(wait_s)
                continue
            occurrence, write = self._journal.take(self._clock())
            try:
                await self._write(occurrence, write)
            except ApiAway:
                await asyncio.sleep(next(pauses))
            else:
                pauses = backoff.delays_s()

    def _tell(self, subject: Subject, reason: Reason, note: str, severity: Severity) -> None:
        occurrence = Occurrence(subject=subject, reason=reason, severity=severity, note=note)
        self._journal.note(occurrence, now_s=self._clock(), now=datetime.now(UTC))
        self._count_dropped()
        self._told.set()

    async def _until_told(self, wait_s: float | None) -> None:
        """Returns when something new was told, or the time is over."""
        try:
            async with asyncio.timeout(wait_s):
                await self._told.wait()
        except TimeoutError:
            return

    async def _write(self, occurrence: Occurrence, write: Create | Raise) -> None:
        try:
            await self._send(write)
        except (ApiNotFound, ApiConflict) as exc:
            if isinstance(write, Create):
                self._drop(occurrence, exc)  # its namespace is gone
            else:
                self._journal.gone(occurrence, now_s=self._clock())
        except ApiRefused as exc:
            self._drop(occurrence, exc)
        else:
            self._journal.written(occurrence, write.document["count"], now_s=self._clock())
            self._metrics.kubernetes_events.labels("written").inc()
            self._refusal = ""

    async def _send(self, write: Create | Raise) -> None:
        """Writes. One that is there already was written, and the answer came too late: its name is nobody else's."""
        try:
            await self._api.write(write)
        except ApiConflict:
            if not isinstance(write, Create):
                raise

    def _drop(self, occurrence: Occurrence, refusal: ApiRefused) -> None:
        self._journal.drop(occurrence)
        self._metrics.kubernetes_events.labels("refused").inc()
        if refusal.reason != self._refusal:
            self._refusal = refusal.reason
            _log.warning("event not written", status=refusal.status, reason=refusal.reason)

    def _count_dropped(self) -> None:
        for outcome, count in (("full", self._journal.dropped_full), ("late", self._journal.dropped_late)):
            if count:
                self._metrics.kubernetes_events.labels(outcome).inc(count)
        self._journal.dropped_full = self._journal.dropped_late = 0
