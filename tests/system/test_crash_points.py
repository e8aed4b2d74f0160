"""dra-plugin is ended by SIGKILL before each of its file-system calls in turn; after a restart and the caller's retry the node is
as if nothing had happened.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from vgpu_testkit import trees
from vgpu_testkit.crash_control import CrashControl
from vgpu_testkit.dra_bench import DraBench
from vgpu_testkit.dra_calls import ConnectionBroke
from vgpu_testkit.dra_eager_operations import EAGER_OPERATIONS
from vgpu_testkit.dra_operations import OPERATIONS, Operation, Scene
from vgpu_testkit.kubelet_values import KubeletRefusal
from vgpu_testkit.manifests import Manifest


@pytest.mark.parametrize("operation", [*OPERATIONS, *EAGER_OPERATIONS], ids=lambda o: o.name)
async def test_killed_before_any_call_the_retry_ends_as_the_clean_run(
    bench: DraBench, control: CrashControl, capsys: pytest.CaptureFixture[str], operation: Operation[Scene]
) -> None:
    scene = operation.scene(bench)
    await bench.start()

    await operation.arrange(scene)
    control.count()
    await operation.act(scene)
    await bench.until_trash_is_empty()
    calls = control.disarm()
    clean, devices = bench.picture(), scene.devices

    assert operation.missing(calls) == []
    for number, call in enumerate(calls, start=1):
        where = f"{operation.name}, before call {number} of {len(calls)}: {call.name} {call.path}"
        await operation.arrange(scene)
        control.kill_before(number)
        await _crash(scene, operation, where)
        control.disarm()
        assert trees.halves(*bench.roots) == [], where
        await bench.start()
        await (operation.retry or operation.act)(scene)
        await bench.until_trash_is_empty()
        assert scene.devices == devices, where
        assert bench.picture() == clean, where
        assert all(_cdi_and_record_agree(bench, manifest) for manifest in scene.manifests), where
    with capsys.disabled():
        print(f"\n{operation.name}: {len(calls)} points, {len(calls)} ok")


async def _crash(scene: Scene, operation: Operation[Scene], where: str) -> None:
    """The operation is begun and dra-plugin has died of SIGKILL."""
    # The answer may have been given before the call: deleting what is in the trash comes after it.
    with suppress(KubeletRefusal, ConnectionBroke):
        await operation.act(scene)
    process = scene.bench.dra.process
    assert process is not None
    assert await asyncio.to_thread(process.wait, 10) == -9, where


def _cdi_and_record_agree(bench: DraBench, manifest: Manifest) -> bool:
    """The nonces that containers get are those that dra-plugin knows; without a claim there is neither."""
    if not bench.cdi_file(manifest).exists():
        return not bench.claim_dir(manifest).exists()
    record = (bench.claim_dir(manifest) / "claim.json").read_text()
    nonces = trees.nonces_by_key(bench.cdi_file(manifest))
    is_known = all(f'"key": "{key}"' in record and nonce in record for key, nonce in nonces.items())
    return len(nonces) == len(manifest.shares) and is_known
