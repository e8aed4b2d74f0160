"""dra-plugin's four sockets under garbage: it lives, does not grow, and serves a client that was connected before."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from hypothesis import HealthCheck, Phase, given, settings

from vgpu_proto import dra_v1, partitions, pluginregistration, registrations
from vgpu_testkit.dra_bench import DraBench, half_a_gpu, kubelet_claim
from vgpu_testkit.dra_calls import Raw, call
from vgpu_testkit.garbage import Garbage, garbage, send

CLAIM = half_a_gpu()
ROOM_MIB = 20
PARTITION = "0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c11_train"

BIND = "/vgpu.registrations.v1.Registrations/BindPartition"
REGISTRATION = registrations.BindPartitionRequest(
    register_uuid="6d0c1c5e-0e4b-4a7d-8a52-4f2a70f3c001",
    runtime_id="a" * 64,
    pod_uid=PARTITION[:36],
    container_name="train",
    pid=4_000_000,
)


@dataclass(frozen=True, kw_only=True)
class Socket:
    """One of the sockets. `probe` calls the first method and changes nothing; `sample` is a whole message of another call."""

    name: str
    path: Callable[[DraBench], Path]
    methods: tuple[str, ...]
    probe: tuple[Any, type]
    sample: bytes

    def __str__(self) -> str:
        return self.name


SOCKETS = (
    Socket(
        name="dra",
        path=lambda bench: bench.node.kubelet_dir / "plugins/manager.nvidia.com/dra.sock",
        methods=(
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
        ),
        probe=(dra_v1.NodePrepareResourcesRequest(), dra_v1.NodePrepareResourcesResponse),
        sample=bytes(
            dra_v1.NodePrepareResourcesRequest(claims=[dra_v1.Claim(namespace="research", name="absent", uid="1" * 36)])
        ),
    ),
    Socket(
        name="registration",
        path=lambda bench: bench.node.kubelet_dir / "plugins_registry/manager.nvidia.com-reg.sock",
        # Not NotifyRegistrationStatus: one that says "refused" rightly makes the socket anew and ends its connections.
        methods=("/pluginregistration.Registration/GetInfo",),
        probe=(pluginregistration.InfoRequest(), pluginregistration.PluginInfo),
        sample=bytes(pluginregistration.RegistrationStatus(plugin_registered=True, error="none")),
    ),
    Socket(
        name="partitions",
        path=lambda bench: bench.node.run_dir / "partitions/claims.sock",
        methods=tuple(
            f"/vgpu.partitions.v1.Partitions/{name}"
            for name in ("ReleasePartition", "EnsurePartition", "RecordStart", "Synchronize", "RenewSession")
        ),
        # Not RenewSession: what was thrown may have been a good Synchronize of another session.
        probe=(
            partitions.ReleasePartitionRequest(runtime_id="b" * 64, stage=partitions.ReleasePartitionRequest.STOPPED),
            partitions.ReleasePartitionResponse,
        ),
        sample=partitions.EnsurePartitionRequest(
            session=1,
            container=partitions.Container(
                runtime_id="a" * 64,
                name="train",
                pod=partitions.Pod(uid=PARTITION[:36], namespace="research", name="p"),
                grants=[partitions.Grant(key="0" * 16, value=f"{CLAIM.uid}/gpu/{'0' * 32}")],
            ),
        ).SerializeToString(),
    ),
    Socket(
        name="registrations",
        path=lambda bench: bench.node.run_dir / "registrations/claims.sock",
        methods=("/vgpu.registrations.v1.Registrations/RecordPids",),
        probe=(registrations.RecordPidsRequest(), registrations.RecordPidsResponse),
        sample=bytes(
            registrations.RecordPidsRequest(claim_uid=CLAIM.uid, partition=PARTITION, runtime_id="a" * 64, pids=[1, 2, 300])
        ),
    ),
    Socket(
        name="registrations, BindPartition",
        path=lambda bench: bench.node.run_dir / "registrations/claims.sock",
        methods=(BIND,),
        probe=(REGISTRATION, registrations.BindPartitionResponse),
        sample=bytes(REGISTRATION),
    ),
)

TEXTS = ("register_uuid", "runtime_id", "pod_uid", "container_name")
WRONG_TYPES = (b"\x08\x07", b"\x10\x07", b"\x18\x07", b"\x20\x07", b"\x29" + bytes(8), b"\x2a\x02\xff\xfe")


@pytest.mark.parametrize(
    "sent",
    [
        *(bytes(replace(REGISTRATION, **{name: value})) for name in TEXTS for value in ("../../etc", "a" * (1 << 20), "\0", "é")),
        *(bytes(replace(REGISTRATION, **{name: ""})) for name in TEXTS if name != "container_name"),
        *(bytes(replace(REGISTRATION, pid=pid)) for pid in (0, -1, -(1 << 31))),
        *(bytes(REGISTRATION) + wrong for wrong in WRONG_TYPES),
        b"",
    ],
    ids=itertools.count(),
)
async def test_registration_that_is_none_is_refused_as_malformed(shared_bench: DraBench, sent: bytes) -> None:
    path, before = shared_bench.node.run_dir / "registrations/claims.sock", shared_bench.picture()

    with pytest.raises(GRPCError) as refusal:
        await call(path, BIND, Raw(sent), registrations.BindPartitionResponse)

    assert refusal.value.status is Status.INVALID_ARGUMENT
    assert len(refusal.value.message or "") < 400
    assert shared_bench.picture() == before


@pytest.mark.parametrize("socket", SOCKETS, ids=str)
def test_socket_outlives_garbage_and_serves_who_was_connected_before(shared_bench: DraBench, socket: Socket) -> None:
    path = socket.path(shared_bench)
    CLAIM.write(shared_bench.claims)
    assert asyncio.run(shared_bench.answers(kubelet_claim(CLAIM)))[CLAIM.uid].error == ""

    @settings(
        max_examples=2000,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(garbage(socket.methods, socket.sample))
    def throw(thrown: Garbage) -> None:
        send(path, thrown)

    with asyncio.Runner() as runner:
        client = Client(path, socket)
        before = runner.run(client.ask())
        send(path, Garbage(b"warm"))
        picture, resident_kib = shared_bench.picture(), _resident_kib(shared_bench.dra.pid)

        throw()

        assert shared_bench.dra.process is not None
        assert shared_bench.dra.process.poll() is None
        assert runner.run(client.ask()) == before
        assert client.dials == 1
        assert shared_bench.picture() == picture
        assert _resident_kib(shared_bench.dra.pid) - resident_kib < ROOM_MIB << 10
        client.close()


class _CountedChannel(Channel):
    """Counts its connections."""

    dials = 0

    async def _create_connection(self) -> Any:  # Any: grpclib's own signature
        self.dials += 1
        return await super()._create_connection()


class Client:
    """A connection that stays, and a call on it that is answered the same as long as nothing changes."""

    def __init__(self, path: Path, socket: Socket) -> None:
        self._path = path
        self._socket = socket
        self._channel: _CountedChannel | None = None

    @property
    def dials(self) -> int:
        return self._channel.dials if self._channel else 0

    async def ask(self) -> object:
        """The answer, or the status of the refusal."""
        if self._channel is None:
            self._channel = _CountedChannel(path=str(self._path))
        request, response = self._socket.probe
        method: UnaryUnaryMethod[Any, Any] = UnaryUnaryMethod(self._channel, self._socket.methods[0], type(request), response)
        try:
            return await method(request, timeout=5)
        except GRPCError as exc:
            return exc.status, exc.message

    def close(self) -> None:
        assert self._channel is not None
        self._channel.close()


def _resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
