"""Draws what Prepare costs while claims accumulate, from the samples that a run of the benchmark left.

    python benchmarks/plot.py <results.json> <picture.svg>

Runs in an environment of its own (benchmarks/requirements.lock): the services and their tests need no plotting library.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

_BUDGET_MS = 50
_NODES = {"full": ("C0", "the node with that many claims"), "empty": ("0.55", "a node without claims, in turns with it")}
_PERCENTILES: Mapping[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "p50": ("-", statistics.median),
    "p99": ("--", lambda took: sorted(took)[int(len(took) * 0.99)]),
}


def draw(prepare_by_claims: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """p50 and p99 of Prepare in ms, by the number of claims that are prepared already."""
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    counts = [int(count) for count in prepare_by_claims]
    samples = min(len(took) for step in prepare_by_claims.values() for took in step.values())
    for where, (colour, name) in _NODES.items():
        for percentile, (dashes, value) in _PERCENTILES.items():
            heights = [value(step[where]) for step in prepare_by_claims.values()]
            axes.plot(counts, heights, dashes, color=colour, marker=".", label=f"{percentile}, {name}")
    axes.axhline(_BUDGET_MS, color="C3", linewidth=0.8, label=f"budget of p99, {_BUDGET_MS} ms")
    axes.set_xlabel("prepared claims, each with a running container")
    axes.set_ylabel("Prepare of one more claim, in dra-plugin, ms")
    axes.set_ylim(bottom=0)
    axes.set_title(f"What Prepare costs while claims accumulate (n ≥ {samples} a point)", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=2)
    return figure


def main() -> None:
    source, picture = Path(sys.argv[1]), Path(sys.argv[2])
    # The same samples give the same bytes: no ids by chance, no date.
    mpl.rcParams["svg.hashsalt"] = "prepare"
    mpl.rcParams["svg.fonttype"] = "none"
    draw(json.loads(source.read_text())["prepare_by_claims"]).savefig(picture, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
