"""By NRI or without it: what a claim that is prepared now is told, and for how long it is held before."""

from __future__ import annotations

import asyncio

import pytest

from vgpu_dra.assignment_mode import AssignmentMode
from vgpu_dra.nri_lease import NriLease
from vgpu_dra.policy import mode

SESSION = 77


class Clock:
    """Seconds, moved by hand."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> NriLease:
    return NriLease(clock)


def test_a_lease_lives_five_seconds_from_each_renewal_of_a_synchronized_session(lease: NriLease, clock: Clock) -> None:
    lives = [lease.is_alive()]
    for now_s, renews in ((1001.0, True), (1005.9, False), (1006.0, False), (1007.0, True), (1011.9, True), (1016.8, False)):
        clock.now_s = now_s
        if renews:
            lease.renew(SESSION, is_synchronized=True)
        lives.append(lease.is_alive())

    assert lives == [False, True, True, False, True, True, True]
    assert lease.renewed_at_s == 1011.9


def test_a_session_that_is_not_synchronized_renews_nothing(lease: NriLease, clock: Clock) -> None:
    clock.now_s = 1001.0

    lease.renew(SESSION, is_synchronized=False)

    assert (lease.is_alive(), lease.has_ever_lived, lease.renewed_at_s) == (False, False, 1000.0)


async def test_all_who_wait_go_on_at_the_renewal(lease: NriLease) -> None:
    async with asyncio.timeout(5), asyncio.TaskGroup() as waiting:
        waits = [waiting.create_task(lease.wait_alive(3600)) for _ in range(50)]
        await asyncio.sleep(0)
        lease.renew(SESSION, is_synchronized=False)
        await asyncio.sleep(0)
        assert not any(wait.done() for wait in waits)

        lease.renew(SESSION, is_synchronized=True)

    assert [wait.result() for wait in waits] == [True] * 50
    assert await lease.wait_alive(0)


async def test_a_wait_ends_without_a_renewal(lease: NriLease, clock: Clock) -> None:
    lease.renew(SESSION, is_synchronized=True)
    clock.now_s += 5

    assert not await lease.wait_alive(0)
    assert lease.has_ever_lived


@pytest.mark.parametrize(
    ("serving_for_s", "has_ever_lived", "expected"),
    [(0, False, 25), (10, False, 15), (20, False, 5), (24, False, 5), (3600, False, 5), (0, True, 5), (3600, True, 5)],
)
def test_a_lease_that_there_never_was_is_waited_for_longer_at_the_start(
    serving_for_s: float, has_ever_lived: bool, expected: float
) -> None:
    assert mode.patience_s(serving_for_s=serving_for_s, has_ever_lived=has_ever_lived) == expected


@pytest.mark.parametrize(
    ("is_nri_supported", "is_alive", "has_ever_lived", "reason"),
    [
        (True, True, True, None),
        (True, False, True, "nri_lost"),
        (True, False, False, "nri_absent"),
        (False, True, True, "nri_disabled"),
        (False, False, False, "nri_disabled"),
    ],
)
def test_reason_for_doing_without_nri(is_nri_supported: bool, is_alive: bool, has_ever_lived: bool, reason: str | None) -> None:
    assert reason == mode.eager_reason(is_nri_supported=is_nri_supported, is_alive=is_alive, has_ever_lived=has_ever_lived)


async def test_a_claim_waits_for_the_first_session_and_is_assigned_by_nri(lease: NriLease, clock: Clock) -> None:
    assigning = AssignmentMode(lease, is_nri_supported=True, clock=clock)
    async with asyncio.timeout(5), asyncio.TaskGroup() as preparing:
        choice = preparing.create_task(assigning.choose())
        await asyncio.sleep(0)
        assert not choice.done()

        lease.renew(SESSION, is_synchronized=True)

    assert choice.result() is None


async def test_without_nri_support_no_claim_waits(lease: NriLease, clock: Clock) -> None:
    choice = asyncio.create_task(AssignmentMode(lease, is_nri_supported=False, clock=clock).choose())
    await asyncio.sleep(0)

    assert choice.done()
    assert await choice == "nri_disabled"


@pytest.mark.parametrize(("ever_lived", "reason"), [(True, "nri_lost"), (False, "nri_absent")])
async def test_a_claim_whose_patience_ends_is_assigned_without_nri(
    lease: NriLease, clock: Clock, ever_lived: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mode, "RECONNECT_S", 0.0)
    lease.renew(SESSION, is_synchronized=ever_lived)
    assigning = AssignmentMode(lease, is_nri_supported=True, clock=clock)
    clock.now_s += 3600

    assert await assigning.choose() == reason


async def test_the_long_wait_begins_when_kubelet_is_served(
    lease: NriLease, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mode, "RECONNECT_S", 0.0)
    assigning = AssignmentMode(lease, is_nri_supported=True, clock=clock)
    clock.now_s += 3600  # a predecessor has served until now

    assigning.begin()

    async with asyncio.timeout(5), asyncio.TaskGroup() as preparing:
        choice = preparing.create_task(assigning.choose())
        for _ in range(10):
            await asyncio.sleep(0)
        lease.renew(SESSION, is_synchronized=True)
    assert choice.result() is None
