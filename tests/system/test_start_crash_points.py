"""A start that is itself killed before each of its file-system calls, on the worst tree a predecessor may leave."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from vgpu_testkit import polling, trees
from vgpu_testkit.crash_control import CrashControl
from vgpu_testkit.dra_bench import Container, DraBench, half_a_gpu

KEPT = half_a_gpu("kept", device="vgpu-1", uid="11111111-0f8a-4f57-9d0e-6a6d1b2c7e10")
HALF = half_a_gpu("half", device="vgpu-2", uid="22222222-0f8a-4f57-9d0e-6a6d1b2c7e10")
GONE = "33333333-0f8a-4f57-9d0e-6a6d1b2c7e10"


async def test_start_killed_before_any_call_is_made_good_by_the_next(
    bench: DraBench, control: CrashControl, short_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await _leave_a_mess(bench)
    saved = [(root, short_dir / f"saved-{number}") for number, root in enumerate(bench.roots)]
    for root, copy in saved:
        shutil.copytree(root, copy, symlinks=True)

    control.count()
    await bench.start()
    await _settled(bench)
    calls = control.disarm()
    clean = bench.picture()
    bench.dra.kill()

    counted = [call.name for call in calls]
    assert {"mkdir", "flock", "rename", "fsync", "unlink", "rmdir", "write"} <= set(counted)
    for number, call in enumerate(calls, start=1):
        where = f"start, before call {number} of {len(calls)}: {call.name} {call.path}"
        for root, copy in saved:
            shutil.rmtree(root)
            shutil.copytree(copy, root, symlinks=True)
        control.kill_before(number)
        bench.dra.start()
        assert bench.dra.process is not None
        assert await asyncio.to_thread(bench.dra.process.wait, 20) == -9, where
        control.disarm()
        assert trees.halves(*bench.roots) == [], where
        await bench.start()
        await _settled(bench)
        assert bench.picture() == clean, where
        bench.dra.kill()
    with capsys.disabled():
        print(f"\nstart: {len(calls)} points, {len(calls)} ok")


async def _leave_a_mess(bench: DraBench) -> None:
    """A claim of another boot with a partition and no CDI file, one half prepared, one without a record, unfinished writes, an
    orphan, trash, and no mount points yet.
    """
    for manifest in (KEPT, HALF):
        manifest.write(bench.claims)
    await bench.start()
    await bench.prepare(KEPT, HALF)
    await bench.ensure(KEPT, Container())
    bench.dra.kill()
    bench.host.boot("22222222-2222-4222-8222-222222222222")
    bench.cdi_file(KEPT).unlink()
    record = bench.claim_dir(HALF) / "claim.json"
    envelope = json.loads(record.read_bytes())
    envelope["payload"]["state"] = "started"
    envelope["sha256"] = trees.record_checksum(envelope["payload"])
    record.write_text(json.dumps(envelope))
    shutil.copytree(bench.claim_dir(KEPT) / Container().partition, bench.claim_dir(KEPT) / ".new-half")
    (bench.claim_dir(KEPT) / ".new-claim.json").write_bytes(b"{")
    claims = bench.node.manager_dir / "claims"
    (claims / GONE).mkdir(mode=0o711)
    (claims / ".trash/old.00112233").mkdir()
    os.rename(bench.cdi_file(HALF), bench.node.cdi_dir / f"k8s.manager.nvidia.com-claim_{GONE}.json")
    (bench.node.cdi_dir / f".k8s.manager.nvidia.com-claim_{HALF.uid}.new").write_bytes(b"{")
    shutil.rmtree(bench.node.manager_dir / "skeleton")


async def _settled(bench: DraBench) -> None:
    """The trash is empty, and the CDI file that the boot took is back."""

    async def is_restored() -> bool:
        return bench.cdi_file(KEPT).exists()

    await bench.until_trash_is_empty()
    await polling.until(is_restored)
