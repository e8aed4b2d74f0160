"""The reconnect schedule, and pauses that differ from node to node."""

from __future__ import annotations

from itertools import islice

import pytest

from vgpu_daemon import backoff, boottime


def test_delays_double_up_to_the_longest_for_ever() -> None:
    assert list(islice(backoff.delays_s(), 8)) == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert list(islice(backoff.delays_s(first_s=0.5, longest_s=0.9), 3)) == [0.5, 0.9, 0.9]


@pytest.mark.parametrize(("chance", "seconds"), [(0.0, 5.0), (0.5, 7.5), (1.0, 10.0)])
def test_jittered_pause_is_between_half_and_all_of_it(chance: float, seconds: float) -> None:
    assert backoff.jittered_s(10.0, chance=chance) == seconds


def test_boot_clock_goes_forward_in_seconds_and_nanoseconds() -> None:
    seconds, nanoseconds, later = boottime.boottime_s(), boottime.boottime_ns(), boottime.boottime_s()

    assert seconds <= nanoseconds / 1e9 <= later
    with open("/proc/uptime") as uptime:
        assert abs(float(uptime.read().split()[0]) - later) < 60
