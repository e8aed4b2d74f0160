"""The stand-in of the preloaded library, built for a manager directory of the test's own."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
from pathlib import Path

import pytest
from grpclib.server import Server

from vgpu_proto.registry import ContainerDeviceRequest, ContainerDeviceResponse, VDeviceRegistryBase

CLIENT_MODE = 236
CGROUP_MODE = 102


@pytest.fixture(scope="module")
def manager_dir(tmp_path_factory: pytest.TempPathFactory, native: Path) -> Path:
    """What a container has at /etc/vgpu-manager, with a library that looks for it here."""
    directory = tmp_path_factory.mktemp("manager")
    source = Path(__file__).parents[2] / "native"
    library = "libvgpu-control.so.v1.0.0"
    subprocess.run(
        ["make", "-s", "-C", source, f"OUT={directory}/driver", f"MANAGER_DIR={directory}", f"{directory}/driver/{library}"],
        check=True,
    )
    (directory / "driver" / library).rename(directory / "driver/libvgpu-control.so")
    (directory / "registry").mkdir()
    (directory / "registry/device-client").symlink_to(native / "device-client")
    (directory / "config").mkdir()
    return directory


def write_limits(manager_dir: Path, *, mode: int) -> None:
    image = bytearray(8192)
    struct.pack_into("<4I", image, 0, 0x56474346, 1, 2560, 16)
    struct.pack_into("<48s64s64s64s48s3i", image, 128, b"uid-1", b"train", b"team-a", b"main", b"", mode, 0, 1)
    struct.pack_into("<48sQQ7i", image, 512 + 2 * 128 + 8, b"GPU-hard", 8 << 30, 8 << 30, 30, 30, 1, 1, 1, 0, 1)
    struct.pack_into("<48sQQ7i", image, 512 + 3 * 128 + 8, b"GPU-soft", 6 << 30, 4 << 30, 20, 100, 1, 0, 1, 1, 1)
    (manager_dir / "config/vgpu.config").write_bytes(image)


async def run_preloaded(manager_dir: Path, **environment: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `echo ran` with the library preloaded."""
    process = await asyncio.create_subprocess_exec(
        "/bin/echo",
        "ran",
        env={**os.environ, "LD_PRELOAD": str(manager_dir / "driver/libvgpu-control.so"), **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stdout.decode(), stderr.decode()


async def test_library_is_silent_when_not_asked_to_speak(manager_dir: Path) -> None:
    write_limits(manager_dir, mode=CLIENT_MODE)

    assert await run_preloaded(manager_dir) == (0, "ran\n", "")


async def test_library_tells_the_limits_of_each_slot_when_asked(manager_dir: Path) -> None:
    write_limits(manager_dir, mode=CGROUP_MODE)

    assert await run_preloaded(manager_dir, VGPU_CONTROL_SAY="1") == (
        0,
        "ran\n",
        "vgpu-control: would enforce on team-a/train main: slot 2 GPU-hard memory 8589934592 cores 30;"
        " slot 3 GPU-soft memory 6442450944 of which real 4294967296 cores 20 to 100;\n",
    )


async def test_library_tells_that_it_would_stop_the_process_when_there_are_no_limits(manager_dir: Path) -> None:
    (manager_dir / "config/vgpu.config").unlink(missing_ok=True)

    assert await run_preloaded(manager_dir, VGPU_CONTROL_SAY="1") == (
        0,
        "ran\n",
        f"vgpu-control: {manager_dir}/config/vgpu.config: No such file or directory: would stop the process\n",
    )


async def test_library_stops_the_process_when_it_cannot_register(manager_dir: Path) -> None:
    write_limits(manager_dir, mode=CLIENT_MODE)

    assert await run_preloaded(manager_dir, VGPU_CONTROL_REGISTER="1") == (
        1,
        "",
        f"device-client: {manager_dir}/registry/socket.sock: No such file or directory\n",
    )


async def test_library_stops_the_process_when_there_are_no_limits_to_register_with(manager_dir: Path) -> None:
    (manager_dir / "config/vgpu.config").unlink(missing_ok=True)

    assert await run_preloaded(manager_dir, VGPU_CONTROL_REGISTER="1") == (1, "", "")


async def test_library_does_not_register_when_the_mode_is_not_client(manager_dir: Path) -> None:
    write_limits(manager_dir, mode=CGROUP_MODE)

    assert await run_preloaded(manager_dir, VGPU_CONTROL_REGISTER="1") == (0, "ran\n", "")


async def test_library_registers_what_the_limits_file_says(manager_dir: Path) -> None:
    requests: list[ContainerDeviceRequest] = []

    class Registry(VDeviceRegistryBase):
        async def register_container_device(self, message: ContainerDeviceRequest) -> ContainerDeviceResponse:
            requests.append(message)
            return ContainerDeviceResponse()

    write_limits(manager_dir, mode=CLIENT_MODE)
    server = Server([Registry()])
    await server.start(path=str(manager_dir / "registry/socket.sock"))
    try:
        outcome = await run_preloaded(manager_dir, VGPU_CONTROL_REGISTER="1")
    finally:
        server.close()
        await server.wait_closed()
        (manager_dir / "registry/socket.sock").unlink(missing_ok=True)  # Python 3.13 has removed it by itself

    assert outcome == (0, "ran\n", "")
    assert requests == [ContainerDeviceRequest(pod_uid="uid-1", container_name="main")]
