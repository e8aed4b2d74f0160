"""dra-plugin as registry sees it: a stand-in that serves Registrations on the node's private socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_daemon import sockets
from vgpu_daemon.grpc_server import GrpcServer, Limits
from vgpu_proto.registrations import (
    BindPartitionRequest,
    BindPartitionResponse,
    RecordPidsRequest,
    RecordPidsResponse,
    RegistrationsBase,
)
from vgpu_state import bindings, ids, pids
from vgpu_state.claims import Binding
from vgpu_state.errors import MalformedInput, PermissionRefused, PreconditionFailed, Superseded
from vgpu_state.ids import ClaimUid, ContainerName, PartitionName, RuntimeId
from vgpu_state.reader import ClaimsReader
from vgpu_testkit.registry_node import NodeContainer, RegistryNode, write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPartition:
    """A partition made at Prepare: `of` says where and of which pod, `containers` who may hold it."""

    of: NodeContainer
    containers: frozenset[str]

    @property
    def sole_container(self) -> ContainerName:
        return ContainerName(next(iter(self.containers)) if len(self.containers) == 1 else "")


@dataclass(slots=True)
class DraStandIn(RegistrationsBase):
    """Keeps what it was sent; writes bindings and PID lists, or refuses with `refusal`. For the claims of `busy_with` it is
    unavailable.
    """

    node: RegistryNode
    requests: list[RecordPidsRequest] = field(default_factory=list)
    binds: list[BindPartitionRequest] = field(default_factory=list)
    prepared: dict[str, PreparedPartition] = field(default_factory=dict)
    refusal: GRPCError | None = None
    busy_with: Collection[ClaimUid] = ()

    def prepare(self, container: NodeContainer, *, register_uuid: str, containers: Iterable[str] = ()) -> None:
        """Has made the container's partition at Prepare, for it or for several by name."""
        Path(self.node.layout.config(container.claim_uid, container.partition)).mkdir(parents=True)
        names = frozenset(containers) or frozenset({str(container.name)})
        self.prepared[register_uuid] = PreparedPartition(of=container, containers=names)

    async def record_pids(self, record_pids_request: RecordPidsRequest) -> RecordPidsResponse:
        self.requests.append(record_pids_request)
        request = record_pids_request
        if self.refusal is not None:
            raise self.refusal
        uid, name = ids.parse_claim_uid(request.claim_uid), ids.parse_partition_name(request.partition)
        if uid in self.busy_with:
            raise GRPCError(Status.UNAVAILABLE, "another operation on the claim is under way")
        holder = self._holder(uid, name)
        if holder is None or holder.runtime_id != ids.parse_runtime_id(request.runtime_id):
            raise Superseded(f"container {request.runtime_id} does not hold {uid}/{name}")
        write_whole(Path(self.node.layout.pids(uid, name)), pids.encode_pids(request.pids))
        return RecordPidsResponse(changed=True)

    async def bind_partition(self, bind_partition_request: BindPartitionRequest) -> BindPartitionResponse:
        self.binds.append(bind_partition_request)
        if self.refusal is not None:
            raise self.refusal
        request = bind_partition_request
        uuid, runtime_id = ids.parse_register_uuid(request.register_uuid), ids.parse_runtime_id(request.runtime_id)
        pod_uid = ids.parse_pod_uid(request.pod_uid)
        said = ids.parse_container_name(request.container_name) if request.container_name else ContainerName("")
        cgroup = self._cgroup(request.pid)
        if (partition := self.prepared.get(uuid)) is None:
            raise PermissionRefused("no claim of this node has a partition with it")
        if pod_uid != partition.of.pod_uid:
            raise PermissionRefused(f"it is of a claim of pod {partition.of.pod_uid}, not of pod {pod_uid}")
        if not cgroup.endswith(runtime_id):
            raise PermissionRefused(f"process {request.pid} is not in container {runtime_id}")
        if said and said not in partition.containers:
            raise PermissionRefused(f"its partition is not for container {said}")
        uid, name = partition.of.claim_uid, partition.of.partition
        holder = self._holder(uid, name)
        if holder is None or holder.runtime_id != runtime_id or not holder.is_started:
            if holder is not None and holder.runtime_id != runtime_id and self._runs(holder):
                raise PreconditionFailed(f"partition {name} of claim {uid} is held by {holder}, which still runs")
            self._bind(partition, cgroup=cgroup, runtime_id=runtime_id, container=said or partition.sole_container)
        return BindPartitionResponse(claim_uid=uid, partition=name)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answers on the private socket while the context lasts."""
        async with served(self.node, self):
            yield

    def _bind(self, partition: PreparedPartition, *, cgroup: str, runtime_id: RuntimeId, container: ContainerName) -> None:
        of = partition.of
        binding = replace(of.binding(), runtime_id=runtime_id, cgroup=cgroup, container=container)
        write_whole(Path(self.node.layout.binding(of.claim_uid, of.partition)), bindings.encode_binding(binding))

    def _holder(self, uid: ClaimUid, name: PartitionName) -> Binding | None:
        return ClaimsReader(self.node.layout).binding(uid, name)

    def _cgroup(self, pid: int) -> str:
        if pid < 1:
            raise MalformedInput(f"pid is {pid}; expected a host PID")
        return (self.node.proc / str(pid) / "cgroup").read_text().strip().removeprefix("0::")

    def _runs(self, holder: Binding) -> bool:
        procs = self.node.cgroups / holder.cgroup.lstrip("/") / "cgroup.procs"
        return procs.exists() and procs.read_text() != ""


@asynccontextmanager
async def served(node: RegistryNode, service: Any) -> AsyncIterator[None]:
    """`service` (what grpclib serves) on the private socket of dra-plugin while the context lasts."""
    path = node.run_dir / "registrations" / "claims.sock"
    path.parent.mkdir(exist_ok=True)
    server = GrpcServer([service], name="dra stand-in", limits=Limits())
    await server.start(sockets.publish(path, mode=0o600))
    try:
        yield
    finally:
        await server.stop(1.0)
