"""The registry process: everything is constructed here, then started."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import structlog

from vgpu_daemon import locks, logs, run, sockets
from vgpu_daemon.context import Peer
from vgpu_daemon.crowd import Bound
from vgpu_daemon.endpoint import DebugSocket, Endpoint
from vgpu_daemon.grpc_client import PeerSocket
from vgpu_daemon.grpc_server import GrpcServer, Limits
from vgpu_daemon.procfs import Procfs
from vgpu_daemon.run import StartFailed
from vgpu_registry.batches import Batches
from vgpu_registry.config import PROG, Config, parse_config
from vgpu_registry.index import Index
from vgpu_registry.metrics import Metrics
from vgpu_registry.processes import Processes
from vgpu_registry.registrations_client import RegistrationsClient
from vgpu_registry.registry_service import RegistryService
from vgpu_registry.reread import Reread
from vgpu_state.cgroup import ContainerCgroup

_log = structlog.get_logger()

DRAIN_S = 10.0
_LAST_ANSWERS_S = 0.5  # of the drain, for the answers to calls that were held to its end
_LOOKS, _LOOK_S = 50, 0.02  # for a successor, who looks at the lock ten times a second
_FIRST_BYTES_S = 0.5  # for the call of who had connected to us a moment before
_MAX_CONNECTIONS = 4096
_FILES = _MAX_CONNECTIONS + 256


def main() -> NoReturn:
    logs.configure(service="registry")

    async def until_stopped(stop: asyncio.Event) -> None:
        await serve(parse_config(sys.argv[1:], os.environ), stop)

    run.run(until_stopped, prog=PROG)


async def serve(config: Config, stop: asyncio.Event) -> None:
    """Waits for a predecessor's lock, serves until `stop` is set, then lets running calls finish for at most ten seconds.

    The socket stays where it is when this ends: a client that finds no path fails at once, one that is refused dials again.

    Raises:
        StartFailed: a directory that the process needs is missing, or a socket cannot be made.
        StorageFailed: the claims tree cannot be listed.
    """
    check_start(config)
    parts = compose(config)
    try:
        async with parts.dra, parts.endpoint.serve(tcp=config.http_listen, unix=config.debug_socket) as debug_socket:
            await _Serving(parts, config, debug_socket).serve(stop)
    finally:
        parts.index.close()
        parts.processes.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What this process is made of. Nothing of it runs yet."""

    dra: PeerSocket
    index: Index
    processes: Processes
    batches: Batches
    reread: Reread
    service: RegistryService
    server: GrpcServer
    endpoint: Endpoint
    progress: Progress


@dataclass(slots=True)
class Progress:
    """How far the start has come."""

    is_published: bool = False
    is_standby: bool = False


def compose(config: Config) -> Parts:
    metrics, progress = Metrics(), Progress()
    dra = PeerSocket(os.fspath(config.registrations_socket), peer="dra-plugin", clock=time.monotonic)
    client = RegistrationsClient(dra)
    index = Index(config.layout)
    procfs = Procfs(proc_root=config.proc_root, cgroup_root=config.cgroup_root)
    processes = Processes(procfs)
    batches = Batches(bindings=index, kernel=processes, recorder=client, binder=client)
    service = RegistryService(callers=processes, judge=batches, metrics=metrics, clock=time.monotonic)
    metrics.indexed.set_function(lambda: len(index.partition_by_id))
    endpoint = Endpoint(
        live=lambda: None,
        ready=lambda: _not_ready(progress, index),
        metrics=metrics.registry,
        debug={
            "index": lambda: {str(ref): runtime_id for runtime_id, ref in index.partition_by_id.items()},
            "held": service.held,
            "registrations": service.history,
        },
    )
    return Parts(
        dra=dra,
        index=index,
        processes=processes,
        batches=batches,
        reread=Reread(tree=index, kernel=processes, recorder=client, turns=batches, metrics=metrics),
        service=service,
        server=GrpcServer([service], name="registry", limits=_limits(procfs)),
        endpoint=endpoint,
        progress=progress,
    )


