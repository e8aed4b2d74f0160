"""The limits file, byte for byte, against files written by hand from the enforcement library's table of offsets."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vgpu_dra.policy.assigner import Granted
from vgpu_dra.policy.limits import Holder, container_limits
from vgpu_dra.rules import Ratios
from vgpu_state import vgpu_config
from vgpu_state.claims import Binding, ComputePolicy, Consumed, PodRef, PreparedVgpu
from vgpu_state.ids import ContainerName
from vgpu_testkit.dra_values import BINDING, GIB, INVENTORY, POD, RECORD, SERVER, TRAINER, gpu_uuid

WHOLE = Ratios()
GOLDEN = Path(__file__).parent / "vgpu_config"
LONG_NAMES = PodRef(uid=POD.uid, namespace="b" * 63, name="a" * 60 + "0123456789")


def golden(name: str) -> bytes:
    """The bytes that a hand-written file states, field after field without a gap."""
    content = bytearray()
    for line in (GOLDEN / f"{name}.hex").read_text().splitlines():
        if fields := line.partition("#")[0].split():
            offset, size, stated = int(fields[0]), int(fields[1]), bytes.fromhex("".join(fields[2:]))
            assert offset == len(content), line
            assert len(stated) <= size, line
            content += stated.ljust(size, b"\0")
    return bytes(content)


def share(index: int, *, memory_gib: int, cores: int) -> PreparedVgpu:
    return replace(TRAINER, gpu_uuid=gpu_uuid(index), consumed=Consumed(cores_percent=cores, memory_bytes=memory_gib * GIB))


def encoded(
    *shares: PreparedVgpu, holder: Binding = BINDING, policy: ComputePolicy = ComputePolicy.FIXED, ratios: Ratios = WHOLE
) -> bytes:
    granted = Granted(record=replace(RECORD, policy=policy), results=shares)
    who = Holder(pod=holder.pod, container=holder.container)
    limits = container_limits((granted,), holder=who, inventory=INVENTORY, ratios=ratios)
    return vgpu_config.encode_limits(limits)


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("one-share", [share(0, memory_gib=8, cores=30)]),
        ("two-gpus", [TRAINER, SERVER]),
        ("summed-and-capped", [share(2, memory_gib=60, cores=70), share(2, memory_gib=40, cores=60)]),
        ("unlimited-cores", [share(3, memory_gib=8, cores=0), share(4, memory_gib=16, cores=100)]),
    ],
)
def test_limits_of_shares_equal_the_hand_written_file(name: str, shares: list[PreparedVgpu]) -> None:
    assert encoded(*shares) == golden(name)


def test_long_names_are_cut_as_in_the_hand_written_file() -> None:
    holder = replace(BINDING, pod=LONG_NAMES, container=ContainerName("c" * 62 + "d"))

    written = encoded(share(0, memory_gib=8, cores=30), holder=holder)

    assert written == golden("long-names")


def test_name_is_cut_before_a_character_that_does_not_fit_whole() -> None:
    written = encoded(SERVER, holder=replace(BINDING, pod=replace(POD, namespace="n" * 62 + "ü")))

    assert written[240:304] == b"n" * 62 + b"\0\0"


@pytest.mark.parametrize(
    ("name", "policy", "ratios"),
    [
        ("one-share", ComputePolicy.FIXED, WHOLE),
        ("balance", ComputePolicy.BALANCE, WHOLE),
        ("none", ComputePolicy.NONE, WHOLE),
        ("oversold", ComputePolicy.FIXED, Ratios(memory_percent=200)),
    ],
)
def test_limits_under_a_policy_and_a_ratio_equal_the_hand_written_file(name: str, policy: ComputePolicy, ratios: Ratios) -> None:
    assert encoded(share(0, memory_gib=8, cores=30), policy=policy, ratios=ratios) == golden(name)


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        (ComputePolicy.FIXED, {"hard_core": 30, "soft_core": 30, "core_limit": 1, "hard_limit": 1}),
        (ComputePolicy.BALANCE, {"hard_core": 30, "soft_core": 100, "core_limit": 1, "hard_limit": 0}),
        (ComputePolicy.NONE, {"hard_core": 100, "soft_core": 100, "core_limit": 0, "hard_limit": 0}),
    ],
)
def test_c_program_reads_back_what_the_policy_says(
    native: Path, tmp_path: Path, policy: ComputePolicy, fields: dict[str, int]
) -> None:
    slot = dump(native, tmp_path, encoded(share(0, memory_gib=8, cores=30), policy=policy))["devices"][0]

    assert {name: slot[name] for name in fields} == fields


def test_c_program_reads_back_oversold_memory(native: Path, tmp_path: Path) -> None:
    slot = dump(native, tmp_path, encoded(share(0, memory_gib=120, cores=30), ratios=Ratios(memory_percent=200)))["devices"][0]

    assert (slot["total_memory"], slot["real_memory"], slot["memory_oversold"]) == (128849018880, 64424509440, 1)


@pytest.mark.parametrize(
    "name",
    ["one-share", "two-gpus", "summed-and-capped", "unlimited-cores", "long-names", "balance", "none", "oversold"],
)
def test_decoded_file_encodes_to_the_same_bytes(name: str) -> None:
    assert vgpu_config.encode_limits(vgpu_config.decode_limits(golden(name))) == golden(name)


def test_decoded_file_has_the_slots_in_use() -> None:
    limits = vgpu_config.decode_limits(golden("two-gpus"))

    assert (limits.pod_uid, limits.pod_name) == ("0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c11", "two-workers-0")
    assert (limits.pod_namespace, limits.container_name) == ("research", "train")
    assert (limits.driver_version, limits.cuda_version, limits.compatibility_mode) == ("550.90.07", (12, 4), 236)
    assert dict(limits.slots) == {
        1: vgpu_config.Slot(
            uuid="GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000001",
            memory_bytes=8589934592,
            real_memory_bytes=8589934592,
            cores_percent=20,
            ceiling_percent=20,
        ),
        5: vgpu_config.Slot(
            uuid="GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000005",
            memory_bytes=42949672960,
            real_memory_bytes=42949672960,
            cores_percent=50,
            ceiling_percent=50,
        ),
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (golden("one-share")[:-1], "limits file has 8191 bytes; expected 8192"),
        (golden("one-share") + b"\0", "limits file has 8193 bytes; expected 8192"),
        (b"VGCF" + golden("one-share")[4:], "another header than magic VGCF, version 1, 2560 bytes, 16 slots"),
        (golden("one-share")[:4] + b"\2" + golden("one-share")[5:], "another header than magic VGCF, version 1"),
    ],
)
def test_file_of_another_layout_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(vgpu_config.LimitsUnusable, match=words):
        vgpu_config.decode_limits(content)


def dump(native: Path, tmp_path: Path, content: bytes) -> dict[str, Any]:
    (tmp_path / "vgpu.config").write_bytes(content)
    done = subprocess.run(
        [native / "read-limits", "--dump", tmp_path / "vgpu.config"], capture_output=True, text=True, check=True
    )
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_c_program_reads_back_what_the_encoder_wrote(native: Path, tmp_path: Path) -> None:
    read = dump(native, tmp_path, encoded(TRAINER, SERVER))

    slots = read.pop("devices")
    assert read == {
        "pod_uid": "0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c11",
        "pod_name": "two-workers-0",
        "pod_namespace": "research",
        "container_name": "train",
        "register_uuid": "",
        "compatibility_mode": 236,
        "sm_watcher": 0,
        "vmem_node": 1,
        "driver_version": "550.90.07",
        "cuda_version": [12, 4],
        "pids": [],
        "pids_file": False,
    }
    assert [slot["index"] for slot in slots if slot["activate"]] == [1, 5]
    assert slots[5] == {
        "index": 5,
        "uuid": "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000005",
        "total_memory": 42949672960,
        "real_memory": 42949672960,
        "hard_core": 50,
        "soft_core": 50,
        "core_limit": 1,
        "hard_limit": 1,
        "memory_limit": 1,
        "memory_oversold": 0,
        "seq": 0,
        "activate": 1,
    }


def test_c_program_reads_back_a_sum_that_ends_at_the_card(native: Path, tmp_path: Path) -> None:
    slots = dump(native, tmp_path, encoded(share(2, memory_gib=60, cores=70), share(2, memory_gib=40, cores=60)))["devices"]

    assert (slots[2]["total_memory"], slots[2]["real_memory"]) == (85520809984, 85520809984)
    assert (slots[2]["hard_core"], slots[2]["core_limit"], slots[2]["hard_limit"]) == (100, 0, 0)
    assert [slot["activate"] for slot in slots].count(1) == 1
