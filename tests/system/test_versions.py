"""dra-plugin beside a nri-plugin or a registry of another version, as they come and go one by one in an update."""

from __future__ import annotations

from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_proto import partitions, registrations
from vgpu_testkit import trees
from vgpu_testkit.dra_bench import EARLY_SESSION, DraBench
from vgpu_testkit.dra_calls import Raw, call
from vgpu_testkit.dra_eager_operations import POD, RESERVED, SERVE_DIR, WARM, WITHOUT_NRI
from vgpu_testkit.dra_operations import CLAIM, TRAIN

_UNKNOWN = b"\xfa\x01\x05later\xf8\x01\x07"  # field 31, as text and as a number


@pytest.fixture
async def eager_bench(bench: DraBench) -> DraBench:
    """The claim is prepared without NRI, and its container `warm` runs, of which nobody has told."""
    bench.dra.environment |= WITHOUT_NRI
    for manifest in (RESERVED, POD):
        manifest.write(bench.claims)
    await bench.start()
    await bench.prepare(RESERVED)
    bench.create(RESERVED, WARM)
    bench.run(WARM)
    return bench


async def test_nri_plugin_that_does_not_say_whom_a_start_is_about_cannot_start_what_it_did_not_see_created(
    eager_bench: DraBench,
) -> None:
    before = trees.stamps(*eager_bench.roots)

    with pytest.raises(GRPCError) as refusal:
        await eager_bench.record_start(WARM)

    assert refusal.value.status is Status.PERMISSION_DENIED
    assert refusal.value.message == (
        f"container {WARM.runtime_id[:12]} has no partition: it was created while nri-plugin was away, or has been released"
    )
    assert trees.stamps(*eager_bench.roots) == before


async def test_nri_plugin_that_says_whom_a_start_is_about_starts_what_it_did_not_see_created(eager_bench: DraBench) -> None:
    await eager_bench.calls.synchronize(session=EARLY_SESSION)
    request = partitions.RecordStartRequest(
        runtime_id=WARM.runtime_id, pid=WARM.pid, session=EARLY_SESSION, container=eager_bench.shown(RESERVED, WARM)
    )

    await _ask(eager_bench, "partitions", "RecordStart", request.SerializeToString())

    partition = eager_bench.claim_dir(RESERVED) / SERVE_DIR
    assert f'"runtime_id": "{WARM.runtime_id}"' in (partition / "binding.json").read_text()
    assert (partition / "config/pids.config").read_text() == f"{WARM.pid}\n"


async def test_older_registry_records_the_pids_of_a_container_that_nri_has_told_of(eager_bench: DraBench) -> None:
    """It knows no register UUIDs, and finds the binding in the tree."""
    await eager_bench.ensure(RESERVED, WARM)
    await eager_bench.record_start(WARM)

    changed = await eager_bench.calls.record_pids(RESERVED.uid, SERVE_DIR, WARM.runtime_id, (7, WARM.pid))

    assert changed is True
    assert (eager_bench.claim_dir(RESERVED) / SERVE_DIR / "config/pids.config").read_text() == f"7\n{WARM.pid}\n"


async def test_fields_that_only_a_newer_peer_knows_are_passed_over(bench: DraBench) -> None:
    CLAIM.write(bench.claims)
    await bench.start()
    await bench.prepare(CLAIM)
    await bench.ensure(CLAIM, TRAIN)
    bench.run(TRAIN)
    calls: dict[str, Any] = {
        "EnsurePartition": partitions.EnsurePartitionRequest(session=EARLY_SESSION, container=bench.shown(CLAIM, TRAIN)),
        "RecordStart": partitions.RecordStartRequest(runtime_id=TRAIN.runtime_id, pid=TRAIN.pid),
        "RenewSession": partitions.RenewSessionRequest(session=EARLY_SESSION),
    }
    for method, request in calls.items():
        await _ask(bench, "partitions", method, request.SerializeToString() + _UNKNOWN)
    listed = registrations.RecordPidsRequest(
        claim_uid=CLAIM.uid, partition=TRAIN.partition, runtime_id=TRAIN.runtime_id, pids=[7, TRAIN.pid]
    )

    await _ask(bench, "registrations", "RecordPids", bytes(listed) + _UNKNOWN)

    pids = bench.claim_dir(CLAIM) / TRAIN.partition / "config/pids.config"
    assert pids.read_text() == f"7\n{TRAIN.pid}\n"


async def _ask(bench: DraBench, peer: str, method: str, raw: bytes) -> None:
    path = bench.node.run_dir / peer / "claims.sock"
    await call(path, f"/vgpu.{peer}.v1.{peer.capitalize()}/{method}", Raw(raw), partitions.RecordStartResponse)
