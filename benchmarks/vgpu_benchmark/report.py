"""The table of budgets: what is allowed, what was measured, whether it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vgpu_benchmark import samples
from vgpu_benchmark.rounds import EMPTY, FULL, Measured, Size

_SERVICES = {"nri-plugin": 55, "registry": 55, "dra-plugin": 120}  # MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line. No budget: it is only to be known. "": not measured on that node."""

    what: str
    counts: str = ""
    budget: str = ""
    full: str
    empty: str = ""
    holds: bool | None = None

    def line(self) -> str:
        verdict = {True: "holds", False: "**missed**", None: ""}[self.holds]
        return f"| {self.what} | {self.counts} | {self.budget} | {self.full} | {self.empty} | {verdict} |"


def report(measured: Measured, *, size: Size, machine: Mapping[str, Any]) -> str:
    """The tables, as Markdown."""
    rows = _Rows(measured, size)
    about = (
        f"A node with {size.claims} claims on 8 mock H100, a running container each, beside it a node without claims, in turns. "
        f"{machine['system']}, {machine['cpus']} cores, Python {machine['python']}; other processes had "
        f"{machine['others_percent']:.0f} % of the CPU time meanwhile. Times are p50 / p99 in ms."
    )
    full, empty = f"with {size.claims} claims", "without claims"
    return "\n\n".join(
        (
            about,
            "## Full node ÷ empty node, medians",
            _table(("what", "n", "budget", "ratio", "95 % interval", ""), rows.ratios()),
            "## Budgets",
            _table(("what", "n", "budget", full, empty, ""), rows.budgets()),
            "## For orientation",
            _table(("what", "n", "", full, empty, ""), rows.others()),
        )
    )


def _table(titles: Sequence[str], rows: Iterable[Row]) -> str:
    head = (f"| {' | '.join(titles)} |", "|---" * len(titles) + "|")
    return "\n".join((*head, *(row.line() for row in rows)))


class _Rows:
    def __init__(self, measured: Measured, size: Size) -> None:
        self._series = measured.series
        self._measured = measured
        self._size = size

    def ratios(self) -> Iterator[Row]:
        yield self._ratio("Prepare, in dra-plugin", limit=1.1)
        for what in (
            "Unprepare, in dra-plugin",
            "EnsurePartition, in dra-plugin",
            "hook of a vGPU container, in nri-plugin",
            "hook of another container, in nri-plugin",
            "registration, seen by the library's client",
            "burst of Prepare, seen by kubelet",
            *(f"CPU time of one pod's life, {service}" for service in _SERVICES),
        ):
            yield self._ratio(what)

    def budgets(self) -> Iterator[Row]:
        """A budget that names no percentile is one of the median."""
        yield self._times("Prepare, in dra-plugin", p99=50)
        yield self._times("burst of Prepare, seen by kubelet", p50=1000, more=f" of {self._size.burst}")
        yield self._times("GetInfo under Prepare load", p50=10)
        yield self._times("registration, seen by the library's client", p50=30)
        yield self._times("hook of another container, in nri-plugin", p50=0.6, p99=2)
        yield self._times("hook of a vGPU container, in nri-plugin", p50=6, p99=15)
        yield self._times("Synchronize, seen by the runtime", p50=200, more=f", {self._size.synchronized} containers of 100 env")
        for service in _SERVICES:
            yield self._times(f"start to ready, {service}", p50=3000)
        for service, limit_mib in _SERVICES.items():
            yield self._memory(service, limit_mib)
        writes, watched_min, idle_min = self._measured.api_writes, self._measured.watched_s / 60, self._size.idle_s / 60
        yield Row(
            what=f"writes to the API server by both nodes in {watched_min:.0f} min, the last {idle_min:.0f} at rest",
            budget="0",
            full=str(writes),
            holds=writes == 0,
        )

    def others(self) -> Iterator[Row]:
        for what in (
            "Prepare, seen by kubelet",
            "Unprepare, in dra-plugin",
            "Unprepare, seen by kubelet",
            "EnsurePartition, in dra-plugin",
            "CreateContainer with NRI, seen by the runtime",
            "GetInfo at rest",
            "durable write of 1 KiB",
            *(f"CPU time of one pod's life, {service}" for service in _SERVICES),
        ):
            yield self._times(what)
        for service in _SERVICES:
            yield self._times(f"CPU at rest, {service}, percent of a core")
        for unit in ("bytes", "inodes"):
            yield self._times(f"disk of a claim with one container, {unit}")

    def _ratio(self, what: str, *, limit: float | None = None) -> Row:
        full, empty = self._series[what][FULL], self._series[what][EMPTY]
        found = samples.ratio(full, empty)
        return Row(
            what=what,
            counts=f"{len(full)} + {len(empty)}",
            budget="" if limit is None else f"{limit:g}",
            full=f"{found.value:.2f}",
            empty=f"{found.low:.2f} to {found.high:.2f}",
            holds=None if limit is None else found.value <= limit,
        )

    def _times(self, what: str, *, p50: float | None = None, p99: float | None = None, more: str = "") -> Row:
        by_node = [self._series[what][where] for where in (FULL, EMPTY)]
        limits = {f"p50 {p50}": (p50, samples.p50), f"p99 {p99}": (p99, samples.p99)}
        over = [value(took) > limit for took in by_node if took for limit, value in limits.values() if limit is not None]
        return Row(
            what=what + more,
            counts=" + ".join(str(len(took)) for took in by_node if took),
            budget=", ".join(words for words, (limit, _) in limits.items() if limit is not None),
            full=_percentiles(by_node[0]),
            empty=_percentiles(by_node[1]),
            holds=not any(over) if over else None,
        )

    def _memory(self, service: str, limit_mib: float) -> Row:
        by_moment = self._series[f"RSS, {service}, MiB"]
        return Row(
            what=f"RSS, {service}, MiB",
            budget=f"{limit_mib:g}",
            full=", ".join(f"{rss[0]:.0f} {when}" for when, rss in by_moment.items()),
            holds=all(rss[0] <= limit_mib for rss in by_moment.values()),
        )


def _percentiles(took: Sequence[float]) -> str:
    if not took:
        return ""
    return " / ".join(f"{value:.0f}" if value >= 100 else f"{value:.3g}" for value in (samples.p50(took), samples.p99(took)))
