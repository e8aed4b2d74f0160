"""nri-plugin with short pauses: the same process, for tests that restart its peers hundreds of times."""

from __future__ import annotations

import asyncio
import os
import sys

from vgpu_daemon import logs, run
from vgpu_nri import app
from vgpu_nri.config import PROG, parse_config
from vgpu_nri.lease import Pace
from vgpu_nri.link import LinkTiming

TIMING = app.Timing(
    link=LinkTiming(first_retry_s=0.01, longest_retry_s=0.03),
    pace=Pace(renew_s=0.03, first_retry_s=0.01, longest_retry_s=0.03),
    redial_pause_s=0.01,
)


def main() -> None:
    """What `vgpu_nri.app.main` does, at another pace."""
    config = parse_config(sys.argv[1:], os.environ)
    logs.configure(service="nri-plugin")

    async def until_stopped(stop: asyncio.Event) -> None:
        await app.serve(config, stop, timing=TIMING)

    run.run(until_stopped, prog=PROG)
