"""kubelet's word on a container that asks for a partition, before the partition is made. No claim is held meanwhile."""

from __future__ import annotations

from typing import Protocol

import structlog

from vgpu_dra.ledger import Ledger
from vgpu_dra.metrics import Metrics
from vgpu_dra.policy import admission, listing, partition
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_dra.policy.listing import Listing, Silence, Word
from vgpu_state.claims import PodRef
from vgpu_state.errors import PermissionRefused
from vgpu_state.ids import ClaimUid

_log = structlog.get_logger()


class PodResources(Protocol):
    """What kubelet gave the containers of a pod."""

    async def get(self, pod: PodRef) -> Listing | Silence: ...


class Confirmation:
    """Asks kubelet once for each container, at its first EnsurePartition.

    What it finds holds afterwards, without a lock: a grant's nonce belongs to one result for ever.
    """

    def __init__(self, kubelet: PodResources, ledger: Ledger, metrics: Metrics) -> None:
        self._kubelet = kubelet
        self._ledger = ledger
        self._metrics = metrics

    async def confirm(self, facts: ContainerFacts) -> Word:
        """Returns unless kubelet contradicts the container's grants.

        Raises:
            PermissionRefused: it does, or a grant is not one that Prepare gave.
        """
        uids = admission.claims_of(facts)
        if any(uid in self._ledger.quarantined for uid in uids) or self._is_bound(facts, uids[0]):
            return Word.NOT_ASKED
        # First: a made-up grant costs kubelet nothing.
        granted = [admission.granted_of(facts, uid, self._ledger.records.get(uid)) for uid in uids]
        told = await self._kubelet.get(facts.pod)
        if isinstance(told, Silence):
            about = {"claim_uid": uids[0], "container_id": facts.runtime_id}
            _log.info("kubelet has not confirmed", **about, status=told.word, reason=told.detail)
            return self._counted(told.word)
        try:
            words = {listing.judge_listing(facts, g.results, claim=g.record.claim, listing=told) for g in granted}
        except PermissionRefused:
            self._metrics.confirmations.labels("refused").inc()
            raise
        return self._counted(Word.UNLISTED if Word.UNLISTED in words else Word.CONFIRMED)

    def _is_bound(self, facts: ContainerFacts, uid: ClaimUid) -> bool:
        held = self._ledger.find(facts.runtime_id)
        return held is not None and held.uid == uid and partition.is_held_by(held.binding, facts)

    def _counted(self, word: Word) -> Word:
        self._metrics.confirmations.labels(word).inc()
        return word
