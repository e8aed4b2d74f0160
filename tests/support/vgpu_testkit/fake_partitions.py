"""dra-plugin's Partitions service as nri-plugin meets it: counts what is asked, answers a fixed partition, fails on demand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from grpclib.const import Handler

from vgpu_daemon import context, sockets
from vgpu_daemon.grpc_server import GrpcServer, Limits, unary
from vgpu_proto import partitions
from vgpu_state.errors import VgpuError

_SERVICE = "/vgpu.partitions.v1.Partitions"
_METHODS = ("EnsurePartition", "RecordStart", "ReleasePartition", "Synchronize", "RenewSession")


class FakePartitions:
    """`faults` maps a method to what it raises; a method in `hung` answers only once its event is set;
    one in `garbled` answers bytes that are no message.

    As the real one does, it knows a session only after its Synchronize, and forgets all of them in a restart (`forget`).
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.op_ids: dict[str, list[str]] = {name: [] for name in _METHODS}
        self.faults: dict[str, Exception] = {}
        self.hung: dict[str, asyncio.Event] = {}
        self.garbled: set[str] = set()
        self.unbound: tuple[str, ...] = ()
        self.drifted: tuple[str, ...] = ()
        self.config_dir = "/host/claims/partition/config"
        self._session = 0
        self._arrived = asyncio.Condition()

    def forget(self) -> None:
        self._session = 0

    def asked(self, method: str) -> list[Any]:
        """The requests of one method, in order."""
        return [request for name, request in self.calls if name == method]

    async def wait_for(self, method: str, count: int = 1) -> list[Any]:
        """The requests of one method once there are `count` of them."""
        async with asyncio.timeout(10), self._arrived:
            await self._arrived.wait_for(lambda: len(self.asked(method)) >= count)
        return self.asked(method)

    def __mapping__(self) -> dict[str, Handler]:
        return {f"{_SERVICE}/{name}": self._handler(name) for name in _METHODS}

    def _handler(self, name: str) -> Handler:
        answer = getattr(self, f"_{name}")

        async def serve(request: Any) -> Any:
            self.calls.append((name, request))
            self.op_ids[name].append(context.op_id.get())
            async with self._arrived:
                self._arrived.notify_all()
            if name in self.hung:
                await self.hung[name].wait()
            if name in self.faults:
                raise self.faults[name]
            return _Garbled(answer(request)) if name in self.garbled else answer(request)

        return unary(serve, getattr(partitions, f"{name}Request"), getattr(partitions, f"{name}Response"))

    def _EnsurePartition(self, request: partitions.EnsurePartitionRequest) -> partitions.EnsurePartitionResponse:  # noqa: N802
        pod = request.container.pod
        return partitions.EnsurePartitionResponse(
            mounts=[
                partitions.Mount(
                    destination="/etc/vgpu-manager/config",
                    source=self.config_dir,
                    type="bind",
                    options=["ro", "nosuid", "nodev", "bind"],
                )
            ],
            env=[partitions.EnvVar(name="VGPU_POD_NAME", value=pod.name)],
            claim_uid=request.container.grants[0].value.partition("/")[0],
            partition=f"{pod.uid}_{request.container.name}",
        )

    def _RecordStart(self, _: partitions.RecordStartRequest) -> partitions.RecordStartResponse:  # noqa: N802
        return partitions.RecordStartResponse()

    def _ReleasePartition(self, _: partitions.ReleasePartitionRequest) -> partitions.ReleasePartitionResponse:  # noqa: N802
        return partitions.ReleasePartitionResponse()

    def _Synchronize(self, request: partitions.SynchronizeRequest) -> partitions.SynchronizeResponse:  # noqa: N802
        self._session = request.session
        return partitions.SynchronizeResponse(unbound_runtime_ids=self.unbound, drifted_runtime_ids=self.drifted)

    def _RenewSession(self, request: partitions.RenewSessionRequest) -> partitions.RenewSessionResponse:  # noqa: N802
        return partitions.RenewSessionResponse(is_known=request.session == self._session)


@asynccontextmanager
async def serving(fake: FakePartitions, path: Path) -> AsyncIterator[None]:
    """Serves the fake on `path`; the path is gone afterwards, as when dra-plugin's directory is emptied."""
    path.parent.mkdir(parents=True, exist_ok=True)
    limits = Limits(allowed_uids=frozenset({os.getuid()}), max_message_bytes=16 << 20)
    server = GrpcServer([fake], name="partitions", limits=limits)
    await server.start(sockets.publish(path, mode=0o600))
    try:
        yield
    finally:
        for event in fake.hung.values():
            event.set()
        await server.stop(grace_s=1.0)
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - one unlink on tmpfs


class _Garbled:
    """Passes for the message it wraps, and is sent as bytes that are none."""

    def __init__(self, message: Any) -> None:
        self._message = message

    @property  # type: ignore[misc]  # isinstance() looks at it, and so does grpclib's codec
    def __class__(self) -> Any:
        return type(self._message)

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's own name
        return b"\x0a\xff"


class Bug(VgpuError):
    """What has no status of its own, and so reaches the caller as INTERNAL."""