def _limits(procfs: Procfs) -> Limits:
    """What a container may do to the socket that all containers share: no pod can take more than its part of it."""

    def pod_of(peer: Peer) -> str:
        place = procfs.locate(peer.pid)
        return place.pod_uid if isinstance(place, ContainerCgroup) else "no pod"

    return Limits(
        allowed_uids=None,
        max_message_bytes=16 << 10,
        # One call each: a pod whose processes all start at once is far below its part; eight pods at theirs take some 160 MiB.
        connections=Bound(of_all=_MAX_CONNECTIONS, of_group=512),
        streams=Bound(of_all=_MAX_CONNECTIONS, of_group=512),
        idle_s=10.0,  # a client connects to call at once
        group_of=pod_of,
    )


def check_start(config: Config) -> None:
    """Makes the socket's directory, and room for every connection.

    Raises:
        StartFailed: a directory is missing or cannot be made.
    """
    needed = ((config.layout.root, "manager directory"), (config.proc_root, "proc root"), (config.cgroup_root, "cgroup root"))
    for path, meaning in needed:
        if not os.path.isdir(path):
            raise StartFailed(f"{meaning} {path} is missing, or is no directory")
    for path, mode in ((config.layout.registry, 0o711), (config.debug_socket.parent, 0o700)):
        try:
            os.makedirs(path, exist_ok=True)
            os.chmod(path, mode)  # whatever the umask, and whoever made it: containers see the first one
        except OSError as exc:
            raise StartFailed(f"cannot make directory {path}: {exc.strerror}") from exc
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _not_ready(progress: Progress, index: Index) -> str | None:
    if not (progress.is_published or progress.is_standby):
        return "the socket is not published yet"
    return None if index.is_built else "the index of containers is being built"


class _Serving:
    """One instance: stands by while another holds the lock, is in charge, hands over."""

    def __init__(self, parts: Parts, config: Config, debug_socket: DebugSocket) -> None:
        self._parts = parts
        self._socket = Path(config.layout.registry_socket)
        self._lock = config.lock
        self._debug_socket = debug_socket

    async def serve(self, stop: asyncio.Event) -> None:
        parts = self._parts
        async with asyncio.TaskGroup() as tasks:
            building = tasks.create_task(parts.index.build(), name="index")
            lock = await locks.hold_unless_stopped(self._lock, stop, on_wait=self._stand_by)
            if lock is None:
                building.cancel()
                return
            self._debug_socket.take_name()
            lanes = tasks.create_task(parts.batches.serve(), name="batches")
            # Whether or not the index is built: until then calls are held, where a missing path would end their processes.
            await parts.server.start(sockets.publish(self._socket, mode=0o666))
            parts.progress.is_published = True
            published = sockets.identity(self._socket)
            await building
            _log.info("serving", socket=str(self._socket), containers=len(parts.index.partition_by_id))
            rereads = tasks.create_task(parts.reread.serve(), name="reread")
            await stop.wait()
            rereads.cancel()
            os.close(lock)
            await self._hand_over(published)
            _log.info("stopping", held=len(parts.service.held()))
            parts.service.drain(DRAIN_S - _LAST_ANSWERS_S)
            await parts.server.stop(DRAIN_S)
            lanes.cancel()

    def _stand_by(self) -> None:
        self._parts.progress.is_standby = True
        _log.info("waiting for the lock", reason="another registry holds it", socket=str(self._lock))

    async def _hand_over(self, published: tuple[int, int]) -> None:
        """Accepts until a successor's socket has replaced ours, if one waits: no call in between is refused."""
        for _ in range(_LOOKS):
            if not sockets.is_same(self._socket, published):
                await asyncio.sleep(_FIRST_BYTES_S)
                return
            await asyncio.sleep(_LOOK_S)
