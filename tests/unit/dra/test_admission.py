"""Whether a container may have what its grants say: one test per refusal, with the words that a user reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vgpu_dra.policy import admission
from vgpu_dra.policy.admission import ContainerFacts, ShownDevice
from vgpu_dra.policy.assigner import Granted
from vgpu_dra.rules import NodeRules, parse_runtime_handlers
from vgpu_state.claims import ClaimState, PreparedVgpu
from vgpu_state.container_abi import Mount
from vgpu_state.errors import MalformedInput, PermissionRefused, PreconditionFailed
from vgpu_state.grants import ShownGrant
from vgpu_state.ids import ClaimUid, GrantKey, Nonce, RequestName
from vgpu_testkit.dra_values import (
    CDI_MOUNTS,
    CLAIM_UID,
    FACTS,
    INVENTORY,
    RECORD,
    RULES,
    SERVER,
    SERVER_GRANT,
    TRAINER,
    TRAINER_GRANT,
    gpu_node,
    h100,
)

WHO = "container train of pod research/two-workers-0"
TRAINED = (Granted(record=RECORD, results=(TRAINER,)),)
BIND = ("rbind", "rprivate", "rw")


def volume(destination: str, *, source: str = "/var/lib/kubelet/pods/x/volumes/data", options: tuple[str, ...] = BIND) -> Mount:
    return Mount(destination=destination, source=source, type="bind", options=options)


def with_mount(*mounts: Mount) -> ContainerFacts:
    return replace(FACTS, mounts=(*CDI_MOUNTS, *mounts))


def check(facts: ContainerFacts = FACTS, *, results: tuple[PreparedVgpu, ...] = (TRAINER,), rules: NodeRules = RULES) -> None:
    admission.check_container(facts, [Granted(record=RECORD, results=results)], rules=rules, inventory=INVENTORY)


def refused(facts: ContainerFacts, *, results: tuple[PreparedVgpu, ...] = (TRAINER,), rules: NodeRules = RULES) -> str:
    with pytest.raises(PreconditionFailed) as refusal:
        check(facts, results=results, rules=rules)
    return str(refusal.value)


def test_container_with_our_edits_only_is_allowed() -> None:
    check()


def test_container_with_both_gpus_of_the_claim_is_allowed() -> None:
    facts = replace(FACTS, grants=(TRAINER_GRANT, SERVER_GRANT), devices=(*FACTS.devices, gpu_node(1)))

    check(facts, results=(TRAINER, SERVER))


# Grants


def test_claims_of_a_container_ascend() -> None:
    other = replace(SERVER_GRANT, claim_uid=ClaimUid("11111111-2222-4333-8444-555555555555"))

    assert admission.claims_of(replace(FACTS, grants=(TRAINER_GRANT, SERVER_GRANT))) == (CLAIM_UID,)
    assert admission.claims_of(replace(FACTS, grants=(TRAINER_GRANT, other))) == (other.claim_uid, CLAIM_UID)


def test_grants_of_another_claim_give_nothing_of_this_one() -> None:
    other = replace(SERVER_GRANT, claim_uid=ClaimUid("11111111-2222-4333-8444-555555555555"))

    granted = admission.granted_of(replace(FACTS, grants=(other, TRAINER_GRANT)), CLAIM_UID, RECORD)

    assert granted == Granted(record=RECORD, results=(TRAINER,))


def test_granted_results_stand_in_the_claims_order() -> None:
    facts = replace(FACTS, grants=(SERVER_GRANT, TRAINER_GRANT))

    assert admission.granted_of(facts, CLAIM_UID, RECORD).results == (TRAINER, SERVER)
    assert admission.granted_of(FACTS, CLAIM_UID, RECORD).results == (TRAINER,)


@pytest.mark.parametrize("record", [None, replace(RECORD, state=ClaimState.STARTED)])
def test_grant_of_a_claim_that_is_not_prepared_is_refused(record: None) -> None:
    with pytest.raises(PermissionRefused) as refusal:
        admission.granted_of(FACTS, CLAIM_UID, record)

    assert str(refusal.value) == (
        f"{WHO} shows a grant of claim 3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10, which is not prepared on this node"
    )


@pytest.mark.parametrize(
    "grant",
    [
        replace(TRAINER_GRANT, nonce=Nonce("0" * 32)),
        replace(TRAINER_GRANT, nonce=SERVER_GRANT.nonce),
        replace(TRAINER_GRANT, request=RequestName("server")),
        replace(TRAINER_GRANT, request=RequestName("trainer/large")),
    ],
    ids=["unknown nonce", "another device's nonce", "wrong request", "an alternative that was not taken"],
)
def test_grant_that_prepare_did_not_give_is_refused(grant: ShownGrant) -> None:
    with pytest.raises(PermissionRefused) as refusal:
        admission.granted_of(replace(FACTS, grants=(grant,)), CLAIM_UID, RECORD)

    assert str(refusal.value) == (
        f"{WHO}: grant 4e2893ec0fa33030 of claim research/two-workers (3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10) is unknown; it was "
        "not given by Prepare"
    )


def test_made_up_key_is_refused() -> None:
    grant = replace(TRAINER_GRANT, key=GrantKey("0" * 16))

    with pytest.raises(PermissionRefused, match=r"grant 0000000000000000 of claim .* is unknown"):
        admission.granted_of(replace(FACTS, grants=(TRAINER_GRANT, grant)), CLAIM_UID, RECORD)


# Runtime handler, privilege


def test_runtime_handler_outside_the_list_is_refused() -> None:
    assert refused(replace(FACTS, runtime_handler="kata-qemu")) == (
        f"{WHO} runs under runtime handler 'kata-qemu', where mounts may not hold; allowed are '', 'nvidia*' (--runtime-handlers)"
    )


@pytest.mark.parametrize("handler", ["", "nvidia", "nvidia-cdi"])
def test_runtime_handler_of_the_list_is_allowed(handler: str) -> None:
    check(replace(FACTS, runtime_handler=handler))


def test_pattern_of_handlers_matches_the_whole_name() -> None:
    assert "kata-nvidia" in refused(replace(FACTS, runtime_handler="kata-nvidia"))
    assert "Nvidia" in refused(replace(FACTS, runtime_handler="Nvidia"))


def test_handler_patterns_are_split_at_commas_and_hold_no_spaces() -> None:
    assert parse_runtime_handlers(",nvidia*") == ("", "nvidia*")
    with pytest.raises(MalformedInput) as refusal:
        parse_runtime_handlers("runc, nvidia")
    assert str(refusal.value) == "--runtime-handlers is 'runc, nvidia'; expected patterns joined by commas, without spaces"


SYS_WRITABLE = Mount(destination="/sys", source="sysfs", type="sysfs", options=("nosuid", "noexec", "nodev", "rw"))
SYS_READ_ONLY = Mount(destination="/sys", source="sysfs", type="sysfs", options=("nosuid", "noexec", "nodev", "ro"))
PRIVILEGED = replace(FACTS, mounts=(*CDI_MOUNTS, SYS_WRITABLE), allows_all_devices=True)


def test_privileged_container_is_refused() -> None:
    assert refused(PRIVILEGED) == (
        f"{WHO} is privileged (writable /sys, every device allowed): it could undo its limits and change the library of all "
        "others; make it unprivileged or set --allow-privileged=true"
    )


def test_privileged_container_is_allowed_where_the_flag_says_so() -> None:
    check(PRIVILEGED, rules=replace(RULES, allows_privileged=True))


def test_half_of_the_signs_of_privilege_is_none() -> None:
    check(replace(PRIVILEGED, allows_all_devices=False))
    check(replace(PRIVILEGED, mounts=(*CDI_MOUNTS, SYS_READ_ONLY)))


# Devices


def test_copied_grant_without_its_device_node_is_refused() -> None:
    with pytest.raises(PermissionRefused) as refusal:
        check(replace(FACTS, devices=FACTS.devices[1:]))

    assert str(refusal.value) == (
        f"{WHO} shows a grant of request trainer and was not given its device /dev/nvidia5: the grant is another container's"
    )


def test_grant_of_one_gpu_with_the_node_of_another_is_refused() -> None:
    with pytest.raises(PermissionRefused, match="was not given its device /dev/nvidia5"):
        check(replace(FACTS, devices=(gpu_node(1),)))


ALSO_SEES = (
    f"{WHO} also sees /dev/nvidia3, for which it has no grant: the enforcement library stops a process that sees a GPU without "
    "limits; give the whole GPU, MIG device or host path that brings it to another container"
)


@pytest.mark.parametrize(
    "device",
    [
        gpu_node(3),
        ShownDevice(path="/dev/nvidia3", major=1, minor=3),
        ShownDevice(path="/dev/./x/../nvidia3", major=1, minor=3),
        ShownDevice(path="//dev/nvidia3", major=1, minor=3),
        ShownDevice(path="/dev/mygpu", major=195, minor=3),
        ShownDevice(path="/dev/nvidiactl", major=195, minor=3),
        ShownDevice(path="/dev/nvidia5", major=195, minor=3),
    ],
)
def test_another_gpus_node_is_refused_under_any_name(device: ShownDevice) -> None:
    assert refused(replace(FACTS, devices=(*FACTS.devices, device))) == ALSO_SEES


def test_control_nodes_of_nvidia_are_no_gpus() -> None:
    nodes = (
        ShownDevice(path="/dev/nvidia-modeset", major=195, minor=254),
        ShownDevice(path="/dev/nvidia-caps/nvidia-cap1", major=236, minor=1),
        ShownDevice(path="/dev/null", major=1, minor=3),
        ShownDevice(path="/opt/dev/nvidia3", major=1, minor=3),
    )

    check(replace(FACTS, devices=(*FACTS.devices, *nodes)))


def test_gpu_that_left_the_node_is_refused() -> None:
    with pytest.raises(PreconditionFailed) as refusal:
        admission.check_container(FACTS, TRAINED, rules=RULES, inventory=replace(INVENTORY, gpus=(h100(0),)))

    assert str(refusal.value) == (
        f"{WHO}: GPU GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000005 of request trainer is not on this node any more"
    )


def test_node_is_looked_for_by_todays_minor() -> None:
    inventory = replace(INVENTORY, gpus=(h100(5, minor=2), h100(1, minor=5)))

    with pytest.raises(PermissionRefused, match="was not given its device /dev/nvidia2"):
        admission.check_container(FACTS, TRAINED, rules=RULES, inventory=inventory)
    admission.check_container(replace(FACTS, devices=(gpu_node(2),)), TRAINED, rules=RULES, inventory=inventory)


# Destinations


@pytest.mark.parametrize(
    ("destination", "ours"),
    [
        ("/etc/vgpu-manager", "/etc/vgpu-manager"),
        ("/etc/vgpu-manager/", "/etc/vgpu-manager"),
        ("//etc//vgpu-manager", "/etc/vgpu-manager"),
        ("/etc/./vgpu-manager", "/etc/vgpu-manager"),
        ("/x/../etc/vgpu-manager", "/etc/vgpu-manager"),
        ("etc/vgpu-manager", "/etc/vgpu-manager"),
        ("/etc/vgpu-manager/config", "/etc/vgpu-manager"),
        ("/etc/vgpu-manager/config/vgpu.config", "/etc/vgpu-manager"),
        ("/etc/vgpu-manager/registry/socket.sock", "/etc/vgpu-manager"),
        ("/etc/vgpu-manager/watcher", "/etc/vgpu-manager"),
        ("/etc", "/etc/vgpu-manager"),
        ("/", "/etc/vgpu-manager"),
        ("/etc/ld.so.preload", "/etc/ld.so.preload"),
        ("/tmp/.vgpu_lock", "/tmp/.vgpu_lock"),
        ("/tmp/.vmem_node/", "/tmp/.vmem_node"),
        ("/tmp/.sm_node/x", "/tmp/.sm_node"),
    ],
)
def test_mount_at_below_or_above_our_destinations_is_refused(destination: str, ours: str) -> None:
    assert refused(with_mount(volume(destination))) == (
        f"{WHO} has a mount at {destination!r}, which would hide or replace ours at {ours}; choose another mountPath"
    )


@pytest.mark.parametrize(
    "destination", ["/etc/hosts", "/etc/vgpu-manager2", "/etc/ld.so.preload.d", "/tmp/.vgpu_locks", "/tmp/x", "/data", "/usr"]
)
def test_mount_beside_our_destinations_is_allowed(destination: str) -> None:
    check(with_mount(volume(destination)))


def test_writable_volume_on_tmp_is_allowed() -> None:
    check(with_mount(volume("/tmp"), volume("/tmp/")))


@pytest.mark.parametrize("option", ["ro", "rro"])
def test_read_only_volume_on_tmp_is_refused(option: str) -> None:
    assert refused(with_mount(volume("/tmp", options=("rbind", "rprivate", option)))) == (
        f"{WHO} mounts a read-only volume at /tmp, where the enforcement library keeps its scratch; make it writable"
    )


def test_mount_with_our_destination_and_another_source_is_the_users() -> None:
    mount = replace(CDI_MOUNTS[1], source="/var/lib/kubelet/pods/x/volumes/evil")

    assert refused(replace(FACTS, mounts=(*CDI_MOUNTS, mount))) == (
        f"{WHO} has a mount at '/etc/vgpu-manager/registry', which would hide or replace ours at /etc/vgpu-manager; choose "
        "another mountPath"
    )


def test_mount_like_ours_that_is_writable_is_the_users() -> None:
    """A hostPath volume can name our source and our destination, but not take away the write protection."""
    mount = replace(CDI_MOUNTS[1], options=("rbind", "rprivate", "rw"))

    assert "has a mount at '/etc/vgpu-manager/registry'" in refused(replace(FACTS, mounts=(mount,)))


def test_poison_of_another_claim_is_the_users() -> None:
    mount = replace(CDI_MOUNTS[4], source="/etc/vgpu-manager/claims/11111111-2222-4333-8444-555555555555/created-without-nri")

    assert "has a mount at '/etc/vgpu-manager/config'" in refused(replace(FACTS, mounts=(mount,)))


# Sources


@pytest.mark.parametrize(
    ("source", "private"),
    [
        ("/etc/vgpu-manager", "/etc/vgpu-manager"),
        ("//etc//vgpu-manager", "/etc/vgpu-manager"),
        ("/etc/vgpu-manager/", "/etc/vgpu-manager"),
        ("/etc/vgpu-manager/claims", "/etc/vgpu-manager"),
        ("/srv/../etc/vgpu-manager/registry", "/etc/vgpu-manager"),
        ("/etc", "/etc/vgpu-manager"),
        ("/", "/etc/vgpu-manager"),
        ("/var/run/cdi", "/var/run/cdi"),
        ("/run/cdi", "/var/run/cdi"),
        ("/run", "/var/run/cdi"),
        ("/var", "/var/run/cdi"),
        ("/run/vgpu-manager/partitions", "/run/vgpu-manager"),
        ("/var/run/vgpu-manager/partitions", "/run/vgpu-manager"),
        ("/var/lib/kubelet", "/var/lib/kubelet/plugins"),
        ("/var/lib/kubelet/plugins/manager.nvidia.com/dra.sock", "/var/lib/kubelet/plugins"),
        ("/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins_registry"),
    ],
)
def test_mount_of_a_source_at_below_or_above_private_paths_is_refused(source: str, private: str) -> None:
    assert refused(with_mount(volume("/data", source=source))) == (
        f"{WHO} mounts host path {source!r}, which reaches {private}: no container may see the node's vGPU, CDI or kubelet "
        "plug-in files"
    )


@pytest.mark.parametrize(
    "mount",
    [
        volume("/data", source="/var/lib/kubelet/pods/x/volumes/data"),
        volume("/data", source="/var/lib/kubelet/plugins2"),
        volume("/data", source="/run/containerd/x"),
        volume("/data", source="/etc/vgpu-manager-notes"),
        Mount(destination="/proc", source="proc", type="proc", options=("nosuid", "noexec", "nodev")),
        Mount(destination="/dev/shm", source="shm", type="tmpfs", options=("nosuid",)),
        Mount(destination="/scratch", source="/", type="tmpfs", options=("nosuid",)),
    ],
)
def test_mount_of_another_source_is_allowed(mount: Mount) -> None:
    check(with_mount(mount))


@pytest.mark.parametrize("kind", ["", "bind", "none"])
def test_every_kind_of_bind_mount_is_looked_at(kind: str) -> None:
    mount = Mount(destination="/data", source="/etc/vgpu-manager", type=kind, options=("rw",))

    assert "reaches /etc/vgpu-manager" in refused(with_mount(mount))


def test_bind_by_option_is_looked_at_whatever_the_type() -> None:
    mount = Mount(destination="/data", source="/etc/vgpu-manager", type="ext4", options=("rbind",))

    assert "reaches /etc/vgpu-manager" in refused(with_mount(mount))
