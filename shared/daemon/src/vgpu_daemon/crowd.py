"""How many of something each group of peers has open, with a bound for all and one for each group."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bound:
    """At most `of_all`, and at most `of_group` for one group."""

    of_all: int
    of_group: int


class Crowd:
    """Counts what is open. A group without anything open costs nothing."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._open: Counter[str] = Counter()
        self._total = 0

    def enter(self, group: str) -> bool:
        """Whether one more may be opened; it counts then until `leave`."""
        if self._total >= self._bound.of_all or self._open[group] >= self._bound.of_group:
            return False
        self._total += 1
        self._open[group] += 1
        return True

    def leave(self, group: str) -> None:
        """One that had entered is closed."""
        self._total -= 1
        self._open[group] -= 1
        if not self._open[group]:
            del self._open[group]
