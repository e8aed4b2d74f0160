"""Records what real containerd and an NRI plugin say to each other: `python -m vgpu_testkit.record FOLDER`.

Needs root and `make containerd`. One file per scenario of `nri_scenarios` and line of releases, as `recording` reads
them.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import socket
import sys
from pathlib import Path

from vgpu_testkit import nri_scenarios
from vgpu_testkit.containerd import Containerd, find_containerds
from vgpu_testkit.cri import Cri
from vgpu_testkit.recording import Recording, save_recording

# Its path is in the recorded mounts.
_ROOT = Path("/run/vgpu-recording")
_CLONE_NEWUTS = 0x04000000


def main() -> None:
    """Records every scenario with containerd 1.7 and 2."""
    folder = Path(sys.argv[1])
    _become_a_host_named("node-1")
    for version in ("1.7", "2"):
        shutil.rmtree(_ROOT, ignore_errors=True)
        _ROOT.mkdir()
        containerd = Containerd(find_containerds()[version], _ROOT)
        try:
            containerd.start()
            asyncio.run(_record(version, containerd, folder))
        finally:
            containerd.stop()
        shutil.rmtree(_ROOT)


async def _record(version: str, containerd: Containerd, folder: Path) -> None:
    async with Cri(containerd.socket) as cri:
        stage = nri_scenarios.set_stage(containerd, cri)
        for name, scenario in nri_scenarios.SCENARIOS.items():
            recording = Recording(name=f"{version}/{name}", chunks=await scenario(stage))
            await cri.wipe()
            save_recording(folder, recording)
            methods = " ".join(call.request.method for call in recording.calls())
            print(f"{recording.name} ({containerd.version_text}): {methods}")


def _become_a_host_named(name: str) -> None:
    """For this process and what it starts: a container of the host's network is told the host's name."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUTS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    socket.sethostname(name)


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("record: containerd runs as root only")
    main()
