"""The last guard: one GPU in one way, and never more of it than is given away, in whatever order claims come and go."""

from __future__ import annotations

import re
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_dra.allocation import AllocatedResult, Allocation
from vgpu_dra.claim_state import PreparedClaims
from vgpu_dra.ledger import Ledger
from vgpu_dra.policy import occupancy
from vgpu_dra.policy.prepare import NodeNow
from vgpu_dra.rules import Ratios
from vgpu_state.claims import (
    Binding,
    ClaimRecord,
    ClaimRef,
    ClaimState,
    Consumed,
    DeviceKind,
    PreparedGpu,
    PreparedMig,
    PreparedResult,
    PreparedVgpu,
)
from vgpu_state.errors import PreconditionFailed, VgpuError
from vgpu_state.ids import ClaimUid, DeviceName, GpuUuid, MigUuid, PoolName, RequestName, ShareId
from vgpu_testkit.dra_tree import DraTree
from vgpu_testkit.dra_values import BOOT_ID, CLAIM, GIB, INVENTORY, MIB, RECORD, SLICE, TRAINER, WHOLE, gpu_uuid

NODE = NodeNow(inventory=INVENTORY, ratios=Ratios(), boot_id=BOOT_ID)
OTHER = ClaimRef(namespace="team-b", name="batch", uid=ClaimUid("11111111-8f0a-4f57-9d0e-6a6d1b2c7e10"))
WHO = "claim research/two-workers (3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10)"
HOLDER = "claim team-b/batch (11111111-8f0a-4f57-9d0e-6a6d1b2c7e10)"
ADMIN = replace(WHOLE, has_admin_access=True)


def on_gpu(result: PreparedResult, index: int) -> PreparedResult:
    return replace(result, gpu_uuid=gpu_uuid(index))


def share(cores: int, memory_gib: int) -> PreparedVgpu:
    return replace(TRAINER, consumed=Consumed(cores_percent=cores, memory_bytes=memory_gib * GIB))


def check(
    *results: PreparedResult, held: Iterable[PreparedResult] = (), ratios: Ratios = NODE.ratios, blocked: bool = False
) -> None:
    occupancy.check_free(
        replace(RECORD, results=results),
        others=[replace(RECORD, claim=OTHER, results=tuple(held))],
        blocked={result.gpu_uuid: OTHER.uid for result in results if blocked},
        node=replace(NODE, ratios=ratios),
    )


@pytest.mark.parametrize(
    ("wanted", "held"),
    [
        ([share(50, 40)], [share(50, 39)]),
        ([share(0, 40)], [share(100, 39)]),
        ([WHOLE], [TRAINER]),
        ([SLICE], [replace(SLICE, mig_uuid=MigUuid(f"MIG-{CLAIM.uid}"))]),
        ([ADMIN], [WHOLE]),
        ([WHOLE], [ADMIN]),
        ([on_gpu(ADMIN, 5)], [TRAINER]),
        ([share(100, 79)], [on_gpu(ADMIN, 5)]),
        ([ADMIN, ADMIN], [ADMIN]),
        ([on_gpu(ADMIN, 3)], [SLICE]),
    ],
)
def test_what_fits_beside_each_other_is_free(wanted: list[PreparedResult], held: list[PreparedResult]) -> None:
    check(*wanted, held=held)


@pytest.mark.parametrize(
    ("wanted", "held", "words"),
    [
        (
            WHOLE,
            on_gpu(TRAINER, 2),
            f"{WHO} request solver: gpu-2 cannot be given: GPU {gpu_uuid(2)} is in use in shares: vgpu-5 (50 cores, 42949672960 "
            f"bytes) by {HOLDER} request trainer; it is free once that is unprepared",
        ),
        (
            TRAINER,
            on_gpu(WHOLE, 5),
            f"{WHO} request trainer: vgpu-5 cannot be given: GPU {gpu_uuid(5)} is in use whole: gpu-2 by {HOLDER} request "
            "solver; it is free once that is unprepared",
        ),
        (
            WHOLE,
            WHOLE,
            f"{WHO} request solver: gpu-2 cannot be given: GPU {gpu_uuid(2)} is in use whole: gpu-2 by {HOLDER} request solver; "
            "it is free once that is unprepared",
        ),
        (
            SLICE,
            SLICE,
            f"{WHO} request tester: gpu-3-mig-19-2-1 cannot be given: GPU {gpu_uuid(3)} is in use as MIG devices: "
            f"gpu-3-mig-19-2-1 by {HOLDER} request tester; it is free once that is unprepared",
        ),
        (
            on_gpu(TRAINER, 3),
            SLICE,
            f"{WHO} request trainer: vgpu-5 cannot be given: GPU {gpu_uuid(3)} is in use as MIG devices: gpu-3-mig-19-2-1 by "
            f"{HOLDER} request tester; it is free once that is unprepared",
        ),
        (
            share(51, 8),
            share(50, 8),
            f"{WHO} request trainer: vgpu-5 would give away 101 of its 100 cores; it is held as vgpu-5 (50 cores, 8589934592 "
            f"bytes) by {HOLDER} request trainer",
        ),
        (
            share(10, 40),
            share(10, 40),
            f"{WHO} request trainer: vgpu-5 would give away 85899345920 of its 85520809984 memory; it is held as vgpu-5 (10 "
            f"cores, 42949672960 bytes) by {HOLDER} request trainer",
        ),
    ],
)
def test_gpu_that_another_claim_uses_is_refused_naming_it(wanted: PreparedResult, held: PreparedResult, words: str) -> None:
    with pytest.raises(occupancy.DeviceInUse) as refusal:
        check(wanted, held=[held])

    assert str(refusal.value) == words


