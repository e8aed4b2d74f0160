"""A file system of its own under the manager directory, really full. Needs root, which may mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_testkit import trees
from vgpu_testkit.dra_bench import Container, DraBench, half_a_gpu
from vgpu_testkit.dra_eager_operations import WITHOUT_NRI
from vgpu_testkit.kubelet_values import KubeletRefusal
from vgpu_testkit.manifests import Consumer, PodManifest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")

CONTAINER = Container()
PODS = tuple(
    PodManifest(name=claim, uid=CONTAINER.pod_uid, containers=(Consumer(name="train", uses={claim: ()}),))
    for claim in ("prepared", "refused")
)
PREPARED = replace(half_a_gpu("prepared", device="vgpu-1", uid="11111111-0f8a-4f57-9d0e-6a6d1b2c7e10"), reserved_for=PODS[:1])
REFUSED = replace(half_a_gpu("refused", device="vgpu-2", uid="22222222-0f8a-4f57-9d0e-6a6d1b2c7e10"), reserved_for=PODS[1:])


@pytest.fixture
async def small(bench: DraBench, request: pytest.FixtureRequest) -> AsyncIterator[DraBench]:
    """The claims/ tree is on a tmpfs of 1 MiB; PREPARED is prepared. A test's parameter are further variables of dra-plugin."""
    bench.dra.environment |= getattr(request, "param", {})
    claims = bench.node.manager_dir / "claims"
    claims.mkdir(mode=0o711)
    _run("mount", "-t", "tmpfs", "-o", "size=1m,mode=0711", "tmpfs", str(claims))
    try:
        for manifest in (PREPARED, REFUSED, *PODS):
            manifest.write(bench.claims)
        await bench.start()
        await bench.prepare(PREPARED)
        yield bench
        bench.dra.kill()
    finally:
        _run("umount", "--lazy", str(claims))


async def test_full_disk_refuses_what_is_new_and_keeps_what_is_there(small: DraBench) -> None:
    before = small.picture()
    filler = _fill(small.node.manager_dir / "claims")

    with pytest.raises(KubeletRefusal, match=rf"{small.claim_dir(REFUSED)}\S*: ENOSPC \(No space left on device\)"):
        await small.prepare(REFUSED)
    with pytest.raises(GRPCError, match=r"config/vgpu.config: ENOSPC|binding.json: ENOSPC|_train: ENOSPC") as refusal:
        await small.ensure(PREPARED, CONTAINER)

    assert refusal.value.status is Status.INTERNAL
    assert trees.halves(*small.roots) == []
    await small.prepare(PREPARED)
    filler.unlink()
    await small.until_trash_is_empty()
    assert small.picture() == before
    await small.prepare(REFUSED)
    await small.ensure(PREPARED, CONTAINER)


@pytest.mark.parametrize("small", [WITHOUT_NRI], indirect=True)
async def test_full_disk_without_nri_refuses_claims_and_registrations_and_keeps_what_is_there(small: DraBench) -> None:
    small.create(PREPARED, CONTAINER)
    small.run(CONTAINER)
    before = small.picture()
    filler = _fill(small.node.manager_dir / "claims")

    with pytest.raises(KubeletRefusal, match=rf"{small.claim_dir(REFUSED)}\S*: ENOSPC \(No space left on device\)"):
        await small.prepare(REFUSED)
    with pytest.raises(GRPCError, match=r"pids.config: ENOSPC") as refusal:
        await small.register(PREPARED, CONTAINER)

    assert refusal.value.status is Status.INTERNAL
    assert trees.halves(*small.roots) == []
    filler.unlink()
    await small.until_trash_is_empty()
    assert small.picture() == before
    await small.register(PREPARED, CONTAINER)
    await small.prepare(REFUSED)


@pytest.mark.parametrize("small", [{}, WITHOUT_NRI], indirect=True, ids=["with NRI", "without NRI"])
async def test_full_disk_still_lets_claims_go(small: DraBench) -> None:
    filler = _fill(small.node.manager_dir / "claims")

    await small.unprepare(PREPARED)

    assert not small.claim_dir(PREPARED).exists()
    assert not small.cdi_file(PREPARED).exists()
    filler.unlink()


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def _fill(folder: Path) -> Path:
    """A file that takes all the room that is left."""
    filler = folder / ".filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return filler
