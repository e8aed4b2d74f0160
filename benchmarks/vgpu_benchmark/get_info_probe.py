"""How long GetInfo takes, asked from a process of its own: the load's event loop would be measured otherwise.

    python -m vgpu_benchmark.get_info_probe <registration socket> <calls>

Prints the milliseconds of each call as a JSON list.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from vgpu_testkit import kubelet_wire
from vgpu_testkit.kubelet_values import Timings

_PAUSE_S = 0.02


async def probe(socket: str, calls: int) -> list[float]:
    took = []
    async with kubelet_wire.dialled(socket, Timings()) as channel:
        for _ in range(calls):
            began = time.perf_counter()
            await kubelet_wire.get_info(channel, socket=socket, timeout_s=10)
            took.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(_PAUSE_S)
    return took


if __name__ == "__main__":
    print(json.dumps(asyncio.run(probe(sys.argv[1], int(sys.argv[2])))))
