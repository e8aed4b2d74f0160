"""The process that keeps a cluster's namespaces alive and lets the host reach into them; run by `cluster_namespace`.

It is started in new network and mount namespaces. It runs the commands that furnish them, says "ready", and from then on
carries bytes from sockets that listen outside to ports inside. When whoever started it is gone, which the end of its
standard input tells, it ends all that runs in its network and all that is in the cluster's cgroup, then itself.

Argument: JSON {"commands": [[argv]...], "relays": [[file descriptor of a listening socket, port inside]...], "cgroup": name}.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from vgpu_testkit import cluster_cgroups

_CHUNK_BYTES = 1 << 16
_POLL_S = 0.05


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carries bytes until the one end is closed, and closes the other, which ends the copy the other way, too."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    writer.close()


async def _relay(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        # A reset, as near as it gets to the refusal that there would be without us.
        writer.transport.abort()
        return
    async with asyncio.TaskGroup() as copies:
        copies.create_task(_copy(reader, inner_writer))
        copies.create_task(_copy(inner_reader, writer))


async def _serve(relays: list[tuple[int, int]]) -> None:
    for descriptor, port in relays:

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int = port) -> None:
            await _relay(port, reader, writer)

        await asyncio.start_server(accepted, sock=socket.socket(fileno=descriptor))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)


def _end_what_runs_here() -> None:
    while others := list(_others_in_this_network()):
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _others_in_this_network() -> Iterator[int]:
    ours = os.readlink("/proc/self/ns/net")
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            # A process that has ended and is not yet waited for has no network.
            with contextlib.suppress(OSError):
                if os.readlink(folder / "ns/net") == ours:
                    yield int(folder.name)


def main() -> None:
    order = json.loads(sys.argv[1])
    for command in order["commands"]:
        subprocess.run(command, check=True)
    asyncio.run(_serve(order["relays"]))
    _end_what_runs_here()
    cluster_cgroups.remove(order["cgroup"])


if __name__ == "__main__":
    main()
