"""Measures the budgets and writes them down.

    python -m vgpu_benchmark <folder> [full|quick]

`quick` takes a minute and shows only that all of it runs. Into the folder go `results.json`, with every sample, and `results.md`.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vgpu_benchmark import report
from vgpu_benchmark.node import BenchmarkNode
from vgpu_benchmark.rounds import EMPTY, FULL, Bench, Measured, Size
from vgpu_benchmark.samples import MachineWatch

SIZES = {
    "full": Size(
        claims=500,
        step=100,
        cycles=100,
        lives=400,
        burst=32,
        bursts=15,
        restarts=5,
        get_infos=300,
        synchronized=1000,
        synchronizes=10,
        idle_s=600,
    ),
    "quick": Size(
        claims=40,
        step=20,
        cycles=20,
        lives=20,
        burst=32,
        bursts=2,
        restarts=1,
        get_infos=20,
        synchronized=80,
        synchronizes=2,
        idle_s=5,
    ),
}


async def measure(size: Size, native: Path) -> Measured:
    async with BenchmarkNode(native) as empty, BenchmarkNode(native) as full:
        bench = Bench(size, {EMPTY: empty, FULL: full})
        steps = (bench.start, bench.fill, bench.live, bench.burst, bench.ask_under_load, bench.restart, bench.synchronize)
        for step in (*steps, bench.idle):
            print(f"{step.__name__} …", file=sys.stderr, flush=True)
            await step()
        bench.read_logs()
        return bench.measured


def machine() -> dict[str, Any]:
    return {"cpus": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}", "python": platform.python_version()}


def main() -> None:
    folder = Path(sys.argv[1])
    size = SIZES[(sys.argv[2:3] or ["full"])[0]]
    watch = MachineWatch()
    measured = asyncio.run(measure(size, Path(__file__).parents[2] / "build" / "native"))
    results = {**vars(measured), "size": asdict(size), "machine": {**machine(), "others_percent": watch.others_percent()}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results))
    text = report.report(measured, size=size, machine=results["machine"])
    (folder / "results.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
