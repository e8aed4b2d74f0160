"""What an API server is taken to keep, from its release and from what it made of a rehearsal."""

from __future__ import annotations

from typing import Any

import pytest

from vgpu_dra.policy.features import Features, judge_features, rehearsal
from vgpu_state.ids import NodeName
from vgpu_testkit import api_slice_rules
from vgpu_testkit.api_slice_gates import Gates

NOTHING = Features(has_counters=False, has_taints=False, has_informing_taints=False)


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        (Gates(), Features(has_counters=True, has_taints=True, has_informing_taints=True)),
        (Gates(release=(1, 35)), Features(has_counters=True, has_taints=True, has_informing_taints=False)),
        (Gates(release=(1, 34)), Features(has_counters=False, has_taints=True, has_informing_taints=False)),
        (Gates(partitionable_devices=False), Features(has_counters=False, has_taints=True, has_informing_taints=True)),
        (Gates(device_taints=False), Features(has_counters=True, has_taints=False, has_informing_taints=False)),
        (Gates(release=(1, 34), device_taints=False, partitionable_devices=False), NOTHING),
    ],
)
def test_features_are_what_is_left_of_the_rehearsal(gates: Gates, expected: Features) -> None:
    asked: dict[str, Any] = dict(rehearsal(NodeName("node-a"), version=gates.release))

    assert api_slice_rules.refusals(gates.kept(asked, None), release=gates.release) == []
    assert judge_features(gates.release, gates.kept(asked, None)["spec"]) == expected


def test_an_answer_without_devices_keeps_nothing() -> None:
    assert judge_features((1, 37), {"pool": {}}) == NOTHING
