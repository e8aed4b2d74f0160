"""The stand-in of the enforcement library's client against a real gRPC server, as registry sees it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from grpclib import GRPCError, Status
from grpclib.server import Server

from vgpu_proto.registry import ContainerDeviceRequest, ContainerDeviceResponse, VDeviceRegistryBase

POD = "3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10"
REGISTER_UUID = "0a1b2c3d-0000-4000-8000-00000000beef"


class Registry(VDeviceRegistryBase):
    """Records requests; `refusal` is raised for each, `silent` holds each until it is cancelled."""

    def __init__(self, *, refusal: GRPCError | None = None, silent: bool = False) -> None:
        self.requests: list[ContainerDeviceRequest] = []
        self.cancelled = asyncio.Event()
        self._refusal = refusal
        self._silent = silent

    async def register_container_device(self, message: ContainerDeviceRequest) -> ContainerDeviceResponse:
        self.requests.append(message)
        if self._refusal is not None:
            raise self._refusal
        if self._silent:
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        return ContainerDeviceResponse()


@asynccontextmanager
async def serving(registry: Registry, path: Path) -> AsyncIterator[None]:
    server = Server([registry])
    await server.start(path=str(path))
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()


async def run_client(native: Path, *arguments: str) -> tuple[int, str]:
    """Exit status and stderr."""
    client = await asyncio.create_subprocess_exec(native / "device-client", *arguments, stderr=asyncio.subprocess.PIPE)
    _, stderr = await client.communicate()
    assert client.returncode is not None
    return client.returncode, stderr.decode()


async def test_registration_delivers_the_three_identities_when_accepted(native: Path, tmp_path: Path) -> None:
    registry = Registry()
    async with serving(registry, tmp_path / "s.sock"):
        outcome = await run_client(
            native,
            *("--address", str(tmp_path / "s.sock"), "--pod-uid", POD),
            *("--container-name=main", f"--register-uuid= {REGISTER_UUID} "),
        )

    assert outcome == (0, "")
    assert registry.requests == [
        ContainerDeviceRequest(pod_uid=POD, container_name="main", register_uuid="0a1b2c3d-0000-4000-8000-00000000beef")
    ]


async def test_registration_sends_empty_identities_when_the_limits_file_has_none(native: Path, tmp_path: Path) -> None:
    registry = Registry()
    async with serving(registry, tmp_path / "s.sock"):
        outcome = await run_client(
            native,
            *("--address", str(tmp_path / "s.sock"), "--pod-uid", "", "--container-name", "", "--register-uuid", "u"),
        )

    assert outcome == (0, "")
    assert registry.requests == [ContainerDeviceRequest(register_uuid="u")]


async def test_refusal_is_told_in_one_line_when_its_message_has_several(native: Path, tmp_path: Path) -> None:
    refusal = GRPCError(Status.PERMISSION_DENIED, "pod »a« is not\nyours, 100% sure — Größe 5")
    async with serving(Registry(refusal=refusal), tmp_path / "s.sock"):
        outcome = await run_client(native, "--address", str(tmp_path / "s.sock"), "--register-uuid", "u")

    assert outcome == (
        1,
        "device-client: rpc error: code = PermissionDenied desc = pod »a« is not yours, 100% sure — Größe 5\n",
    )


async def test_refusal_has_an_empty_description_when_the_server_gives_none(native: Path, tmp_path: Path) -> None:
    async with serving(Registry(refusal=GRPCError(Status.UNAVAILABLE)), tmp_path / "s.sock"):
        outcome = await run_client(native, "--address", str(tmp_path / "s.sock"), "--register-uuid", "u")

    assert outcome == (1, "device-client: rpc error: code = Unavailable desc = \n")


async def test_call_ends_and_is_cancelled_when_the_server_does_not_answer_in_time(native: Path, tmp_path: Path) -> None:
    registry = Registry(silent=True)
    async with serving(registry, tmp_path / "s.sock"):
        outcome = await run_client(native, "--address", str(tmp_path / "s.sock"), "--register-uuid", "u", "--timeout", "1")
        await asyncio.wait_for(registry.cancelled.wait(), 5)

    assert outcome == (1, "device-client: rpc error: code = DeadlineExceeded desc = context deadline exceeded\n")


async def test_client_fails_at_once_when_the_socket_is_not_there(native: Path, tmp_path: Path) -> None:
    outcome = await run_client(native, "--address", str(tmp_path / "none.sock"), "--register-uuid", "u")

    assert outcome == (1, f"device-client: {tmp_path}/none.sock: No such file or directory\n")


async def test_client_fails_when_nobody_listens_on_the_socket(native: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(tmp_path / "s.sock"))

    outcome = await run_client(native, "--address", str(tmp_path / "s.sock"), "--register-uuid", "u")

    assert outcome == (1, "device-client: rpc error: code = Unavailable desc = Connection refused\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--address is empty"),
        (["--address", " ", "--register-uuid", "u"], "--address is empty"),
        (
            ["--address", "/", "--pod-uid", POD, "--container-name", " "],
            "without --register-uuid both --pod-uid and --container-name are needed",
        ),
        (["--address", "/", "--register-uuid"], "a flag lacks its value"),
        (["--address", "/", "--timeout", "0"], "--timeout is not a number of seconds above 0"),
        (["--address", "/", "--timeout=1.5"], "--timeout is not a number of seconds above 0"),
        (["--address", "/", "--socket", "x"], "unknown argument"),
        (["--address", "/", "--addresses", "x"], "unknown argument"),
    ],
)
async def test_client_refuses_a_command_line_that_is_not_the_librarys(native: Path, arguments: list[str], complaint: str) -> None:
    outcome = await run_client(native, *arguments)

    assert outcome == (1, f"device-client: {complaint}\n")
