"""Every refusal of EnsurePartition: its status, and words that name the container or field, what was found, what is allowed.

Refusing changes nothing, and no grant's secret is in the words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_proto import partitions
from vgpu_testkit import trees
from vgpu_testkit.dra_bench import DraBench
from vgpu_testkit.dra_occupied import FREE, HELD, LEFT, LOST, NEW, STOPPED_ONE, occupy
from vgpu_testkit.manifests import Manifest

WHO = "container train of pod research/two-workers-0"
NONCE = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def bench(shared_bench: DraBench) -> DraBench:
    asyncio.run(occupy(shared_bench))
    return shared_bench


Change = Callable[[DraBench, partitions.Container], object]


def grant(*, key: str = "", value: str = "") -> Change:
    """Its one grant has another key or value."""

    def change(_: DraBench, shown: partitions.Container) -> None:
        shown.grants[0].key = key or shown.grants[0].key
        shown.grants[0].value = value or shown.grants[0].value

    return change


def also_grants_of(claim: Manifest) -> Change:
    return lambda bench, shown: shown.grants.extend(bench.shown(claim, NEW).grants)


def mount(destination: str, source: str = "/srv/data", *options: str) -> Change:
    """It also has this volume; `{m}` in the source is the manager directory, `{cdi}`, `{kubelet}` and `{run}` the others."""

    def change(bench: DraBench, shown: partitions.Container) -> None:
        node = bench.node
        at = source.format(m=node.manager_dir, cdi=node.cdi_dir, kubelet=node.kubelet_dir, run=node.run_dir)
        shown.mounts.add(destination=destination, source=at, type="bind", options=options or ("rw", "rbind"))

    return change


def device(path: str, major: int, minor: int) -> Change:
    return lambda _, shown: shown.devices.add(path=path, type="c", major=major, minor=minor)


def no_devices(_: DraBench, shown: partitions.Container) -> None:
    del shown.devices[:]


def no_grants(_: DraBench, shown: partitions.Container) -> None:
    del shown.grants[:]


def same_grant_twice(_: DraBench, shown: partitions.Container) -> None:
    shown.grants.append(shown.grants[0])


def pod(**fields: str) -> Change:
    return lambda _, shown: shown.pod.MergeFrom(partitions.Pod(**fields))


def no_pod_name(_: DraBench, shown: partitions.Container) -> None:
    shown.pod.ClearField("name")


def container(name: str = "", runtime_id: str = "") -> Change:
    return lambda _, shown: shown.MergeFrom(partitions.Container(name=name, runtime_id=runtime_id))


def privileged(_: DraBench, shown: partitions.Container) -> None:
    shown.allows_all_devices = True
    shown.mounts.add(destination="/sys", source="sysfs", type="sysfs", options=["nosuid", "rw"])


INVALID, DENIED, PRECONDITION = Status.INVALID_ARGUMENT, Status.PERMISSION_DENIED, Status.FAILED_PRECONDITION
OURS = "/etc/vgpu-manager"

ENSURE: tuple[tuple[str, Manifest, Change, Status, tuple[str, ...]], ...] = (
    ("short id", FREE, container(runtime_id="abc"), INVALID, ("runtime container id is 'abc'", "64 lower-case hex")),
    ("id climbs", FREE, container(runtime_id="../" * 21 + "a"), INVALID, ("runtime container id", "64 lower-case hex")),
    ("name with a slash", FREE, container(name="a/b"), INVALID, ("container name is 'a/b'", "DNS label")),
    ("name climbs", FREE, container(name=".."), INVALID, ("container name is '..'", "DNS label")),
    ("name with NUL", FREE, container(name="a\0b"), INVALID, (r"'a\x00b'", "DNS label")),
    ("name and newline", FREE, container(name="a\n"), INVALID, (r"'a\n'", "DNS label")),
    ("name over-long", FREE, container(name="a" * 64), INVALID, ("container name", "at most 63")),
    ("static pod", FREE, pod(uid="fedcba9876543210fedcba9876543210"), INVALID, ("pod uid", "static pods have none")),
    ("namespace climbs", FREE, pod(namespace="../x"), INVALID, ("pod namespace is '../x'", "without a slash")),
    ("pod name with newline", FREE, pod(name="a\nb"), INVALID, (r"pod name is 'a\nb'", "printable")),
    ("no pod name", FREE, no_pod_name, INVALID, ("pod name is ''", "1 to 253")),
    ("no grant", FREE, no_grants, INVALID, ("container 'train'", "no grant", "VGPU_GRANT_")),
    ("grant key", FREE, grant(key="xyz"), INVALID, ("grant key is 'xyz'", "16 lower-case hex")),
    ("grant of text", FREE, grant(value="text"), INVALID, ("VGPU_GRANT_", "claim uid is 'text'", "lower-case UUID")),
    ("short nonce", FREE, grant(value=f"{FREE.uid}/gpu/abc"), INVALID, ("VGPU_GRANT_", "3 characters", "32 lower-case")),
    ("request climbs", FREE, grant(value=f"{FREE.uid}/../{NONCE}"), INVALID, ("VGPU_GRANT_", "request name is '..'")),
    ("grant twice", FREE, same_grant_twice, INVALID, ("same grant is shown twice",)),
    ("made-up nonce", FREE, grant(value=f"{FREE.uid}/gpu/{NONCE}"), DENIED, (WHO, "research/free", "not given by Prepare")),
    ("made-up key", FREE, grant(key="0123456789abcdef"), DENIED, (WHO, "0123456789abcdef", "not given by Prepare")),
    (
        "unprepared claim",
        FREE,
        grant(value=f"99999999-8f0a-4f57-9d0e-6a6d1b2c7e10/gpu/{NONCE}"),
        DENIED,
        (WHO, "99999999-8f0a-4f57-9d0e-6a6d1b2c7e10", "not prepared on this node"),
    ),
    ("copied grant", FREE, no_devices, DENIED, (WHO, "request gpu", "/dev/nvidia1", "another container's")),
    ("grant of another claim", FREE, also_grants_of(HELD), DENIED, (WHO, "request gpu", "/dev/nvidia2", "another container's")),
    ("another GPU", FREE, device("/dev/nvidia7", 195, 7), PRECONDITION, (WHO, "/dev/nvidia7", "no grant")),
    ("another GPU renamed", FREE, device("/dev/gpu", 195, 7), PRECONDITION, (WHO, "/dev/nvidia7", "no grant")),
    ("plain handler", FREE, pod(runtime_handler="kata"), PRECONDITION, (WHO, "'kata'", "'nvidia*'", "--runtime-handlers")),
    ("privileged", FREE, privileged, PRECONDITION, (WHO, "privileged", "--allow-privileged")),
    ("volume on ours", FREE, mount(OURS), PRECONDITION, (WHO, f"'{OURS}'", "hide or replace ours")),
    ("volume with a slash", FREE, mount(f"{OURS}/config/"), PRECONDITION, (WHO, f"'{OURS}/config/'", "mountPath")),
    ("volume below ours", FREE, mount(f"{OURS}/config/x"), PRECONDITION, (WHO, f"{OURS}/config/x", "hide or replace")),
    ("volume above ours", FREE, mount("/etc"), PRECONDITION, (WHO, "'/etc'", "hide or replace ours")),
    ("volume on the root", FREE, mount("//"), PRECONDITION, (WHO, "'//'", "hide or replace ours")),
    ("volume with dots", FREE, mount("/srv/../etc/ld.so.preload"), PRECONDITION, (WHO, "ld.so.preload", "mountPath")),
    ("volume on scratch", FREE, mount("/tmp/.sm_node"), PRECONDITION, (WHO, "/tmp/.sm_node", "mountPath")),
    ("read-only /tmp", FREE, mount("/tmp/", "/srv", "ro", "rbind"), PRECONDITION, (WHO, "read-only volume at /tmp")),
    ("the tree as a volume", FREE, mount("/a", "{m}/claims"), PRECONDITION, (WHO, "/claims", "no container may see")),
    ("above the tree", FREE, mount("/a", "{m}/.."), PRECONDITION, (WHO, "/..", "no container may see")),
    ("CDI files", FREE, mount("/a", "{cdi}"), PRECONDITION, (WHO, "/cdi", "no container may see")),
    ("kubelet's plug-ins", FREE, mount("/a", "{kubelet}/plugins/x"), PRECONDITION, (WHO, "plugins", "no container may")),
    ("private sockets", FREE, mount("/a", "{run}/partitions"), PRECONDITION, (WHO, "partitions", "no container may")),
    ("second holder", HELD, lambda *_: None, PRECONDITION, (WHO, "research/held", "container holder", "one live container")),
    ("dead holder", LOST, lambda *_: None, Status.UNAVAILABLE, (WHO, "has not yet said which containers live", "gpu")),
    (
        "stopped id",
        LEFT,
        container(name="stopped", runtime_id=STOPPED_ONE.runtime_id),
        Status.ABORTED,
        ("container stopped", "was released", "a new container is needed"),
    ),
)


@pytest.mark.parametrize(("claim", "change", "status", "words"), [r[1:] for r in ENSURE], ids=[r[0] for r in ENSURE])
async def test_container_that_may_not_have_its_partition_is_refused_in_words(
    bench: DraBench, claim: Manifest, change: Change, status: Status, words: tuple[str, ...]
) -> None:
    shown = bench.shown(claim, NEW)
    nonce = shown.grants[0].value.rpartition("/")[2]
    change(bench, shown)

    before = trees.stamps(*bench.roots)

    with pytest.raises(GRPCError) as refusal:
        await bench.calls.ensure(shown)

    said = refusal.value.message or ""
    assert refusal.value.status is status, said
    for word in words:
        assert word in said
    assert nonce not in said
    assert NONCE not in said
    assert trees.stamps(*bench.roots) == before


async def test_refusals_took_nothing_from_the_claim(bench: DraBench) -> None:
    answer = await bench.ensure(FREE, NEW)

    assert answer.claim_uid == FREE.uid
    assert answer.partition == NEW.partition
