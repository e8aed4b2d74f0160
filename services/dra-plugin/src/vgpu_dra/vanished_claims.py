"""Claims that the API server does not have any more, and that kubelet has not told of: unprepared, unless a container runs.

kubelet that lost its memory of a claim never sends Unprepare. Reads only; a claim goes on the API server's own word about this
very claim, and an API server that is away, or knows no claims at all, costs none.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from vgpu_daemon import backoff
from vgpu_dra.api_errors import ApiAway, ApiRefused
from vgpu_dra.claim_state import PreparedClaims, Removal
from vgpu_dra.event_documents import Reason, Severity
from vgpu_dra.ledger import Ledger
from vgpu_dra.metrics import Metrics
from vgpu_dra.recorder import Recorder
from vgpu_dra.workers import TreeWorkers
from vgpu_state.claims import ClaimRef
from vgpu_state.errors import VgpuError
from vgpu_state.ids import ClaimUid

_log = structlog.get_logger()


class ClaimLookup(Protocol):
    """Whether the API server has a claim no more. Raises ApiAway or ApiRefused."""

    async def has_vanished(self, claim: ClaimRef) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds between two looks at all claims, and between two requests: 500 claims take half a minute.

    `settle_s` is how long a claim of whole GPUs or MIG devices must have been seen vanished: nothing tells whether a container of
    it still runs, but kubelet, which asks for Unprepare again and again while it knows the claim. `chance`, from 0 to 1, is drawn
    for each pause.
    """

    every_s: float = 600.0
    gap_s: float = 0.1
    settle_s: float = 300.0
    chance: Callable[[], float] = random.random


class VanishedClaims:
    """Looks at every claim on this node that is known by name."""

    def __init__(
        self, api: ClaimLookup, claims: PreparedClaims, ledger: Ledger, workers: TreeWorkers, *, clock: Callable[[], float]
    ) -> None:
        self._api = api
        self._claims = claims
        self._ledger = ledger
        self._workers = workers
        self._clock = clock
        self._seen_vanished: dict[ClaimUid, float] = {}
        self._told: dict[ClaimUid, str] = {}
        self._fault = ""
        self.on_removed: Callable[[ClaimRef], None] = lambda _: None

    async def serve(self, pace: Pace = Pace()) -> None:
        """Looks, at once and then again and again, until cancelled."""
        while True:
            await self.look(pace)
            await asyncio.sleep(backoff.jittered_s(pace.every_s, chance=pace.chance()))

    async def look(self, pace: Pace = Pace()) -> None:
        """Asks about each claim once; the first that the API server does not answer ends it."""
        claims = self._ledger.claims()
        known = {claim.uid for claim in claims}
        self._seen_vanished = {uid: at for uid, at in self._seen_vanished.items() if uid in known}
        self._told = {uid: words for uid, words in self._told.items() if uid in known}
        for claim in claims:
            await asyncio.sleep(backoff.jittered_s(pace.gap_s, chance=pace.chance()))
            try:
                await self._look_at(claim, pace)
            except (ApiAway, ApiRefused) as exc:
                self._note_fault(str(exc))
                return
        self._fault = ""

    async def _look_at(self, claim: ClaimRef, pace: Pace) -> None:
        asked_at = self._clock()
        if not await self._api.has_vanished(claim):
            self._seen_vanished.pop(claim.uid, None)
            return
        if claim.uid in self._ledger.quarantined:
            # Its directory may be mounted by a container that only its unreadable files could name.
            self._tell_once(claim, "it is quarantined: its containers cannot be known; kubelet's Unprepare removes it")
            return
        since = self._seen_vanished.setdefault(claim.uid, asked_at)
        if not self._shows_its_containers(claim.uid) and asked_at - since < pace.settle_s:
            self._tell_once(claim, "it is removed at a later look: nothing tells whether a container of it still runs")
            return
        try:
            removal = await self._workers.run(lambda: self._claims.unprepare_vanished(claim.uid, asked_at_s=asked_at))
        except VgpuError as exc:
            self._tell_once(claim, str(exc))
            return
        if removal is Removal.STILL_RUNS:
            self._tell_once(claim, "a container of it still runs")
        if removal is Removal.REMOVED:
            _log.warning("vanished claim unprepared", claim_uid=claim.uid, claim=f"{claim.namespace}/{claim.name}")
            self.on_removed(claim)

    def _shows_its_containers(self, uid: ClaimUid) -> bool:
        """Whether every container that uses the claim has a binding: those of shares have."""
        record = self._ledger.records.get(uid)
        return record is not None and len(record.vgpus) == len(record.results)

    def _tell_once(self, claim: ClaimRef, why: str) -> None:
        if self._told.get(claim.uid) != why:
            _log.warning("vanished claim left", claim_uid=claim.uid, claim=f"{claim.namespace}/{claim.name}", reason=why)
        self._told[claim.uid] = why

    def _note_fault(self, reason: str) -> None:
        if reason != self._fault:
            _log.warning("vanished claims are not looked for", reason=reason)
        self._fault = reason


def tell_removed(claim: ClaimRef, recorder: Recorder, metrics: Metrics) -> None:
    """Counts a claim that was removed, and tells the node; the claim itself is gone."""
    metrics.events.labels("vanished_claim_removed").inc()
    note = f"claim {claim} is not in the API server any more and was unprepared: kubelet had not asked for it"
    recorder.node(Reason.VANISHED_CLAIM_REMOVED, note, Severity.NORMAL)