@pytest.mark.parametrize("results", [(WHOLE, on_gpu(TRAINER, 2)), (WHOLE, WHOLE), (share(60, 8), share(60, 8))])
def test_results_of_one_claim_must_fit_beside_each_other_too(results: tuple[PreparedResult, ...]) -> None:
    with pytest.raises(occupancy.DeviceInUse):
        check(*results)


def test_oversubscribed_gpu_gives_away_its_ratio_and_no_more() -> None:
    ratios = Ratios(cores_percent=150, memory_percent=200)

    check(share(75, 70), held=[share(75, 70)], ratios=ratios)
    with pytest.raises(occupancy.DeviceInUse, match="would give away 151 of its 150 cores"):
        check(share(75, 8), held=[share(76, 8)], ratios=ratios)
    with pytest.raises(occupancy.DeviceInUse, match="of its 171041619968 memory"):
        check(share(75, 79), held=[share(0, 79), share(0, 79)], ratios=ratios)


def test_message_names_a_few_of_many_holders() -> None:
    with pytest.raises(occupancy.DeviceInUse) as refusal:
        check(share(1, 8), held=[share(10, 4)] * 10)

    assert str(refusal.value).count(HOLDER) == 5
    assert str(refusal.value).endswith(" and 5 more")


def test_gpu_of_a_quarantined_claim_counts_as_fully_used() -> None:
    with pytest.raises(PreconditionFailed) as refusal:
        check(share(1, 1), blocked=True)

    check(on_gpu(ADMIN, 5), blocked=True)
    assert str(refusal.value) == (
        f"{WHO} request trainer: GPU {gpu_uuid(5)} counts as fully used by claim {OTHER.uid}, which is quarantined; delete its "
        "pods to unprepare it"
    )


CAPACITY_MIB = 81559
CLAIMS = tuple(ClaimRef(namespace="n", name=f"claim-{i}", uid=ClaimUid(f"00000000-0000-4000-8000-{i:012d}")) for i in range(5))
DEVICES = st.sampled_from(["vgpu-2", "vgpu-2", "gpu-2", "vgpu-3", "gpu-3", "gpu-3-mig-19-2-1", "vgpu-4", "gpu-4"])


