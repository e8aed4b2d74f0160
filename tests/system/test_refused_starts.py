"""Every refusal of RecordStart, ReleasePartition and RecordPids: its status and words; refusing changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_testkit import trees
from vgpu_testkit.dra_bench import DraBench
from vgpu_testkit.dra_occupied import DEAD, HELD, HOLDER, LEFT, NEW, STOPPED_ONE, occupy

Call = Callable[[DraBench], Awaitable[object]]
Arrange = Callable[[DraBench], None]
INVALID, DENIED, PRECONDITION = Status.INVALID_ARGUMENT, Status.PERMISSION_DENIED, Status.FAILED_PRECONDITION
ABORTED = Status.ABORTED
WHO = "container holder of pod research/two-workers-0"
OTHER_POD = "77777777-54f1-4c86-9b57-2f1d2b8f4c11"
MANAGER = "/etc/vgpu-manager"


@pytest.fixture(scope="module")
def bench(shared_bench: DraBench) -> DraBench:
    asyncio.run(occupy(shared_bench))
    return shared_bench


def nothing(_: DraBench) -> None:
    return


def start(runtime_id: str = HOLDER.runtime_id, pid: int = HOLDER.pid) -> Call:
    return lambda bench: bench.calls.record_start(runtime_id, pid)


def release(runtime_id: str, stage: int) -> Call:
    return lambda bench: bench.calls.release(runtime_id, stage)


def pids(*found: int, uid: str = HELD.uid, name: str = HOLDER.partition, runtime_id: str = HOLDER.runtime_id) -> Call:
    return lambda bench: bench.calls.record_pids(uid, name, runtime_id, found)


def sees(changed: Mapping[str, str]) -> Arrange:
    """HOLDER's process sees other mounts at these places, none where the source is ""."""

    def arrange(bench: DraBench) -> None:
        mounts = {k: v for k, v in {**bench.mounts_of(HOLDER), **changed}.items() if v}
        bench.host.show_process(HOLDER.pid, cgroup=HOLDER.cgroup, mounts=mounts)

    return arrange


def lives_in(cgroup: str) -> Arrange:
    return lambda bench: bench.host.show_process(HOLDER.pid, cgroup=cgroup, mounts=bench.mounts_of(HOLDER))


