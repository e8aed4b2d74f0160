"""What a start makes of the tree its predecessor left: every claim fully prepared or fully undone; a fault harms one claim."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from vgpu_testkit import polling, trees
from vgpu_testkit.dra_bench import Container, DraBench, half_a_gpu
from vgpu_testkit.kubelet_values import KubeletRefusal
from vgpu_testkit.manifests import Manifest

ONE = half_a_gpu("one", device="vgpu-1", uid="11111111-0f8a-4f57-9d0e-6a6d1b2c7e10")
TWO = half_a_gpu("two", device="vgpu-2", uid="22222222-0f8a-4f57-9d0e-6a6d1b2c7e10")
THREE = half_a_gpu("three", device="vgpu-2", uid="33333333-0f8a-4f57-9d0e-6a6d1b2c7e10")
FOUR = half_a_gpu("four", device="vgpu-4", uid="44444444-0f8a-4f57-9d0e-6a6d1b2c7e10")
CONTAINER = Container()

Spoil = Callable[[Path], None]


def no_json(file: Path) -> None:
    file.write_bytes(b'{"schema": 1, "payl')


def empty(file: Path) -> None:
    file.write_bytes(b"")


def a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def a_link(file: Path) -> None:
    elsewhere = file.parent.parent / ".elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)


def one_digit_changed(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"cores": 50', b'"cores": 90'))


def a_later_version(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"min_reader": 1', b'"min_reader": 99'))


def of_another_claim(file: Path) -> None:
    shutil.copy(file.parent.parent / TWO.uid / "claim.json", file)


def missing(file: Path) -> None:
    file.unlink()


@pytest.fixture
async def prepared(bench: DraBench) -> DraBench:
    """ONE and TWO are prepared, dra-plugin is killed."""
    for manifest in (ONE, TWO):
        manifest.write(bench.claims)
    await bench.start()
    await bench.prepare(ONE, TWO)
    await bench.ensure(ONE, CONTAINER)
    bench.dra.kill()
    return bench


@pytest.mark.usefixtures("control")  # forked, so that thirty starts take seconds
async def test_thirty_kills_at_random_moments_under_load_end_as_a_clean_run(bench: DraBench) -> None:
    moments = random.Random(20_260_101)
    for manifest in (ONE, TWO, THREE, FOUR):
        manifest.write(bench.claims)
    await bench.start()
    devices = await bench.prepare(ONE, TWO)
    clean = bench.picture()

    async def come_and_go(manifest: Manifest) -> None:
        while True:
            try:
                await bench.prepare(manifest)
                await bench.unprepare(manifest)
            except KubeletRefusal:
                return

    for number in range(30):
        async with asyncio.TaskGroup() as load:
            for manifest in (ONE, TWO, THREE, FOUR):
                load.create_task(come_and_go(manifest))
            await asyncio.sleep(moments.uniform(0.0, 0.08))  # the moment itself, nothing is waited for
            bench.dra.kill()
        assert trees.halves(*bench.roots) == [], f"round {number}"
        await bench.start()
        await bench.unprepare(THREE, FOUR)
        assert await bench.prepare(ONE, TWO) == devices, f"round {number}"
        await bench.until_trash_is_empty()
        assert bench.picture() == clean, f"round {number}"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (no_json, "corrupt"),
        (empty, "corrupt"),
        (one_digit_changed, "checksum"),
        (a_later_version, "needs a reader of version 99"),
        (of_another_claim, f"speaks of claim {TWO.uid}"),
        (a_directory, "EINVAL"),
        (a_link, "ELOOP"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
async def test_spoilt_record_quarantines_its_claim_and_no_other(prepared: DraBench, spoil: Spoil, words: str) -> None:
    spoil(prepared.claim_dir(ONE) / "claim.json")
    others = trees.stamps(prepared.claim_dir(TWO), prepared.cdi_file(TWO))

    await prepared.start()

    claims = await prepared.dra.debug("claims")
    assert claims[ONE.uid]["state"] == "quarantined"
    assert words in claims[ONE.uid]["reason"]
    metrics = await prepared.dra.metrics()
    assert metrics["vgpu_dra_quarantined_claims"] == 1
    assert metrics['vgpu_dra_events_total{reason="claim_quarantined"}'] == 1
    with pytest.raises(KubeletRefusal, match=rf"claim research/one \({ONE.uid}\) is quarantined .*delete its pods"):
        await prepared.prepare(ONE)
    await prepared.prepare(TWO)
    assert trees.stamps(prepared.claim_dir(TWO), prepared.cdi_file(TWO)) == others
    await prepared.unprepare(ONE)
    assert not prepared.claim_dir(ONE).exists()
    assert not prepared.cdi_file(ONE).exists()
    await prepared.prepare(ONE)


@pytest.mark.parametrize("spoil", [no_json, empty, a_directory, a_link, missing], ids=lambda spoil: spoil.__name__)
async def test_spoilt_binding_quarantines_its_claim_and_its_directory_is_not_touched(prepared: DraBench, spoil: Spoil) -> None:
    partition = prepared.claim_dir(ONE) / CONTAINER.partition
    spoil(partition / "binding.json")
    before = trees.stamps(partition, prepared.claim_dir(TWO))

    await prepared.start()

    # A container may have its directory mounted; who it is can no longer be known, so nobody else may have its GPU either.
    assert trees.stamps(partition, prepared.claim_dir(TWO)) == before
    claims = await prepared.dra.debug("claims")
    assert claims[ONE.uid]["state"] == "quarantined"
    assert f"partition {CONTAINER.partition}" in claims[ONE.uid]["reason"]
    assert claims[TWO.uid]["state"] == "prepared"
    await prepared.unprepare(ONE)
    assert not prepared.claim_dir(ONE).exists()


async def test_leftovers_and_orphans_go_and_what_is_not_ours_stays(prepared: DraBench) -> None:
    claims, cdi = prepared.node.manager_dir / "claims", prepared.node.cdi_dir
    clean = prepared.picture()
    (prepared.claim_dir(ONE) / ".new-claim.json").write_bytes(b"{")
    (prepared.claim_dir(ONE) / CONTAINER.partition / ".new-binding.json").write_bytes(b"{")
    (prepared.claim_dir(ONE) / CONTAINER.partition / "config/.new-pids.config").write_bytes(b"1")
    shutil.copytree(prepared.claim_dir(ONE) / CONTAINER.partition, prepared.claim_dir(TWO) / ".new-half")
    (claims / THREE.uid).mkdir()
    (claims / ".trash/old.00112233/config").mkdir(parents=True)
    (cdi / f".k8s.manager.nvidia.com-claim_{ONE.uid}.new").write_bytes(b"{")
    (cdi / f"k8s.manager.nvidia.com-claim_{FOUR.uid}.json").write_bytes(prepared.cdi_file(ONE).read_bytes())
    (cdi / "k8s.manager.nvidia.com-claim_no-uid-at-all.json").write_bytes(b"{}")
    (cdi / "nvidia.yaml").write_bytes(b"not ours")

    await prepared.start()
    await prepared.until_trash_is_empty()

    assert (cdi / "nvidia.yaml").read_bytes() == b"not ours"
    (cdi / "nvidia.yaml").unlink()
    assert prepared.picture() == clean


async def test_half_prepared_claim_is_undone(prepared: DraBench) -> None:
    record = prepared.claim_dir(ONE) / "claim.json"
    envelope = json.loads(record.read_bytes())
    await prepared.start()
    await prepared.unprepare(ONE)
    await prepared.until_trash_is_empty()
    clean = prepared.picture()
    prepared.dra.kill()
    envelope["payload"]["state"] = "started"
    envelope["sha256"] = trees.record_checksum(envelope["payload"])
    prepared.claim_dir(ONE).mkdir(mode=0o711)
    record.write_text(json.dumps(envelope))
    prepared.cdi_file(ONE).write_bytes(prepared.cdi_file(TWO).read_bytes())

    await prepared.start()
    await prepared.until_trash_is_empty()

    assert prepared.picture() == clean


async def test_another_boot_drops_bindings_and_restores_cdi_files_from_the_records(prepared: DraBench) -> None:
    nonces = trees.nonces_by_key(prepared.cdi_file(ONE))
    for file in prepared.node.cdi_dir.iterdir():
        file.unlink()
    prepared.host.boot("22222222-2222-4222-8222-222222222222")

    await prepared.start()

    await polling.until(_exist(prepared.cdi_file(ONE), prepared.cdi_file(TWO)))
    assert trees.nonces_by_key(prepared.cdi_file(ONE)) == nonces
    assert not (prepared.claim_dir(ONE) / CONTAINER.partition).exists()
    assert await prepared.dra.debug("partitions") == []
    assert '"boot_id": "22222222-2222-4222-8222-222222222222"' in (prepared.claim_dir(ONE) / "claim.json").read_text()
    before = trees.stamps(*prepared.roots)
    await prepared.prepare(ONE, TWO)
    assert trees.stamps(*prepared.roots) == before
    await prepared.ensure(ONE, CONTAINER)


async def test_the_same_boot_keeps_partitions_and_their_inodes(prepared: DraBench) -> None:
    before = trees.stamps(prepared.claim_dir(ONE), prepared.claim_dir(TWO), prepared.node.cdi_dir)

    for _ in range(3):
        await prepared.start()
        await prepared.ensure(ONE, CONTAINER)
        prepared.dra.kill()

    assert trees.stamps(prepared.claim_dir(ONE), prepared.claim_dir(TWO), prepared.node.cdi_dir) == before


def _exist(*files: Path) -> Callable[[], object]:
    async def do_exist() -> bool:
        return all(file.exists() for file in files)

    return do_exist
