"""The static device-client as processes of a container, with the argument vector of the enforcement library."""

from __future__ import annotations

import asyncio
import subprocess
from asyncio.subprocess import Process
from collections.abc import Sequence
from pathlib import Path

from vgpu_testkit.registry_node import NodeContainer, RegistryNode


class Clients:
    """Runs `program` on the node. The kernel knows a client as the container's before it calls."""

    def __init__(self, node: RegistryNode, program: Path) -> None:
        self._node = node
        self._program = program

    async def call(self, container: NodeContainer, *, register_uuid: str = "", has_names: bool = True) -> Process:
        """A client that calls, as the only process of its container."""
        (client,) = await self.call_at_once(container, 1, register_uuid=register_uuid, has_names=has_names)
        return client

    async def call_at_once(
        self, container: NodeContainer, count: int, *, register_uuid: str = "", has_names: bool = True
    ) -> Sequence[Process]:
        """So many clients, which are all of the container's processes."""
        pod_uid, name = (container.pod_uid, container.name) if has_names else ("", "")
        words = ("--pod-uid", pod_uid, "--container-name", name, "--register-uuid", register_uuid)
        argv = ("sh", "-c", 'read -r _ && exec "$@"', "sh", self._program, "--address", self._node.socket, *words)
        clients = [
            await asyncio.create_subprocess_exec(*argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(count)
        ]
        self._node.runs(container, [client.pid for client in clients])
        for client in clients:
            assert client.stdin is not None
            client.stdin.write(b"\n")
            await client.stdin.drain()
        return clients
