"""Which claims go when the API server has them no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from vgpu_dra.allocation import AllocatedResult, Allocation
from vgpu_dra.api_errors import ApiAway
from vgpu_dra.vanished_claims import Pace, VanishedClaims
from vgpu_dra.workers import TreeWorkers
from vgpu_state.claims import ClaimRef
from vgpu_state.errors import Superseded
from vgpu_state.ids import ClaimUid, DeviceName, PoolName, RequestName, ShareId
from vgpu_testkit.dra_tree import ALLOCATION, DraTree
from vgpu_testkit.dra_values import BINDING, CLAIM, CLAIM_UID, PARTITION, POD, RUNTIME_ID

PACE = Pace(gap_s=0.0, settle_s=300.0, chance=lambda: 1.0)
OTHER = ClaimRef(namespace="research", name="whole", uid=ClaimUid("4a1d2f7e-8f0a-4f57-9d0e-6a6d1b2c7e10"))
WHOLE_GPU = Allocation(
    claim=OTHER,
    results=(
        AllocatedResult(
            request=RequestName("gpu"),
            pool=PoolName("node-a"),
            device=DeviceName("gpu-7"),
            share_id=ShareId(""),
            cores_percent=None,
            memory_bytes=None,
        ),
    ),
)


class Api:
    """The API server has no claim but `present`; `meanwhile` happens while it is asked."""

    def __init__(self) -> None:
        self.present: set[ClaimUid] = set()
        self.asked: list[ClaimUid] = []
        self.away_after: int | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    async def has_vanished(self, claim: ClaimRef) -> bool:
        if len(self.asked) == self.away_after:
            raise ApiAway("API server is away: connection refused")
        self.asked.append(claim.uid)
        self.meanwhile()
        return claim.uid not in self.present


class Bench:
    """A node with the example claim prepared."""

    def __init__(self, node: DraTree) -> None:
        self.node = node
        self.api = Api()
        self.removed: list[ClaimRef] = []
        self.vanished = VanishedClaims(self.api, node.claims, node.ledger, TreeWorkers(), clock=lambda: node.now_s)
        self.vanished.on_removed = self.removed.append
        node.claims.prepare(ALLOCATION, asked_at_s=node.now_s)
        node.now_s += 1

    async def look(self) -> None:
        await self.vanished.look(PACE)

    def known(self) -> set[ClaimUid]:
        return set(self.node.ledger.records)


@pytest.fixture
def bench(node: DraTree) -> Bench:
    return Bench(node)


async def test_vanished_claim_is_removed_whole_and_told(bench: Bench) -> None:
    await bench.look()

    assert bench.removed == [CLAIM]
    assert bench.known() == set()
    assert bench.node.files() == []


async def test_claim_that_is_there_stays(bench: Bench) -> None:
    bench.api.present = {CLAIM_UID}
    before = bench.node.snapshot()

    await bench.look()

    assert (bench.removed, bench.node.snapshot()) == ([], before)


async def test_late_prepare_after_the_removal_is_refused(bench: Bench) -> None:
    await bench.look()

    with pytest.raises(Superseded, match="was unprepared while it was being prepared"):
        bench.node.claims.prepare(ALLOCATION, asked_at_s=bench.node.now_s - 0.5)


async def test_claim_whose_container_runs_stays_until_it_has_ended(bench: Bench) -> None:
    bench.node.run_container(RUNTIME_ID, POD, [41])
    path = f"/kubepods/burstable/pod{POD.uid}/{RUNTIME_ID}"
    bench.node.ledger.bind(CLAIM_UID, PARTITION, replace(BINDING, cgroup=path), now_s=1.0)

    await bench.look()
    assert bench.known() == {CLAIM_UID}

    bench.node.end_container(RUNTIME_ID, POD)
    await bench.look()
    assert bench.removed == [CLAIM]


async def test_claim_that_was_prepared_while_the_api_server_was_asked_stays(bench: Bench) -> None:
    def prepare_again() -> None:
        bench.node.now_s += 1
        bench.node.claims.prepare(ALLOCATION, asked_at_s=bench.node.now_s)

    bench.api.meanwhile = prepare_again

    await bench.look()

    assert (bench.removed, bench.known()) == ([], {CLAIM_UID})


async def test_claim_that_kubelet_unprepared_meanwhile_is_told_by_nobody(bench: Bench) -> None:
    bench.api.meanwhile = lambda: bench.node.claims.unprepare(CLAIM_UID)

    await bench.look()

    assert bench.removed == []


async def test_claim_of_a_whole_gpu_is_removed_at_a_later_look(bench: Bench) -> None:
    bench.api.present = {CLAIM_UID}
    bench.node.claims.prepare(WHOLE_GPU, asked_at_s=bench.node.now_s)
    bench.node.now_s += 1

    await bench.look()
    bench.node.now_s += 299
    await bench.look()
    assert bench.removed == []

    bench.node.now_s += 1
    await bench.look()
    assert bench.removed == [OTHER]


async def test_claim_of_a_whole_gpu_that_came_back_waits_anew(bench: Bench) -> None:
    bench.api.present = {CLAIM_UID}
    bench.node.claims.prepare(WHOLE_GPU, asked_at_s=bench.node.now_s)
    bench.node.now_s += 1
    await bench.look()
    bench.api.present = {CLAIM_UID, OTHER.uid}
    await bench.look()
    bench.api.present = {CLAIM_UID}
    bench.node.now_s += 1000

    await bench.look()

    assert bench.removed == []


async def test_api_server_that_goes_away_ends_the_look(bench: Bench) -> None:
    bench.node.claims.prepare(WHOLE_GPU, asked_at_s=bench.node.now_s)
    bench.api.away_after = 0

    await bench.look()

    assert (bench.api.asked, bench.removed) == ([], [])
