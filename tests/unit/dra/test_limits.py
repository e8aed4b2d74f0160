"""Shares of a container as slots. The bytes are compared in tests/contract."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_dra.inventory import Inventory
from vgpu_dra.policy.assigner import Granted
from vgpu_dra.policy.limits import Holder, container_limits
from vgpu_dra.rules import Ratios
from vgpu_state.claims import ComputePolicy, Consumed, PreparedVgpu
from vgpu_state.errors import PreconditionFailed
from vgpu_state.vgpu_config import Limits, Slot
from vgpu_testkit.dra_values import GIB, INVENTORY, POD, RECORD, SERVER, TRAINER, gpu_uuid, h100

WHOLE = Ratios()
WHO = "claim research/two-workers (3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10)"


def limits(
    *shares: PreparedVgpu,
    inventory: Inventory = INVENTORY,
    policy: ComputePolicy = ComputePolicy.FIXED,
    ratios: Ratios = WHOLE,
) -> Limits:
    record = replace(RECORD, policy=policy)
    granted = Granted(record=record, results=shares)
    holder = Holder(pod=POD, container="train")
    return container_limits((granted,), holder=holder, inventory=inventory, ratios=ratios)


def share(cores: int, memory: int) -> PreparedVgpu:
    return replace(TRAINER, consumed=Consumed(cores_percent=cores, memory_bytes=memory))


def test_shares_of_two_gpus_have_a_slot_each_at_the_nvml_index() -> None:
    assert limits(TRAINER, SERVER).slots == {
        5: Slot(
            uuid="GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000005",
            memory_bytes=42949672960,
            real_memory_bytes=42949672960,
            cores_percent=50,
            ceiling_percent=50,
        ),
        1: Slot(
            uuid="GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000001",
            memory_bytes=8589934592,
            real_memory_bytes=8589934592,
            cores_percent=20,
            ceiling_percent=20,
        ),
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


@pytest.mark.parametrize(
    ("policy", "cores", "expected"),
    [
        (ComputePolicy.FIXED, 30, (30, 30)),
        (ComputePolicy.FIXED, 0, (0, 0)),
        (ComputePolicy.BALANCE, 30, (30, 100)),
        (ComputePolicy.BALANCE, 100, (100, 100)),
        (ComputePolicy.BALANCE, 0, (0, 0)),
        (ComputePolicy.NONE, 30, (100, 100)),
        (ComputePolicy.NONE, 0, (100, 100)),
    ],
)
def test_policy_says_what_the_percent_means(policy: ComputePolicy, cores: int, expected: tuple[int, int]) -> None:
    (slot,) = limits(share(cores, GIB), policy=policy).slots.values()

    assert (slot.cores_percent, slot.ceiling_percent) == expected


@pytest.mark.parametrize(
    ("ratio", "asked_gib", "expected"),
    [
        (100, 40, (42949672960, 42949672960)),
        (200, 40, (42949672960, 21474836480)),
        (200, 120, (128849018880, 64424509440)),
        (200, 200, (171041619968, 85520809984)),
        (150, 3, (3221225472, 2147483648)),
        (50, 40, (42759880704, 42759880704)),
    ],
)
def test_oversold_memory_lies_on_the_gpu_in_the_same_part_for_every_share(
    ratio: int, asked_gib: int, expected: tuple[int, int]
) -> None:
    (slot,) = limits(share(10, asked_gib * GIB), ratios=Ratios(memory_percent=ratio)).slots.values()

    assert (slot.memory_bytes, slot.real_memory_bytes) == expected


@given(
    ratio=st.integers(101, 1000),
    parts=st.lists(st.integers(1, 100), min_size=1, max_size=8),
)
def test_shares_that_fill_an_oversold_gpu_fit_on_it_with_their_real_memory(ratio: int, parts: list[int]) -> None:
    ratios = Ratios(memory_percent=ratio)
    whole = ratios.memory_bytes(81559 << 20)
    sizes = [whole * part // sum(parts) for part in parts]

    slots = [limits(share(1, size), ratios=ratios).slots[5] for size in sizes if size]

    assert sum(slot.memory_bytes for slot in slots) <= whole
    assert sum(slot.real_memory_bytes for slot in slots) <= 81559 << 20


def test_gpu_that_is_gone_is_refused() -> None:
    with pytest.raises(PreconditionFailed) as refusal:
        limits(TRAINER, inventory=replace(INVENTORY, gpus=(h100(0),)))

    assert str(refusal.value) == (
        f"{WHO} request trainer: GPU GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000005 is not on this node any more"
    )


def test_gpu_that_was_partitioned_since_is_refused() -> None:
    """Whoever switched MIG on found it idle: the claim was prepared, and its container not running just then."""
    with pytest.raises(PreconditionFailed) as refusal:
        limits(TRAINER, inventory=replace(INVENTORY, gpus=(replace(h100(5), is_mig=True),)))

    assert str(refusal.value) == f"{WHO} request trainer: GPU {gpu_uuid(5)} is in MIG mode, where no share of it runs"


def test_gpu_whose_index_has_no_slot_now_is_refused() -> None:
    """The index may change at a reboot; a GPU without a slot would be seen without limits."""
    moved = replace(h100(5), index=16)

    with pytest.raises(PreconditionFailed) as refusal:
        limits(TRAINER, inventory=replace(INVENTORY, gpus=(moved,)))

    assert moved.uuid == gpu_uuid(5)
    assert str(refusal.value) == f"{WHO} request trainer: GPU index 16 has no slot in the limits file (0 to 15)"
