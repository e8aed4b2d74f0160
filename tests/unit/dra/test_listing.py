"""What kubelet lists for a container against what the container shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vgpu_dra.policy.listing import ListedDevice, Listing, Word, judge_listing
from vgpu_state.claims import PreparedVgpu
from vgpu_state.errors import PermissionRefused
from vgpu_state.ids import ShareId
from vgpu_testkit.dra_values import CLAIM, FACTS, LISTED, SERVER, TRAINER

UNSHARED = replace(TRAINER, share_id=ShareId(""))


def listing(*devices: ListedDevice, container: str = "train") -> Listing:
    return Listing(containers={container: frozenset(devices)})


@pytest.mark.parametrize(
    ("result", "listed"),
    [
        (TRAINER, LISTED),
        (TRAINER, replace(LISTED, share_id=None)),  # a kubelet before 1.35
        (UNSHARED, replace(LISTED, share_id=None)),
        (UNSHARED, replace(LISTED, share_id="")),
    ],
)
def test_device_that_kubelet_lists_is_confirmed(result: PreparedVgpu, listed: ListedDevice) -> None:
    told = listing(replace(LISTED, device="vgpu-1"), listed, replace(LISTED, driver="gpu.example.com"))

    assert judge_listing(FACTS, [result], claim=CLAIM, listing=told) is Word.CONFIRMED


@pytest.mark.parametrize(
    ("result", "listed"),
    [
        (TRAINER, replace(LISTED, claim_namespace="other")),
        (TRAINER, replace(LISTED, claim_name="other")),
        (TRAINER, replace(LISTED, driver="gpu.example.com")),
        (TRAINER, replace(LISTED, pool="node-b")),
        (TRAINER, replace(LISTED, device="vgpu-1")),
        (TRAINER, replace(LISTED, share_id="51c7b0de-9a39-4d0c-a3b4-5d4f9d3a7702")),
        (TRAINER, replace(LISTED, share_id="")),
        (UNSHARED, LISTED),
    ],
)
def test_device_of_which_kubelet_lists_another_is_refused(result: PreparedVgpu, listed: ListedDevice) -> None:
    with pytest.raises(PermissionRefused, match="shows a grant of request trainer"):
        judge_listing(FACTS, [result], claim=CLAIM, listing=listing(listed))


def test_refusal_names_container_claim_and_device() -> None:
    with pytest.raises(PermissionRefused) as refusal:
        judge_listing(FACTS, [TRAINER], claim=CLAIM, listing=listing())

    assert str(refusal.value) == (
        "container train of pod research/two-workers-0 shows a grant of request trainer of claim research/two-workers "
        "(3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10), and kubelet does not list device node-a/vgpu-5 (share "
        "8a2d4a8e-0c1b-4a55-8f5e-0f5b7b1e2c01) of that claim for it: the grant is another container's"
    )


def test_every_result_must_be_listed() -> None:
    with pytest.raises(PermissionRefused, match=r"request server of claim .* does not list device node-a/vgpu-1"):
        judge_listing(FACTS, [TRAINER, SERVER], claim=CLAIM, listing=listing(LISTED))


def test_container_that_kubelet_does_not_list_is_told_apart() -> None:
    told = listing(LISTED, container="other")

    assert judge_listing(FACTS, [TRAINER], claim=CLAIM, listing=told) is Word.UNLISTED
