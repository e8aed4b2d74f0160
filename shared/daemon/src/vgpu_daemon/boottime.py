"""The clock that grace periods and tombstones run on: it never jumps, and it goes on while the machine sleeps."""

from __future__ import annotations

import time


def boottime_s() -> float:
    """Seconds since boot, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boottime_ns() -> int:
    """Nanoseconds since boot, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
