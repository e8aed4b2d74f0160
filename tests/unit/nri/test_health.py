"""What the probes say, over time."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu_nri.health import Health


class _Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def health(clock: _Clock, tmp_path: Path) -> Health:
    return Health(clock=clock, episode=tmp_path / "episode")


def test_process_is_ready_once_synchronized(health: Health) -> None:
    assert health.ready() == "starting"
    health.connected()
    assert health.ready() == "connected, not synchronized yet"

    health.synchronized()

    assert health.ready() is None


def test_standby_is_ready_and_live_for_ever(health: Health, clock: _Clock) -> None:
    health.standby()
    clock.now += 100_000

    assert health.ready() is None
    assert health.live() is None


def test_unreachable_runtime_is_not_ready_with_the_sentence_and_live(health: Health, clock: _Clock) -> None:
    health.unreachable("NRI socket s: Connection refused; is NRI enabled in the runtime?")
    clock.now += 100_000

    assert health.ready() == ("the runtime cannot be reached: NRI socket s: Connection refused; is NRI enabled in the runtime?")
    assert health.live() is None


@pytest.mark.parametrize(("elapsed_s", "live"), [(119.0, True), (121.0, False)])
def test_reachable_runtime_without_a_session_for_two_minutes_is_not_live(
    health: Health, clock: _Clock, elapsed_s: float, live: bool
) -> None:
    for _ in range(3):  # what is measured begins with the first connection, however often it is made anew
        health.connected()
        health.closed("the runtime closed the connection")
        clock.now += elapsed_s / 3

    assert (health.live() is None) is live


def test_runtime_that_goes_away_begins_the_two_minutes_anew(health: Health, clock: _Clock) -> None:
    health.connected()
    clock.now += 119
    health.unreachable("away")
    clock.now += 50
    health.connected()
    clock.now += 119

    assert health.live() is None


def test_session_that_ends_begins_the_two_minutes(health: Health, clock: _Clock) -> None:
    health.connected()
    health.synchronized()
    clock.now += 100_000
    assert health.live() is None

    health.closed("the runtime closed the connection")
    clock.now += 121

    assert health.live() == (
        "the runtime can be reached, and for 121 s there has been no session: "
        "the session ended: the runtime closed the connection"
    )


def test_restart_is_asked_for_once_until_a_session_stood_again(health: Health, clock: _Clock, tmp_path: Path) -> None:
    health.connected()
    clock.now += 121
    assert health.live() is not None

    restarted = Health(clock=clock, episode=tmp_path / "episode")
    restarted.connected()
    clock.now += 121
    assert restarted.live() is None

    restarted.synchronized()
    restarted.closed("")
    clock.now += 121
    assert restarted.live() is not None
