"""Our own older version on a tree of this one, and this one again: each goes on with what it can hold, and nothing is lost.

The older version knows records of form 2 and bindings of schema 1, as the last one without partitions made at Prepare did.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from vgpu_dra.allocation import Allocation
from vgpu_dra.assignments import Registrant
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_state import bindings, records
from vgpu_state.claims import ClaimRecord, ClaimRef, ComputePolicy, ContainerKind
from vgpu_state.container_abi import CompatibilityMode
from vgpu_state.errors import PreconditionFailed
from vgpu_state.ids import ClaimUid, ContainerName, DeviceName, RuntimeId
from vgpu_testkit.dra_assigned import EAGER, assigned, consumer, shown
from vgpu_testkit.dra_tree import ALLOCATION, DraTree, allocated
from vgpu_testkit.dra_values import CLAIM, GIB, NEXT_RUNTIME_ID, POD, RUNTIME_ID, SERVE_PARTITION, SERVER, SESSION, TRAINER

OF_BOTH, OF_EAGER = RuntimeId("b" * 64), RuntimeId("e" * 64)
EAGER_PODS = (
    consumer("train", "trainer"),
    consumer("warm", "server", kind=ContainerKind.INIT),
    consumer("serve", "server"),
)


def claim(first_digit: int, name: str) -> ClaimRef:
    return ClaimRef(namespace="research", name=name, uid=ClaimUid(f"{first_digit}a0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10"))


BALANCED, OTHER_WAY = claim(1, "balanced"), claim(2, "other-way")
EAGERLY, HOME, FURTHER = claim(4, "eagerly"), claim(5, "home"), claim(6, "further")


def one_share(ref: ClaimRef, request: str, gpu: int, *, policy: ComputePolicy = ComputePolicy.FIXED) -> Allocation:
    share = replace(allocated(SERVER), request=request, device=DeviceName(f"vgpu-{gpu}"), cores_percent=10, memory_bytes=GIB)
    return Allocation(claim=ref, results=(share,), policy=policy)


@dataclass(frozen=True, kw_only=True)
class InUse:
    """Claims of every form, and their containers."""

    plain: ContainerFacts
    of_both: ContainerFacts
    eagerly: ClaimRecord


@pytest.fixture
def in_use(node: DraTree) -> InUse:
    """A node of this version with a container of a plain claim, one of two claims, and one that has registered by UUID."""
    node.synchronization.synchronize(SESSION, [])
    plain = node.claims.prepare(ALLOCATION, asked_at_s=1000.0)
    node.claims.prepare(one_share(BALANCED, "gpu", 2, policy=ComputePolicy.BALANCE), asked_at_s=1000.0)
    node.node.rules = replace(node.node.rules, compatibility=CompatibilityMode.CGROUP_V1)
    node.claims.prepare(one_share(OTHER_WAY, "gpu", 3), asked_at_s=1000.0)
    node.node.rules = replace(node.node.rules, compatibility=CompatibilityMode.CLIENT)
    both = [node.claims.prepare(one_share(ref, "gpu", gpu), asked_at_s=1000.0) for ref, gpu in ((HOME, 4), (FURTHER, 6))]
    shares = tuple(replace(allocated(s), cores_percent=5, memory_bytes=GIB) for s in (TRAINER, SERVER))
    eagerly = node.claims.prepare(
        Allocation(claim=EAGERLY, results=shares), asked_at_s=1000.0, assignment=assigned(EAGER, *EAGER_PODS)
    )
    in_use = InUse(
        plain=shown(plain, name="train", runtime_id=RUNTIME_ID, requests=("trainer",)),
        of_both=shown(*both, name="both", runtime_id=OF_BOTH),
        eagerly=eagerly,
    )
    for pid, facts in ((41, in_use.plain), (42, in_use.of_both)):
        answer = node.partitions.ensure(facts, session=SESSION)
        mounts = {m.destination: m for m in (*facts.mounts, *answer.mounts)}
        node.run_container(facts.runtime_id, POD, [pid], mounts=mounts.values())
        node.partitions.record_start(facts.runtime_id, pid)
    given = shown(eagerly, name="warm", runtime_id=OF_EAGER, requests=("server",))
    node.run_container(OF_EAGER, POD, [43], mounts=given.mounts)
    register(node, in_use)
    return in_use


def register(node: DraTree, in_use: InUse) -> object:
    """The container of the eager claim, which does not say its name, registers with its UUID."""
    assert in_use.eagerly.eager is not None
    (uuid,) = [p.register_uuid for p in in_use.eagerly.eager.partitions if p.requests == SERVE_PARTITION.requests]
    assert uuid is not None
    who = Registrant(runtime_id=OF_EAGER, pod_uid=POD.uid, pid=43, container=ContainerName(""))
    return node.eager_bindings.bind(uuid, who)


def become_older(node: DraTree, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(records, "READER", 2)
    patch.setattr(bindings, "READER", 1)
    node.restart()


def become_newer(node: DraTree, patch: pytest.MonkeyPatch) -> None:
    patch.undo()
    node.restart()


@pytest.mark.usefixtures("in_use")
def test_older_version_quarantines_what_it_cannot_hold_saying_so_and_goes_on_with_the_rest(
    node: DraTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = node.snapshot()

    become_older(node, monkeypatch)

    assert set(node.ledger.records) == {CLAIM.uid, BALANCED.uid, HOME.uid}
    newer = "claim record needs a reader of version 3, this one is 2: upgrade again"
    assert node.ledger.quarantined == {
        EAGERLY.uid: newer,
        OTHER_WAY.uid: newer,
        FURTHER.uid: f"partition {POD.uid}_both: binding.json: schema 2 is newer than 1",
    }
    assert {uid: set(gpus) for uid, gpus in node.ledger.quarantined_gpus.items()} == {
        EAGERLY.uid: {1, 5},
        OTHER_WAY.uid: {3},
        FURTHER.uid: {6},
    }
    assert sorted(str(b) for *_, b in node.ledger.all_bindings()) == [
        "container both of pod research/two-workers-0",
        "container train of pod research/two-workers-0",
    ]
    assert node.snapshot() == before


def test_older_version_serves_the_claims_that_it_holds_and_refuses_the_others(
    node: DraTree, in_use: InUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    become_older(node, monkeypatch)
    before = node.snapshot()

    assert node.claims.prepare(ALLOCATION, asked_at_s=1001.0) == node.ledger.records[CLAIM.uid]
    assert node.partitions.ensure(in_use.plain, session=SESSION).is_new is False
    with pytest.raises(PreconditionFailed, match=r"eagerly .* is quarantined \(claim record needs a reader of version 3"):
        node.claims.prepare(Allocation(claim=EAGERLY, results=ALLOCATION.results), asked_at_s=1001.0)
    assert node.snapshot() == before


def test_this_version_finds_everything_as_it_was(node: DraTree, in_use: InUse, monkeypatch: pytest.MonkeyPatch) -> None:
    known, bound, before = dict(node.ledger.records), node.ledger.all_bindings(), node.snapshot()
    become_older(node, monkeypatch)

    become_newer(node, monkeypatch)

    assert (node.ledger.records, node.ledger.quarantined) == (known, {})
    assert sorted(node.ledger.all_bindings()) == sorted(bound)
    assert register(node, in_use) == (EAGERLY.uid, SERVE_PARTITION.name)
    assert node.partitions.ensure(in_use.of_both, session=SESSION).is_new is False
    assert node.snapshot() == before


def test_container_that_ended_under_the_older_version_is_nobodys_obstacle(
    node: DraTree, in_use: InUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older one has heard of the end, and could not say so in the claim that it did not understand."""
    become_older(node, monkeypatch)
    node.end_container(OF_BOTH, POD)
    node.partitions.stop(OF_BOTH)
    node.partitions.remove(OF_BOTH)
    become_newer(node, monkeypatch)
    node.synchronization.synchronize(SESSION + 1, [])

    further = shown(node.ledger.records[FURTHER.uid], name="another", runtime_id=NEXT_RUNTIME_ID)
    answer = node.partitions.ensure(further, session=SESSION + 1)

    assert (answer.claim_uid, answer.is_new) == (FURTHER.uid, True)
    assert node.ledger.conflicts() == 0
    node.claims.unprepare(FURTHER.uid)
    node.claims.unprepare(HOME.uid)
    assert not [path for path in node.files() if path.startswith((FURTHER.uid, HOME.uid))]


def test_claims_that_the_older_version_quarantined_can_be_unprepared_there(
    node: DraTree, in_use: InUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    become_older(node, monkeypatch)
    node.end_container(OF_EAGER, POD)

    node.claims.unprepare(EAGERLY.uid)

    become_newer(node, monkeypatch)
    assert EAGERLY.uid not in node.ledger.records
    assert not [path for path in node.files() if EAGERLY.uid in path]
    assert in_use.plain.runtime_id in {b.runtime_id for *_, b in node.ledger.all_bindings()}
