"""The create path's decisions, as tables."""

from __future__ import annotations

import pytest

from vgpu_nri import policy
from vgpu_nri.containers import ContainerState, DeviceRule, Pod, VgpuContainer
from vgpu_state.errors import MalformedInput

_A = "3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10"
_B = "11111111-2222-3333-4444-555555555555"
_NONCE = "00112233445566778899aabbccddeeff"


def _container(*values: str, pod: str = "pod-a", state: ContainerState = ContainerState.RUNNING) -> VgpuContainer:
    return VgpuContainer(
        runtime_id="a" * 64,
        name="main",
        pod=Pod(uid="u", namespace="ns" if pod else "", name=pod),
        grants=tuple((f"{number:016x}", value) for number, value in enumerate(values)),
        state=state,
    )


@pytest.mark.parametrize(
    ("timeout_ns", "deadline_s"),
    [(0, 1.0), (-5, 1.0), (2_000_000_000, 1.0), (1_000_000_000, 0.5), (30_000_000_000, 1.0), (1, 5e-10)],
)
def test_deadline_is_half_of_the_runtimes_and_at_most_one_second(timeout_ns: int, deadline_s: float) -> None:
    assert policy.hook_deadline_s(timeout_ns) == deadline_s


@pytest.mark.parametrize(
    ("taken_s", "timeout_ns", "late"),
    [(1.4, 2_000_000_000, False), (1.6, 2_000_000_000, True), (3.0, 0, False), (0.1, 100_000_000, True)],
)
def test_answer_after_three_quarters_of_the_timeout_is_late(taken_s: float, timeout_ns: int, late: bool) -> None:
    assert policy.is_late(taken_s, timeout_ns=timeout_ns) is late


@pytest.mark.parametrize(
    ("rule", "opens_all"),
    [
        (DeviceRule(is_allowed=True, type="", major=None, minor=None), True),
        (DeviceRule(is_allowed=True, type="a", major=None, minor=None), True),
        (DeviceRule(is_allowed=False, type="", major=None, minor=None), False),
        (DeviceRule(is_allowed=True, type="c", major=None, minor=None), False),
        (DeviceRule(is_allowed=True, type="b", major=None, minor=None), False),
        (DeviceRule(is_allowed=True, type="a", major=195, minor=None), False),
        (DeviceRule(is_allowed=True, type="a", major=None, minor=0), False),
    ],
)
def test_only_a_rule_for_every_type_and_number_opens_all_devices(rule: DeviceRule, opens_all: bool) -> None:
    deny = DeviceRule(is_allowed=False, type="", major=None, minor=None)

    assert policy.allows_all_devices([deny, rule]) is opens_all


def test_created_running_and_paused_containers_are_live() -> None:
    kept = policy.live_containers([_container(state=state) for state in ContainerState])

    assert [container.state.name for container in kept] == ["CREATED", "PAUSED", "RUNNING"]


def test_claims_are_named_once_each_in_order() -> None:
    container = _container(f"{_A}/x/{_NONCE}", f"{_B}/y/{_NONCE}", f"{_A}/z/sub/{_NONCE}")

    assert policy.claims_of(container) == (_B, _A)


def test_claims_of_a_malformed_grant_are_refused_and_still_shown_where_readable() -> None:
    container = _container(f"{_A}/x/{_NONCE}", "nonsense")

    assert policy.shown_claims(container) == _A
    with pytest.raises(MalformedInput, match="VGPU_GRANT_0000000000000001: claim uid is 'nonsense'"):
        policy.claims_of(container)


@pytest.mark.parametrize(
    ("container", "message"),
    [
        (_container(f"{_A}/x/{_NONCE}"), f"EnsurePartition of claim {_A} for container ns/pod-a/main: held"),
        (_container("nonsense"), "EnsurePartition for container ns/pod-a/main: held"),
        (_container(f"{_B}/x/{_NONCE}", pod=""), f"EnsurePartition of claim {_B} for container /main: held"),
    ],
)
def test_refusal_says_what_failed_of_which_claim_for_which_container(container: VgpuContainer, message: str) -> None:
    assert policy.refusal("EnsurePartition", container, "held") == message


def test_grants_are_in_no_repr() -> None:
    assert _NONCE not in repr(_container(f"{_A}/x/{_NONCE}"))
