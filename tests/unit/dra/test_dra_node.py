"""One Prepare of kubelet's: what it waits for, and that each claim of a call is answered for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from vgpu_dra import kubelet_service
from vgpu_dra.allocation import Allocation
from vgpu_dra.event_documents import Reason
from vgpu_dra.kubelet_service import DraNode
from vgpu_dra.metrics import Metrics
from vgpu_dra.policy.assigner import THROUGH_NRI, Assignment
from vgpu_dra.recorder import NoRecorder
from vgpu_dra.workers import TreeWorkers
from vgpu_proto import dra_v1
from vgpu_state.claims import ClaimRecord, ClaimRef, PodRef
from vgpu_state.errors import NotReady, PreconditionFailed
from vgpu_testkit.dra_tree import DraTree
from vgpu_testkit.manifests import Manifest, Share

CLAIM = Manifest(name="one", uid="11111111-8f0a-4f57-9d0e-6a6d1b2c7e10", shares=(Share(request="r", device="vgpu-1"),))
OTHER = Manifest(name="two", uid="22222222-8f0a-4f57-9d0e-6a6d1b2c7e10", shares=(Share(request="r", device="vgpu-2"),))


class Source:
    """An API server that has what `documents` say, once it has answered each name's refusals."""

    def __init__(self, *manifests: Manifest, **refusals: list[Exception]) -> None:
        self._documents = {manifest.name: manifest.document() for manifest in manifests}
        self._refusals = refusals
        self.asked: list[str] = []

    async def fetch(self, claim: ClaimRef) -> Mapping[str, Any]:
        self.asked.append(claim.name)
        if refusals := self._refusals.get(claim.name):
            raise refusals.pop(0)
        return self._documents[claim.name]

    async def assignment(self, doc: Mapping[str, Any], allocation: Allocation) -> Assignment:
        del doc, allocation
        return THROUGH_NRI


def dra_node(tree: DraTree, source: Source) -> DraNode:
    return DraNode(tree.claims, source, TreeWorkers(), Metrics(), clock=lambda: tree.now_s)


def asked(*manifests: Manifest) -> list[dra_v1.Claim]:
    return [dra_v1.Claim(namespace=m.namespace, name=m.name, uid=m.uid) for m in manifests]


async def test_prepare_waits_for_an_api_server_that_is_away(node: DraTree) -> None:
    source = Source(CLAIM, one=[NotReady("API server is away: refused"), NotReady("API server is away: refused")])

    answers = await dra_node(node, source).prepare_all(asked(CLAIM))

    assert isinstance(answers[CLAIM.uid], ClaimRecord)
    assert source.asked == ["one", "one", "one"]


async def test_claim_that_does_not_exist_is_refused_at_once_beside_one_that_waits(node: DraTree) -> None:
    source = Source(
        CLAIM,
        one=[NotReady("API server is away: refused")],
        two=[PreconditionFailed("ResourceClaim research/two does not exist")],
    )

    answers = await dra_node(node, source).prepare_all(asked(CLAIM, OTHER))

    assert isinstance(answers[CLAIM.uid], ClaimRecord)
    assert answers[OTHER.uid] == "ResourceClaim research/two does not exist"
    assert source.asked == ["one", "two", "one"]


class SlowPods(Source):
    async def assignment(self, doc: Mapping[str, Any], allocation: Allocation) -> Assignment:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def test_what_was_waited_for_in_vain_is_said(node: DraTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet_service, "FETCH_S", 0.1)

    answers = await dra_node(node, SlowPods(CLAIM)).prepare_all(asked(CLAIM))

    assert answers[CLAIM.uid] == (
        "claim research/one (11111111-8f0a-4f57-9d0e-6a6d1b2c7e10): nri-plugin has no session, and the claim's pods were not "
        "looked up within 0.1 s"
    )
    assert node.ledger.records == {}


class Told(NoRecorder):
    """Keeps what was told of claims, and the names of the pods that were told."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, Reason, str]] = []
        self.pods: list[str] = []

    def pod(self, pod: PodRef, reason: Reason, note: str) -> None:
        self.pods.append(pod.name)

    def claim(self, claim: ClaimRef, reason: Reason, note: str) -> None:
        self.notes.append((claim.name, reason, note))


async def test_compute_policy_that_is_none_is_told_and_keeps_nobody_waiting(node: DraTree) -> None:
    dra = dra_node(node, Source(replace(CLAIM, annotations={"a.com/vgpu-compute-policy": "elastic"})))
    dra.recorder = told = Told()

    answers = await dra.prepare_all(asked(CLAIM))

    assert isinstance(answers[CLAIM.uid], ClaimRecord)
    assert told.notes == [
        (
            "one",
            Reason.POLICY_UNKNOWN,
            "annotation a.com/vgpu-compute-policy is 'elastic'; expected one of fixed, balance, none: taken as fixed",
        )
    ]


class SharedClaim(Source):
    """The claim of a device that is not there, reserved for these consumers."""

    def __init__(self, *consumers: Any) -> None:
        super().__init__(replace(CLAIM, shares=(Share(request="r", device="vgpu-77"),)))
        self._consumers = list(consumers)

    async def fetch(self, claim: ClaimRef) -> Mapping[str, Any]:
        document = dict(await super().fetch(claim))
        return {**document, "status": {**document["status"], "reservedFor": self._consumers}}


async def test_refusal_is_told_to_the_first_few_pods_of_a_claim_that_many_share(node: DraTree) -> None:
    uids = (f"{i:08x}-54f1-4c86-9b57-2f1d2b8f4c11" for i in range(256))
    dra = dra_node(node, SharedClaim(*({"resource": "pods", "name": f"pod-{i}", "uid": uid} for i, uid in enumerate(uids))))
    dra.recorder = told = Told()

    await dra.prepare_all(asked(CLAIM))

    assert told.pods == [f"pod-{i}" for i in range(8)]


async def test_refusal_stands_where_its_pods_cannot_be_read(node: DraTree) -> None:
    dra = dra_node(node, SharedClaim({"resource": "pods", "name": "pod-0"}))
    dra.recorder = told = Told()

    answers = await dra.prepare_all(asked(CLAIM))

    assert "device vgpu-77 is not on this node" in str(answers[CLAIM.uid])
    assert ([reason for _, reason, _ in told.notes], told.pods) == ([Reason.PREPARE_REFUSED], [])


async def test_prepare_that_kubelet_gave_up_asks_no_more(node: DraTree) -> None:
    source = Source(CLAIM, one=[NotReady("API server is away: refused")] * 100)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await dra_node(node, source).prepare_all(asked(CLAIM))

    assert source.asked == ["one"]
    assert node.ledger.records == {}


async def test_unprepare_that_comes_while_a_claim_is_looked_up_wins(node: DraTree) -> None:
    """The pod was deleted while the API server was away: nobody will unprepare what is prepared now."""
    source = Source(CLAIM, one=[NotReady("API server is away: refused")])
    dra = dra_node(node, source)

    preparing = asyncio.create_task(dra.prepare_all(asked(CLAIM)))
    while not source.asked:
        await asyncio.sleep(0)
    node.now_s += 1
    await dra.unprepare_all(asked(CLAIM))

    assert (await preparing)[CLAIM.uid] == (
        "claim research/one (11111111-8f0a-4f57-9d0e-6a6d1b2c7e10) was unprepared while it was being prepared; kubelet may ask "
        "again"
    )
    assert node.files() == []
