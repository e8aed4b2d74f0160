"""Shares of a container as slots. The bytes are compared in tests/contract."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_dra.inventory import Inventory
from vgpu_dra.policy.limits import container_limits
from vgpu_state.claims import Consumed, PreparedVgpu
from vgpu_state.errors import PreconditionFailed
from vgpu_state.ids import ContainerName
from vgpu_state.vgpu_config import Limits, Slot
from vgpu_testkit.dra_values import CLAIM, GIB, INVENTORY, POD, SERVER, TRAINER, gpu_uuid, h100

WHO = "claim research/two-workers (3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10)"


def limits(*shares: PreparedVgpu, inventory: Inventory = INVENTORY) -> Limits:
    return container_limits(shares, claim=CLAIM, pod=POD, container=ContainerName("train"), inventory=inventory)


def share(cores: int, memory: int) -> PreparedVgpu:
    return replace(TRAINER, consumed=Consumed(cores_percent=cores, memory_bytes=memory))


def test_shares_of_two_gpus_have_a_slot_each_at_the_nvml_index() -> None:
    assert limits(TRAINER, SERVER).slots == {
        5: Slot(uuid="GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000005", memory_bytes=42949672960, cores_percent=50),
        1: Slot(uuid="GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000001", memory_bytes=8589934592, cores_percent=20),
    }


def test_index_is_todays_and_not_the_minor() -> None:
    inventory = replace(INVENTORY, gpus=(replace(h100(5, minor=3), index=0),))

    assert list(limits(TRAINER, inventory=inventory).slots) == [0]


def test_shares_of_one_gpu_are_summed() -> None:
    (slot,) = limits(share(30, 8 * GIB), share(15, 4 * GIB)).slots.values()

    assert (slot.memory_bytes, slot.cores_percent) == (12884901888, 45)


def test_sums_end_at_the_card() -> None:
    (slot,) = limits(share(60, 60 * GIB), share(60, 60 * GIB)).slots.values()

    assert (slot.memory_bytes, slot.cores_percent) == (85520809984, 100)


@given(shares=st.lists(st.tuples(st.integers(0, 100), st.integers(1, 85520809984)), min_size=1, max_size=6))
def test_slot_never_exceeds_the_card_and_holds_each_share(shares: list[tuple[int, int]]) -> None:
    (slot,) = limits(*(share(cores, memory) for cores, memory in shares)).slots.values()

    assert max(m for _, m in shares) <= slot.memory_bytes <= 85520809984
    assert max(c for c, _ in shares) <= slot.cores_percent <= 100


def test_gpu_that_is_gone_is_refused() -> None:
    with pytest.raises(PreconditionFailed) as refusal:
        limits(TRAINER, inventory=replace(INVENTORY, gpus=(h100(0),)))

    assert str(refusal.value) == (
        f"{WHO} request trainer: GPU GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000005 is not on this node any more"
    )


def test_gpu_whose_index_has_no_slot_now_is_refused() -> None:
    """The index may change at a reboot; a GPU without a slot would be seen without limits."""
    moved = replace(h100(5), index=16)

    with pytest.raises(PreconditionFailed) as refusal:
        limits(TRAINER, inventory=replace(INVENTORY, gpus=(moved,)))

    assert moved.uuid == gpu_uuid(5)
    assert str(refusal.value) == f"{WHO} request trainer: GPU index 16 has no slot in the limits file (0 to 15)"