@st.composite
def allocated(draw: st.DrawFn) -> AllocatedResult:
    device = draw(DEVICES)
    return AllocatedResult(
        request=RequestName("r"),
        pool=PoolName("node-a"),
        device=DeviceName(device),
        share_id=ShareId(str(draw(st.uuids()))),
        cores_percent=draw(st.sampled_from([0, 25, 50, 100])),
        memory_bytes=draw(st.sampled_from([1, CAPACITY_MIB // 2, CAPACITY_MIB])) * MIB,
        has_admin_access=device.startswith("gpu-") and "mig" not in device and draw(st.booleans()),
    )


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(CLAIMS), st.none() | st.lists(allocated(), min_size=1, max_size=3).map(tuple)), max_size=12
)


class NoHolders:
    """Containers, which there are none of."""

    def who_runs(self, uid: ClaimUid) -> str | None:
        return None

    def is_live(self, binding: Binding) -> bool:
        return False


class NoDisk:
    """A disk that takes everything, so that thousands of orders can be tried."""

    def write_record(self, record: ClaimRecord) -> None:
        pass

    def write_spec(self, uid: ClaimUid, spec: bytes) -> bool:
        return True

    def remove_claim(self, uid: ClaimUid) -> None:
        pass


@pytest.fixture(scope="module")
def mig_node(tmp_path_factory: pytest.TempPathFactory) -> DraTree:
    node = DraTree(root=tmp_path_factory.mktemp("node"))
    node.enter_mig_mode()
    return node


def is_sound(records: Iterable[ClaimRecord]) -> bool:
    """Whether no GPU is used in two ways, no device by two, and no more is given away than there is."""
    by_gpu: dict[GpuUuid, list[PreparedResult]] = defaultdict(list)
    for record in records:
        for result in record.results:
            if not (isinstance(result, PreparedGpu) and result.has_admin_access):
                by_gpu[result.gpu_uuid].append(result)
    return all(_is_sound_on_one(results) for results in by_gpu.values())


def _is_sound_on_one(results: list[PreparedResult]) -> bool:
    (kind, *further) = {r.kind for r in results}
    migs = [r.mig_uuid for r in results if isinstance(r, PreparedMig)]
    shares = [r.consumed for r in results if isinstance(r, PreparedVgpu)]
    return (
        not further
        and (kind is not DeviceKind.GPU or len(results) == 1)
        and len(set(migs)) == len(migs)
        and sum(s.cores_percent for s in shares) <= 100
        and sum(s.memory_bytes for s in shares) <= CAPACITY_MIB * MIB
    )


@given(operations=OPERATIONS)
def test_no_order_of_prepare_and_unprepare_gives_a_gpu_away_twice(
    mig_node: DraTree, operations: list[tuple[ClaimRef, tuple[AllocatedResult, ...] | None]]
) -> None:
    ledger = Ledger()
    clock = iter(range(1000))
    claims = PreparedClaims(
        ledger=ledger, files=NoDisk(), node=mig_node.node, holders=NoHolders(), clock=lambda: float(next(clock))
    )

    for ref, results in operations:
        before = dict(ledger.records)
        if results is None:
            claims.unprepare(ref.uid)
            assert ref.uid not in ledger.records
            continue
        try:
            claims.prepare(Allocation(claim=ref, results=results), asked_at_s=float("inf"))
        except VgpuError:
            assert ledger.records == before  # a refused claim holds nothing, and takes nothing from those before it
        assert is_sound(ledger.records.values())
        assert all(r.state is ClaimState.PREPARED for r in ledger.records.values())


@given(results=st.lists(allocated(), min_size=1, max_size=4))
def test_claims_that_fit_are_never_refused(mig_node: DraTree, results: list[AllocatedResult]) -> None:
    """One claim after the other: the guard says no only where the sum would be unsound."""
    ledger = Ledger()
    claims = PreparedClaims(ledger=ledger, files=NoDisk(), node=mig_node.node, holders=NoHolders(), clock=lambda: 0.0)

    for number, result in enumerate(results):
        ref = ClaimRef(namespace="n", name=str(number), uid=ClaimUid(f"00000000-0000-4000-8000-{number:012d}"))
        alone = PreparedClaims(ledger=Ledger(), files=NoDisk(), node=mig_node.node, holders=NoHolders(), clock=lambda: 0.0)
        try:
            record = alone.prepare(Allocation(claim=ref, results=(result,)), asked_at_s=1.0)
        except VgpuError:
            continue  # the node cannot give this at all
        fits = is_sound([*ledger.records.values(), record])
        try:
            claims.prepare(Allocation(claim=ref, results=(result,)), asked_at_s=1.0)
        except occupancy.DeviceInUse:
            assert not fits
        else:
            assert fits


def test_one_of_two_claims_gets_the_last_of_a_gpu(node: DraTree) -> None:
    """Many rounds of two threads at the same gate: one is refused naming the other, which has it."""
    first, second = (
        Allocation(
            claim=ref,
            results=(replace(_result(), share_id=ShareId(ref.uid)),),
        )
        for ref in CLAIMS[:2]
    )
    with _hurried_threads():
        outcomes = _race(node, first, second, rounds=20)

    assert len(outcomes) == 20
    assert set(outcomes) <= {(CLAIMS[0].name, CLAIMS[1].name), (CLAIMS[1].name, CLAIMS[0].name)}


@contextmanager
def _hurried_threads() -> Iterator[None]:
    """Threads change places after microseconds instead of milliseconds: what is not held together falls apart."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _result() -> AllocatedResult:
    return AllocatedResult(
        request=RequestName("r"),
        pool=PoolName("node-a"),
        device=DeviceName("vgpu-0"),
        share_id=ShareId(""),
        cores_percent=60,
        memory_bytes=8 * GIB,
    )


def _race(node: DraTree, *allocations: Allocation, rounds: int) -> list[tuple[str, str]]:
    """Who won and whom the refusal of the other named, per round."""
    gate = threading.Barrier(2)
    others = {ClaimUid(f"others-{i}") for i in range(500)}
    for uid in others:  # a long look at those who look on
        node.ledger.note_record(replace(RECORD, claim=replace(OTHER, uid=uid), results=(on_gpu(ADMIN, 0),)))

    def prepare(allocation: Allocation) -> str | None:
        gate.wait()
        try:
            node.claims.prepare(allocation, asked_at_s=node.now_s)
        except occupancy.DeviceInUse as exc:
            named = re.search(r"held as .* by claim n/(claim-\d)", str(exc))
            assert named is not None
            return named.group(1)
        return None

    outcomes = []
    with ThreadPoolExecutor(2) as threads:
        for _ in range(rounds):
            named = list(threads.map(prepare, allocations))
            (winner,) = [a.claim for a, n in zip(allocations, named, strict=True) if n is None]
            (loser,) = [a.claim for a in allocations if a.claim != winner]
            assert [winner.name] == [n for n in named if n is not None]
            outcomes.append((winner.name, loser.name))
            assert set(node.ledger.records) - others == {winner.uid}
            assert not Path(node.agent.claim(loser.uid)).exists()
            node.claims.unprepare(winner.uid)
            node.now_s += 1
    return outcomes
