"""When to try again: the reconnect schedule as a pure iterator, and how the nodes of a cluster are spread over a pause."""

from __future__ import annotations

from collections.abc import Iterator

FIRST_S = 1.0
LONGEST_S = 30.0


def delays_s(*, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> Iterator[float]:
    """Seconds to wait before each further attempt: doubling from `first_s` up to `longest_s`, for ever."""
    delay = first_s
    while True:
        yield delay
        delay = min(delay * 2, longest_s)


def jittered_s(seconds: float, *, chance: float) -> float:
    """Between half and all of `seconds`, as `chance` from 0 to 1 says: the nodes of a cluster do not all come at one moment."""
    return seconds * (0.5 + chance / 2)
