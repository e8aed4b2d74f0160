"""What a container of a claim is given where NRI adjusts it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vgpu_dra.policy.assigner import Granted, Placement
from vgpu_dra.policy.assigners import LAZY
from vgpu_dra.rules import Ratios
from vgpu_state.claims import ClaimRef, ComputePolicy, Consumed
from vgpu_state.container_abi import Mount
from vgpu_state.ids import ClaimUid, ContainerName, GrantKey
from vgpu_state.vgpu_config import Slot
from vgpu_testkit.dra_values import BINDING, CLAIM_UID, GIB, HOST, INVENTORY, PARTITION, POD, RECORD, SERVER, TRAINER

TRAIN = ContainerName("train")
OTHER_CLAIM = ClaimRef(namespace="research", name="more", uid=ClaimUid("9a0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10"))
# A share of the same GPU as the trainer's, of another claim.
MORE = replace(
    TRAINER,
    consumed=Consumed(cores_percent=30, memory_bytes=8 * GIB),
    grant=replace(TRAINER.grant, key=GrantKey("b" * 16)),
)
OTHER_RECORD = replace(RECORD, claim=OTHER_CLAIM, results=(MORE,))
BOTH = (Granted(record=RECORD, results=(TRAINER,)), Granted(record=OTHER_RECORD, results=(MORE,)))


@pytest.fixture
def placement() -> Placement:
    return LAZY.at_create(POD, TRAIN, BOTH[:1], host=HOST)


def test_adjustment_mounts_the_containers_own_limits_and_fresh_scratch(placement: Placement) -> None:
    config, *scratch = placement.adjustment.mounts

    assert (placement.claim_uid, placement.name) == (CLAIM_UID, PARTITION)
    assert config == Mount(
        destination="/etc/vgpu-manager/config",
        source=(
            "/etc/vgpu-manager/claims/3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10/0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c11_train/config"
        ),
        type="bind",
        options=("ro", "nosuid", "nodev", "bind"),
    )
    assert [(m.destination, m.source, m.type) for m in scratch] == [
        ("/tmp/.vgpu_lock", "tmpfs", "tmpfs"),
        ("/tmp/.vmem_node", "tmpfs", "tmpfs"),
        ("/tmp/.sm_node", "tmpfs", "tmpfs"),
    ]
    assert {m.options for m in scratch} == {("rw", "nosuid", "nodev", "noexec", "size=2m", "nr_inodes=64", "mode=0777")}


def test_adjustment_says_who_the_container_is_and_shadows_a_register_uuid_of_its_image(placement: Placement) -> None:
    assert placement.adjustment.env == (
        ("VGPU_POD_NAME", "two-workers-0"),
        ("VGPU_POD_NAMESPACE", "research"),
        ("VGPU_POD_UID", "0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c11"),
        ("VGPU_CONTAINER_NAME", "train"),
        ("MANAGER_CLIENT_REGISTER_UUID", ""),
    )


def test_container_with_two_claims_has_one_partition_in_the_lowest() -> None:
    placement = LAZY.at_create(POD, TRAIN, BOTH, host=HOST)

    assert (placement.claim_uid, placement.name) == (CLAIM_UID, PARTITION)
    assert [m.destination for m in placement.adjustment.mounts].count("/etc/vgpu-manager/config") == 1


def test_limits_of_two_claims_are_merged_per_gpu() -> None:
    granted = (Granted(record=RECORD, results=(TRAINER, SERVER)), BOTH[1])

    limits = LAZY.limits(BINDING, granted, inventory=INVENTORY, ratios=Ratios())

    assert {index: (s.memory_bytes, s.cores_percent) for index, s in limits.slots.items()} == {
        5: (48 * GIB, 80),
        1: (8 * GIB, 20),
    }


@pytest.mark.parametrize(
    ("one", "other", "cores", "ceiling"),
    [
        (ComputePolicy.FIXED, ComputePolicy.NONE, 80, 80),
        (ComputePolicy.BALANCE, ComputePolicy.FIXED, 80, 80),
        (ComputePolicy.NONE, ComputePolicy.BALANCE, 80, 100),
        (ComputePolicy.NONE, ComputePolicy.NONE, 100, 100),
    ],
)
def test_strictest_policy_of_the_claims_on_a_gpu_holds_for_it(
    one: ComputePolicy, other: ComputePolicy, cores: int, ceiling: int
) -> None:
    granted = (
        Granted(record=replace(RECORD, policy=one), results=(TRAINER,)),
        Granted(record=replace(OTHER_RECORD, policy=other), results=(MORE,)),
    )

    slot: Slot = LAZY.limits(BINDING, granted, inventory=INVENTORY, ratios=Ratios()).slots[5]

    assert (slot.cores_percent, slot.ceiling_percent) == (cores, ceiling)
