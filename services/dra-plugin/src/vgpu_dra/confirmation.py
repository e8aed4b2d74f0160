"""kubelet's word on a container that asks for a partition, before the partition is made. No claim is held meanwhile."""

from __future__ import annotations

from typing import Protocol

import structlog

from vgpu_dra.ledger import Ledger
from vgpu_dra.metrics import Metrics
from vgpu_dra.policy import admission, listing
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_dra.policy.listing import Listing, Silence, Word
from vgpu_state import ids
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
            PreconditionFailed: the grants are of several claims.
        """
        uid = admission.single_claim(facts)
        if uid in self._ledger.quarantined or self._is_bound(facts, uid):
            return Word.NOT_ASKED
        record = self._ledger.records.get(uid)
        results = admission.granted_results(facts, record)  # first: a made-up grant costs kubelet nothing
        assert record is not None  # granted_results refuses without one
        told = await self._kubelet.get(facts.pod)
        if isinstance(told, Silence):
            about = {"claim_uid": uid, "container_id": facts.runtime_id}
            _log.info("kubelet has not confirmed", **about, status=told.word, reason=told.detail)
            return self._counted(told.word)
        try:
            return self._counted(listing.judge_listing(facts, results, claim=record.claim, listing=told))
        except PermissionRefused:
            self._metrics.confirmations.labels("refused").inc()
            raise

    def _is_bound(self, facts: ContainerFacts, uid: ClaimUid) -> bool:
        return self._ledger.find(facts.runtime_id) == (uid, ids.partition_name(facts.pod.uid, facts.name))

    def _counted(self, word: Word) -> Word:
        self._metrics.confirmations.labels(word).inc()
        return word