REFUSED: tuple[tuple[str, Arrange, Call, Status, tuple[str, ...]], ...] = (
    ("start of no id", nothing, start("x"), INVALID, ("runtime container id is 'x'", "64 lower-case hex")),
    ("start unknown", nothing, start(NEW.runtime_id), DENIED, (NEW.runtime_id[:12], "no partition", "nri-plugin was away")),
    (
        "start after stop",
        nothing,
        start(STOPPED_ONE.runtime_id, STOPPED_ONE.pid),
        ABORTED,
        ("container stopped of pod", "was stopped", "cannot start again"),
    ),
    ("start of nobody", nothing, start(pid=5), DENIED, (WHO, "process 5 is not in the container's cgroup", "None")),
    ("start elsewhere", nothing, start(pid=DEAD.pid), DENIED, (WHO, "not in the container's cgroup", DEAD.runtime_id)),
    (
        "start in another pod",
        lives_in(f"/kubepods/burstable/pod{OTHER_POD}/{HOLDER.runtime_id}"),
        start(),
        DENIED,
        (WHO, f"runs in pod {OTHER_POD}", f"says {HOLDER.pod_uid}"),
    ),
    (
        "start in two places",
        lives_in(f"/kubepods/pod{OTHER_POD}/{DEAD.runtime_id}\n1:pids:{HOLDER.cgroup}"),
        start(),
        DENIED,
        (WHO, "not in the container's cgroup", "Ambiguous"),
    ),
    (
        "limits led elsewhere",
        sees({f"{MANAGER}/config": "/srv/mine"}),
        start(),
        PRECONDITION,
        (WHO, f"{MANAGER}/config does not show what we mounted", "/srv/mine", "leads elsewhere"),
    ),
    (
        "preload list led elsewhere",
        sees({"/etc/ld.so.preload": ""}),
        start(),
        PRECONDITION,
        (WHO, "/etc/ld.so.preload does not show what we mounted", "mounted at /"),
    ),
    (
        "scratch led elsewhere",
        sees({"/tmp/.vgpu_lock": "", "/home/.vgpu_lock": "tmpfs"}),
        start(),
        PRECONDITION,
        (WHO, "/tmp/.vgpu_lock does not show what we mounted", "/tmp"),
    ),
    (
        "scratch is a volume",
        sees({"/tmp/.sm_node": "/srv/mine"}),
        start(),
        PRECONDITION,
        (WHO, "/tmp/.sm_node does not show what we mounted", "/srv/mine"),
    ),
    (
        "volume inside ours",
        sees({f"{MANAGER}/watcher": "/srv/mine"}),
        start(),
        PRECONDITION,
        (WHO, f"something else is mounted at {MANAGER}/watcher", "/srv/mine"),
    ),
    ("release of no id", nothing, release("x", 1), INVALID, ("runtime container id is 'x'", "64 lower-case hex")),
    ("no stage", nothing, release(HOLDER.runtime_id, 0), INVALID, ("stage is 0", "expected STOPPED or REMOVED")),
    ("unknown stage", nothing, release(HOLDER.runtime_id, 3), INVALID, ("stage is 3", "expected STOPPED or REMOVED")),
    ("pids of no claim", nothing, pids(1, uid="x"), INVALID, ("claim uid is 'x'", "lower-case UUID")),
    ("pids climb", nothing, pids(1, name=f"{HOLDER.pod_uid}_.."), INVALID, ("partition is", "<pod uid>_<container name>")),
    ("pids of a path", nothing, pids(1, name=f"../{HELD.uid}"), INVALID, ("partition is", "<pod uid>_<container name>")),
    ("pids of no id", nothing, pids(1, runtime_id="x"), INVALID, ("runtime container id is 'x'", "64 lower-case hex")),
    ("no pids", nothing, pids(), INVALID, ("PID list is empty",)),
    ("pid 0", nothing, pids(0), INVALID, ("pids is no list of positive PIDs",)),
    ("negative pid", nothing, pids(-1), INVALID, ("pids is no list of positive PIDs",)),
    ("1001 pids", nothing, pids(*range(1, 1002)), INVALID, ("1001 entries", "at most 1000")),
    (
        "pids of another attempt",
        nothing,
        pids(1, runtime_id=HOLDER.again().runtime_id),
        ABORTED,
        (HOLDER.partition, HELD.uid, HOLDER.again().runtime_id[:12], "any more"),
    ),
    ("pids of nobody", nothing, pids(1, name=NEW.partition, runtime_id=NEW.runtime_id), ABORTED, (NEW.partition, "any more")),
    (
        "pids after stop",
        nothing,
        pids(1, uid=LEFT.uid, name=STOPPED_ONE.partition, runtime_id=STOPPED_ONE.runtime_id),
        ABORTED,
        (STOPPED_ONE.partition, LEFT.uid, "any more"),
    ),
)


@pytest.mark.parametrize(("arrange", "call", "status", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
async def test_call_that_its_container_has_no_right_to_is_refused_in_words(
    bench: DraBench, arrange: Arrange, call: Call, status: Status, words: tuple[str, ...]
) -> None:
    arrange(bench)
    before = trees.stamps(*bench.roots)

    with pytest.raises(GRPCError) as refusal:
        await call(bench)

    bench.run(HOLDER)
    said = refusal.value.message or ""
    assert refusal.value.status is status, said
    for word in words:
        assert word in said
    assert trees.stamps(*bench.roots) == before


async def test_release_of_an_unknown_id_succeeds(bench: DraBench) -> None:
    before = trees.stamps(*bench.roots)

    for stage in (1, 2):
        await bench.calls.release(f"{9:064x}", stage)

    assert trees.stamps(*bench.roots) == before


async def test_holder_goes_on_after_all_refusals(bench: DraBench) -> None:
    await bench.record_start(HOLDER)

    assert await bench.record_pids(HELD, HOLDER, HOLDER.pid, 5) is True
