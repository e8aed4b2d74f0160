"""Which containers kubelet is asked about, and what its word does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vgpu_dra.confirmation import Confirmation
from vgpu_dra.ledger import Ledger
from vgpu_dra.metrics import Metrics
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_dra.policy.listing import Listing, Silence, Word
from vgpu_state.claims import PodRef
from vgpu_state.errors import PermissionRefused
from vgpu_state.ids import Nonce
from vgpu_testkit.dra_values import BINDING, CLAIM_UID, FACTS, LISTED, NEXT_RUNTIME_ID, PARTITION, POD, RECORD

AGREES = Listing(containers={"train": frozenset({LISTED})})
DISAGREES = Listing(containers={"train": frozenset()})


class Kubelet:
    """Answers each pod the same, and keeps whom it was asked about."""

    def __init__(self, answer: Listing | Silence) -> None:
        self._answer = answer
        self.asked: list[PodRef] = []

    async def get(self, pod: PodRef) -> Listing | Silence:
        self.asked.append(pod)
        return self._answer


class Bench:
    """A ledger with the example claim, and a kubelet."""

    def __init__(self, answer: Listing | Silence) -> None:
        self.kubelet = Kubelet(answer)
        self.ledger = Ledger()
        self.ledger.note_record(RECORD)
        self._metrics = Metrics()
        self._confirmation = Confirmation(self.kubelet, self.ledger, self._metrics)

    async def confirm(self, facts: ContainerFacts = FACTS) -> Word:
        return await self._confirmation.confirm(facts)

    def count(self, outcome: str) -> float | None:
        return self._metrics.registry.get_sample_value("vgpu_dra_kubelet_confirmations_total", {"outcome": outcome})


async def test_container_that_kubelet_lists_is_confirmed_and_counted() -> None:
    bench = Bench(AGREES)

    assert await bench.confirm() is Word.CONFIRMED
    assert bench.kubelet.asked == [POD]
    assert bench.count("confirmed") == 1


async def test_container_that_kubelet_contradicts_is_refused_and_counted() -> None:
    bench = Bench(DISAGREES)

    with pytest.raises(PermissionRefused, match="the grant is another container's"):
        await bench.confirm()
    assert bench.count("refused") == 1


async def test_silence_of_kubelet_is_accepted_and_counted_by_its_reason() -> None:
    bench = Bench(Silence(word=Word.TIMEOUT, detail="kubelet did not answer within 0.2 s"))

    assert await bench.confirm() is Word.TIMEOUT
    assert bench.count("timeout") == 1


async def test_container_that_has_its_partition_is_not_asked_about_again() -> None:
    bench = Bench(DISAGREES)
    bench.ledger.bind(CLAIM_UID, PARTITION, BINDING, now_s=1.0)

    assert await bench.confirm() is Word.NOT_ASKED
    assert bench.kubelet.asked == []


async def test_next_attempt_of_a_container_is_asked_about() -> None:
    bench = Bench(DISAGREES)
    bench.ledger.bind(CLAIM_UID, PARTITION, BINDING, now_s=1.0)

    with pytest.raises(PermissionRefused):
        await bench.confirm(replace(FACTS, runtime_id=NEXT_RUNTIME_ID))
    assert bench.kubelet.asked == [POD]


async def test_made_up_grant_costs_kubelet_nothing() -> None:
    bench = Bench(AGREES)
    forged = replace(FACTS.grants[0], nonce=Nonce("0" * 32))

    with pytest.raises(PermissionRefused, match="it was not given by Prepare"):
        await bench.confirm(replace(FACTS, grants=(forged,)))
    assert bench.kubelet.asked == []


async def test_claim_that_is_not_prepared_costs_kubelet_nothing() -> None:
    bench = Bench(AGREES)
    bench.ledger.drop_claim(CLAIM_UID, now_s=0.0)

    with pytest.raises(PermissionRefused, match="not prepared on this node"):
        await bench.confirm()
    assert bench.kubelet.asked == []
