"""Durations of one kind, what is said of them, and what the machine did meanwhile."""

from __future__ import annotations

import os
import random
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_RESAMPLES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of two medians, and its 95 % interval by bootstrap, which knows nothing of drift between rounds."""

    value: float
    low: float
    high: float


def p50(took: Sequence[float]) -> float:
    return statistics.median(took)


def p99(took: Sequence[float]) -> float:
    """The value that one of a hundred exceeds; of fewer, the greatest."""
    return sorted(took)[min(len(took) - 1, int(len(took) * 0.99))]


def ratio(took: Sequence[float], base: Sequence[float]) -> Ratio:
    drawn = sorted(p50(random.choices(took, k=len(took))) / p50(random.choices(base, k=len(base))) for _ in range(_RESAMPLES))
    return Ratio(value=p50(took) / p50(base), low=drawn[int(_RESAMPLES * 0.025)], high=drawn[int(_RESAMPLES * 0.975)])


def rss_mib(pid: int) -> float:
    """What a process holds in memory now."""
    rows = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return next(int(row[1]) for row in rows if row[0] == "VmRSS:") / 1024


def cpu_ms(pid: int) -> float:
    """CPU time that the threads of a process have used. It says what work costs on a machine that is busy with other things."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e6


def sync_ms(folder: Path) -> float:
    """What one durable write costs here: 1 KiB to a new file, fsync, rename, fsync of the directory, in ms."""
    began = time.perf_counter()
    staged = folder / ".probe"
    with staged.open("wb") as file:
        file.write(b"x" * 1024)
        file.flush()
        os.fsync(file.fileno())
    staged.rename(folder / "probe")
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return (time.perf_counter() - began) * 1000


class MachineWatch:
    """How busy the machine was with others, from its construction on."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy_s = _busy_s()
        self._ours_s = _ours_s()

    def others_percent(self) -> float:
        """Of the machine's CPU time, what others than this process and its ended children have used."""
        capacity_s = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        return max(0.0, 100 * ((_busy_s() - self._busy_s) - (_ours_s() - self._ours_s)) / capacity_s)


def _busy_s() -> float:
    """CPU time that the machine has worked since its start, in all processes. Idle and waiting for the disk are not work."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def _ours_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
