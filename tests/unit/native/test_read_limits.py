"""The limits reader on files put together byte by byte from the offset table of the enforcement library."""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

GPU = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000005"


def put(image: bytearray, offset: int, layout: str, *values: object) -> None:
    struct.pack_into("<" + layout, image, offset, *values)


def limits_image() -> bytearray:
    """Client mode; slot 5 with 8 of 16 GiB real, 30 of 60 percent; slot 7 filled in but not in use."""
    image = bytearray(8192)
    put(image, 0, "4I", 0x56474346, 1, 2560, 16)
    put(image, 16, "2i", 12, 4)
    put(image, 24, "32s", b"550.90.07")
    put(image, 128, "48s", b"3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10")
    put(image, 176, "64s", 'pod "ü"\n'.encode())
    put(image, 240, "64s", b"team-a")
    put(image, 304, "64s", b"main")
    put(image, 368, "48s", b"0a1b2c3d-0000-4000-8000-00000000beef")
    put(image, 416, "3i", 236, 0, 1)
    slot5 = 512 + 5 * 128
    put(image, slot5 + 8, "48s", GPU.encode())
    put(image, slot5 + 56, "QQ", 16 << 30, 8 << 30)
    put(image, slot5 + 72, "7i", 30, 60, 1, 0, 1, 1, 1)
    put(image, 512 + 7 * 128 + 8, "48s", b"GPU-unused")
    return image


def run_reader(native: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([native / "read-limits", *arguments], capture_output=True, text=True, check=False)


def read(native: Path, *arguments: str | Path) -> dict[str, Any]:
    done = run_reader(native, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_reader_prints_every_field_of_the_slots_in_use(native: Path, tmp_path: Path) -> None:
    (tmp_path / "vgpu.config").write_bytes(limits_image())
    (tmp_path / "pids.config").write_text("12\n345\n4194304\n")

    assert read(native, tmp_path / "vgpu.config") == {
        "pod_uid": "3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10",
        "pod_name": 'pod "ü"\n',
        "pod_namespace": "team-a",
        "container_name": "main",
        "register_uuid": "0a1b2c3d-0000-4000-8000-00000000beef",
        "compatibility_mode": 236,
        "sm_watcher": 0,
        "vmem_node": 1,
        "driver_version": "550.90.07",
        "cuda_version": [12, 4],
        "devices": [
            {
                "index": 5,
                "uuid": "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000005",
                "total_memory": 17179869184,
                "real_memory": 8589934592,
                "hard_core": 30,
                "soft_core": 60,
                "core_limit": 1,
                "hard_limit": 0,
                "memory_limit": 1,
                "memory_oversold": 1,
            }
        ],
        "pids": [12, 345, 4194304],
    }


def test_reader_says_that_there_is_no_pids_file_when_there_is_none(native: Path, tmp_path: Path) -> None:
    (tmp_path / "vgpu.config").write_bytes(limits_image())

    limits = read(native, tmp_path / "vgpu.config")

    assert (limits["pids"], limits["pids_file"]) == ([], False)


def test_reader_prints_no_pids_when_the_pids_file_is_empty(native: Path, tmp_path: Path) -> None:
    (tmp_path / "vgpu.config").write_bytes(limits_image())
    (tmp_path / "pids.config").touch()

    limits = read(native, tmp_path / "vgpu.config")

    assert limits["pids"] == []
    assert "pids_file" not in limits


def test_dump_prints_all_slots_when_most_are_not_in_use(native: Path, tmp_path: Path) -> None:
    (tmp_path / "vgpu.config").write_bytes(limits_image())

    slots = read(native, "--dump", tmp_path / "vgpu.config")["devices"]

    assert [slot["index"] for slot in slots] == list(range(16))
    assert [slot["activate"] for slot in slots] == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    assert (slots[7]["uuid"], slots[7]["seq"]) == ("GPU-unused", 0)


def _truncated(image: bytearray) -> bytes:
    return bytes(image[:2560])


def _with(offset: int, value: int) -> bytes:
    image = limits_image()
    put(image, offset, "I", value)
    return bytes(image)


def _without_an_end(offset: int, size: int) -> bytes:
    image = limits_image()
    image[offset : offset + size] = b"x" * size
    return bytes(image)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "the size is not 8192"),
        (_truncated(limits_image()), "the size is not 8192"),
        (bytes(limits_image()) + b"\0", "the size is not 8192"),
        (_with(0, 0x46434756), "the magic is not VGCF"),
        (_with(4, 2), "the layout version is not 1"),
        (_with(8, 8192), "the region size is not 2560"),
        (_with(12, 8), "the device count is not 16"),
        (_without_an_end(304, 64), "a string has no end"),
        (_without_an_end(512 + 15 * 128 + 8, 48), "a UUID has no end"),
        (_with(512 + 5 * 128, 3), "a slot is being written for ever"),
    ],
)
def test_reader_refuses_a_malformed_file(native: Path, tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "vgpu.config").write_bytes(content)

    done = run_reader(native, tmp_path / "vgpu.config")

    assert (done.returncode, done.stderr) == (1, f"read-limits: {tmp_path}/vgpu.config: {complaint}\n")


def test_reader_refuses_when_the_file_is_missing(native: Path, tmp_path: Path) -> None:
    done = run_reader(native, tmp_path / "vgpu.config")

    assert (done.returncode, done.stderr) == (1, f"read-limits: {tmp_path}/vgpu.config: No such file or directory\n")


@pytest.mark.parametrize("content", ["12", "12\n\n", "12\n-3\n", "12 \n", "0x1\n", "1" * 40 + "\n"])
def test_reader_refuses_a_pids_file_with_anything_else_than_pids(native: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "vgpu.config").write_bytes(limits_image())
    (tmp_path / "pids.config").write_text(content)

    done = run_reader(native, tmp_path / "vgpu.config")

    assert (done.returncode, done.stderr) == (1, f"read-limits: {tmp_path}/pids.config: a line is no PID\n")
