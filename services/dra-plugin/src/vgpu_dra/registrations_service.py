"""registry's calls: vgpu.registrations.v1 on its private socket."""

from __future__ import annotations

import structlog

from vgpu_dra import wire
from vgpu_dra.eager_bindings import EagerBindings
from vgpu_dra.metrics import Metrics
from vgpu_dra.partition_state import Partitions
from vgpu_dra.workers import TreeWorkers
from vgpu_proto import registrations
from vgpu_state.errors import VgpuError

_log = structlog.get_logger()


class RegistrationsService(registrations.RegistrationsBase):
    """Serves RecordPids and BindPartition."""

    def __init__(self, state: Partitions, bindings: EagerBindings, workers: TreeWorkers, metrics: Metrics) -> None:
        self._state = state
        self._bindings = bindings
        self._workers = workers
        self._metrics = metrics

    async def record_pids(self, record_pids_request: registrations.RecordPidsRequest) -> registrations.RecordPidsResponse:
        uid, partition, runtime_id, pids = wire.recorded_pids(record_pids_request)
        about = {"claim_uid": uid, "partition": partition, "container_id": runtime_id, "pids": len(pids)}
        try:
            with self._metrics.timed("record_pids"):
                changed = await self._workers.run(lambda: self._state.record_pids(uid, partition, runtime_id, pids))
        except VgpuError as exc:
            _log.warning("record_pids refused", **about, reason=str(exc))
            raise
        _log.info("record_pids", **about, changed=changed)
        return registrations.RecordPidsResponse(changed=changed)

    async def bind_partition(
        self, bind_partition_request: registrations.BindPartitionRequest
    ) -> registrations.BindPartitionResponse:
        register_uuid, who = wire.registrant(bind_partition_request)
        about = {"container_id": who.runtime_id, "pod_uid": who.pod_uid, "container": who.container, "pid": who.pid}
        try:
            with self._metrics.timed("bind_partition"):
                uid, name = await self._workers.run(lambda: self._bindings.bind(register_uuid, who))
        except VgpuError as exc:
            _log.warning("bind_partition refused", **about, outcome=type(exc).__name__, reason=str(exc))
            raise
        _log.info("bind_partition", **about, claim_uid=uid, partition=name)
        return registrations.BindPartitionResponse(claim_uid=uid, partition=name)
