"""Shares, whole GPUs and MIG devices through the real process: what kubelet is given, what is refused, what is waited for."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from vgpu_state import records
from vgpu_state.claims import ComputePolicy
from vgpu_state.vgpu_config import decode_limits
from vgpu_testkit import trees
from vgpu_testkit.crash_control import CrashControl
from vgpu_testkit.dra_bench import Container, DraBench, half_a_gpu, kubelet_claim
from vgpu_testkit.dra_calls import ConnectionBroke
from vgpu_testkit.kubelet_values import KubeletRefusal
from vgpu_testkit.manifests import Manifest, Share, whole

GPU_3 = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000003"
MIG_DEVICE = "gpu-3-mig-19-2-1"
MIXED = Manifest(
    name="mixed",
    uid="3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10",
    shares=(
        Share(request="share", device="vgpu-5", share_id="8a2d4a8e-0c1b-4a55-8f5e-0f5b7b1e2c01"),
        whole("whole", "gpu-2"),
        whole("slice/small", MIG_DEVICE),
        whole("probe", "gpu-5", has_admin_access=True),
    ),
)


def nodes_by_device(bench: DraBench, manifest: Manifest) -> dict[str, list[str]]:
    """GPU and capability nodes by the device's own part of its CDI name."""
    devices: list[dict[str, Any]] = json.loads(bench.cdi_file(manifest).read_bytes())["devices"]
    control = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
    return {
        device["name"].removeprefix(f"{manifest.uid}-"): [
            node["path"] for node in device["containerEdits"]["deviceNodes"] if node["path"] not in control
        ]
        for device in devices
    }


async def test_claim_of_every_kind_is_prepared_and_unprepared(bench: DraBench) -> None:
    bench.node.partition_gpu(GPU_3, (19, 2))
    MIXED.write(bench.claims)
    await bench.start()
    empty = bench.picture()

    devices = await bench.prepare(MIXED)

    assert [(d.device_name, d.request_names) for d in devices] == [
        ("vgpu-5", ("share",)),
        ("gpu-2", ("whole",)),
        (MIG_DEVICE, ("slice",)),
        ("gpu-5", ("probe",)),
    ]
    # Instance 9 is the third of its profile; the minors are those of the fake driver's files.
    instance = 3 + (3 * 15 + 9) * 9
    assert nodes_by_device(bench, MIXED) == {
        "share-vgpu-5-8a2d4a8e-0c1b-4a55-8f5e-0f5b7b1e2c01": ["/dev/nvidia5"],
        "whole-gpu-2": ["/dev/nvidia2"],
        f"slice_small-{MIG_DEVICE}": [
            "/dev/nvidia3",
            f"/dev/nvidia-caps/nvidia-cap{instance}",
            f"/dev/nvidia-caps/nvidia-cap{instance + 1}",
        ],
        "probe-gpu-5": ["/dev/nvidia5"],
    }
    await bench.unprepare(MIXED)
    await bench.until_trash_is_empty()
    assert bench.picture() == empty


async def test_claim_of_every_kind_outlives_the_process(bench: DraBench) -> None:
    bench.node.partition_gpu(GPU_3, (19, 2))
    MIXED.write(bench.claims)
    await bench.start()
    devices = await bench.prepare(MIXED)
    before = bench.picture()
    bench.dra.kill()
    bench.cdi_file(MIXED).unlink()

    await bench.start()

    assert await bench.prepare(MIXED) == devices
    assert bench.picture() == before


async def test_prepare_of_every_kind_killed_at_any_call_ends_as_the_clean_run(bench: DraBench, control: CrashControl) -> None:
    bench.node.partition_gpu(GPU_3, (19, 2))
    MIXED.write(bench.claims)
    await bench.start()
    control.count()
    devices = await bench.prepare(MIXED)
    calls = control.disarm()
    clean = bench.picture()

    assert len(calls) > 8
    for number, call in enumerate(calls, start=1):
        where = f"before call {number} of {len(calls)}: {call.name} {call.path}"
        await bench.unprepare_patiently(MIXED)
        await bench.until_trash_is_empty()
        control.kill_before(number)
        with suppress(KubeletRefusal, ConnectionBroke):
            await bench.prepare(MIXED)
        process = bench.dra.process
        assert process is not None
        assert await asyncio.to_thread(process.wait, 10) == -9, where
        control.disarm()
        assert trees.halves(*bench.roots) == [], where
        await bench.start()
        assert await bench.prepare(MIXED) == devices, where
        await bench.until_trash_is_empty()
        assert bench.picture() == clean, where


def claim(name: str, number: int, *shares: Share) -> Manifest:
    return Manifest(name=name, uid=f"{number:08d}-8f0a-4f57-9d0e-6a6d1b2c7e10", shares=shares)


