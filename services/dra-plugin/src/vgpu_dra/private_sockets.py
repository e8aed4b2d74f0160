"""The sockets by which nri-plugin and registry find this dra-plugin: each in a directory of its own that no workload mounts."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from vgpu_daemon import sockets
from vgpu_daemon.grpc_server import GrpcServer, Limits
from vgpu_daemon.run import StartFailed

DRAIN_S = 2.0  # for what was asked until then: no call of theirs takes longer


async def serve(path: Path, services: Collection[object]) -> GrpcServer:
    """A server of these services, on a new socket that takes the place of what another instance has left at `path`.

    Raises:
        StartFailed: the directory cannot be made.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise StartFailed(f"cannot make {path.parent}: {exc.strerror} (--run-dir)") from exc
    # 16 MiB: a Synchronize of a thousand containers with all their mounts.
    server = GrpcServer(services, name=path.parent.name, limits=Limits(max_message_bytes=16 << 20))
    await server.start(sockets.publish(path, mode=0o600))
    return server
