"""Everyone at once on a claim whose partitions were made at Prepare: NRI's events, registrations, Synchronize, housekeeping."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from vgpu_dra.assignments import Registrant, Replayed
from vgpu_state.claims import ContainerKind
from vgpu_state.errors import NotReady, PermissionRefused, PreconditionFailed, Superseded
from vgpu_state.ids import ContainerName, RuntimeId
from vgpu_testkit.dra_assigned import EAGER, assigned, consumer, shown
from vgpu_testkit.dra_tree import ALLOCATION, DraTree
from vgpu_testkit.dra_values import CLAIM_UID, POD, SESSION

TRAIN, SERVE = consumer("train", "trainer"), consumer("serve", "server")
WARM = consumer("warm", "server", kind=ContainerKind.INIT)
ATTEMPTS = [(RuntimeId(f"{i + 1:064x}"), 100 + i, ("train", "warm", "serve")[i % 3]) for i in range(8)]
REQUESTS = {"train": "trainer", "warm": "server", "serve": "server"}


@pytest.mark.parametrize("seed", range(4))
def test_disk_and_memory_say_the_same_of_every_holder(node: DraTree, seed: int) -> None:
    """Refusals are as they fall; a fault of the disk, as of a file that another thread took away, is none."""
    node.synchronization.synchronize(SESSION, [])
    record = node.claims.prepare(ALLOCATION, asked_at_s=1000.0, assignment=assigned(EAGER, TRAIN, WARM, SERVE))
    assert record.eager is not None
    uuids = {c.name: p.register_uuid for p in record.eager.partitions for c in p.containers}
    facts = {rid: shown(record, name=name, runtime_id=rid, requests=(REQUESTS[name],)) for rid, _, name in ATTEMPTS}
    for rid, pid, _ in ATTEMPTS[:5]:
        node.run_container(rid, POD, [pid], mounts=facts[rid].mounts)

    def bind(rid: RuntimeId, pid: int, name: str) -> None:
        uuid = uuids[ContainerName(name)]
        assert uuid is not None
        node.eager_bindings.bind(uuid, Registrant(runtime_id=rid, pod_uid=POD.uid, pid=pid, container=ContainerName(name)))

    def synchronize(rid: RuntimeId, pid: int, _: str) -> None:
        node.synchronization.synchronize(SESSION, [Replayed(runtime_id=rid, facts=facts[rid], pid=pid)])

    acts: list[Callable[[RuntimeId, int, str], object]] = [
        bind,
        bind,
        synchronize,
        lambda rid, *_: node.partitions.ensure(facts[rid], session=SESSION),
        lambda rid, pid, _: node.partitions.record_start(rid, pid),
        lambda rid, *_: node.partitions.stop(rid),
        lambda rid, *_: node.partitions.remove(rid),
        lambda *_: node.claims.restore_spec(CLAIM_UID),
    ]

    def act(number: int) -> None:
        chance = random.Random(seed * 1000 + number)
        with suppress(NotReady, PermissionRefused, PreconditionFailed, Superseded):
            chance.choice(acts)(*chance.choice(ATTEMPTS))
        if chance.random() < 0.1:
            node.now_s += 650  # released ids are forgotten, who never started counts no more

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(act, range(300), timeout=60))

    on_disk = {name: node.reader.binding(CLAIM_UID, name) for name in node.reader.partitions(CLAIM_UID)}
    held = {name: binding for _, name, binding in node.ledger.all_bindings()}
    assert {name: binding for name, binding in on_disk.items() if binding is not None} == held
    assert len(on_disk) == 2
    for rid, _, _ in ATTEMPTS:
        node.partitions.remove(rid)
    assert node.ledger.all_bindings() == []