async def test_gpu_that_another_claim_uses_is_refused_after_a_while_naming_it(bench: DraBench) -> None:
    """All in one call: each is held for itself, and the call takes no longer than one of them."""
    bench.node.partition_gpu(GPU_3, (19, 2))
    holders = (
        half_a_gpu("half"),
        claim("solver", 1, whole("all", "gpu-2")),
        claim("tester", 2, whole("part", MIG_DEVICE)),
    )
    refused = (
        (claim("share-of-a-whole", 11, Share(request="r", device="vgpu-2")), ("vgpu-2", "is in use whole", "research/solver")),
        (claim("whole-of-a-shared", 12, whole("r", "gpu-5")), ("gpu-5", "is in use in shares", "research/half")),
        (claim("whole-twice", 13, whole("r", "gpu-2")), ("gpu-2", "is in use whole", "research/solver")),
        (claim("mig-twice", 14, whole("r", MIG_DEVICE)), (MIG_DEVICE, "is in use as MIG devices", "research/tester")),
        (claim("too-much", 15, Share(request="r", device="vgpu-5", cores="51")), ("101 of its 100 cores", "research/half")),
        (claim("too-large", 16, Share(request="r", device="vgpu-5", cores="1", memory="72Gi")), ("memory", "research/half")),
    )
    admin = claim("probe", 17, whole("r", "gpu-2", has_admin_access=True))
    for manifest in (*holders, *(manifest for manifest, _ in refused), admin):
        manifest.write(bench.claims)
    await bench.start()
    await bench.prepare(*holders)
    before = trees.stamps(*bench.roots)

    answers = await bench.answers(*(kubelet_claim(manifest) for manifest, _ in refused))

    for manifest, words in refused:
        for word in (manifest.name, *words):
            assert word in answers[manifest.uid].error
    assert trees.stamps(*bench.roots) == before
    assert (await bench.answers(kubelet_claim(admin)))[admin.uid].error == ""


async def test_claim_whose_device_is_just_being_given_up_is_held_until_it_is(bench: DraBench) -> None:
    """kubelet asks for the next pod's claim before it has unprepared that of a pod that was deleted by force."""
    old, new = claim("old", 1, whole("r", "gpu-2")), claim("new", 2, whole("r", "gpu-2"))
    old.write(bench.claims)
    new.write(bench.claims)
    await bench.start()
    await bench.prepare(old)

    asked = asyncio.create_task(bench.answers(kubelet_claim(new)))
    done, _ = await asyncio.wait((asked,), timeout=0.5)
    await bench.unprepare(old)

    assert not done
    assert (await asked)[new.uid].error == ""
    assert nodes_by_device(bench, new) == {"r-gpu-2": ["/dev/nvidia2"]}


async def test_prepared_claim_that_is_being_deleted_is_prepared_again(bench: DraBench) -> None:
    """Its pod runs on: the node, or its sandbox, came back."""
    held = half_a_gpu()
    held.write(bench.claims)
    await bench.start()
    devices = await bench.prepare(held)
    document = held.document()
    document["metadata"]["deletionTimestamp"] = "2026-11-30T02:00:00Z"
    (bench.claims / "research.half.json").write_text(json.dumps(document))

    assert await bench.prepare(held) == devices


@pytest.mark.parametrize(
    ("word", "policy", "limits"),
    [
        ("balance", ComputePolicy.BALANCE, (50, 100)),
        ("none", ComputePolicy.NONE, (100, 100)),
        ("elastic", ComputePolicy.FIXED, (50, 50)),
    ],
)
async def test_compute_policy_of_a_claim_reaches_the_containers_limits(
    bench: DraBench, word: str, policy: ComputePolicy, limits: tuple[int, int]
) -> None:
    annotated = replace(half_a_gpu(), annotations={"manager.nvidia.com/vgpu-compute-policy": word})
    annotated.write(bench.claims)
    await bench.start()
    await bench.prepare(annotated)
    train = Container()

    await bench.ensure(annotated, train)

    record = records.decode_record((bench.claim_dir(annotated) / "claim.json").read_bytes())
    written = decode_limits((bench.claim_dir(annotated) / train.partition / "config/vgpu.config").read_bytes())
    assert record.policy is policy
    assert (written.slots[5].cores_percent, written.slots[5].ceiling_percent) == limits


async def test_oversold_memory_is_given_as_the_operator_says(bench: DraBench) -> None:
    bench.dra.environment |= {"VGPU_DEVICE_MEMORY_RATIO": "200"}
    first = claim("first", 1, Share(request="r", device="vgpu-5", memory="120Gi"))
    second = claim("second", 2, Share(request="r", device="vgpu-5", memory="39Gi"))
    for manifest in (first, second):
        manifest.write(bench.claims)
    await bench.start()
    await bench.prepare(first, second)
    train = Container()

    await bench.ensure(first, train)

    written = decode_limits((bench.claim_dir(first) / train.partition / "config/vgpu.config").read_bytes())
    assert (written.slots[5].memory_bytes, written.slots[5].real_memory_bytes) == (120 << 30, 60 << 30)
