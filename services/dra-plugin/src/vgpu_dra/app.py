"""dra-plugin put together: what is constructed, in which order it starts, what runs until the end."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from vgpu_daemon import boottime, locks, logs, memory, run
from vgpu_daemon.endpoint import Endpoint
from vgpu_daemon.grpc_client import PeerSocket
from vgpu_daemon.run import StartFailed
from vgpu_dra import config, debug, pod_resources_client, private_sockets, startup, vanished_claims
from vgpu_dra.assignment_mode import AssignmentMode
from vgpu_dra.claim_consumers import ClaimConsumers, PodSource
from vgpu_dra.claim_lookup import ClaimLookup, Source
from vgpu_dra.confirmation import Confirmation
from vgpu_dra.control_plane import ControlPlane
from vgpu_dra.effects.health_file import HealthFile
from vgpu_dra.effects.manifest_claims import DirectorySource, ManifestClaims
from vgpu_dra.effects.nvml import NvmlReader
from vgpu_dra.effects.nvml_events import EventListener
from vgpu_dra.effects.nvml_library import NvmlLibrary
from vgpu_dra.feature_gates import Gate
from vgpu_dra.gpus import Gpus
from vgpu_dra.health_monitor import HealthMonitor
from vgpu_dra.health_service import HealthReports
from vgpu_dra.kubelet_service import DraNode
from vgpu_dra.kubelet_sockets import KubeletSockets
from vgpu_dra.metrics import Metrics
from vgpu_dra.node_state import NodeState
from vgpu_dra.partitions_service import PartitionsService
from vgpu_dra.pod_resources_client import PodResourcesClient
from vgpu_dra.recorder import NoRecorder, Recorder
from vgpu_dra.registrations_service import RegistrationsService
from vgpu_dra.session_watch import SessionWatch
from vgpu_dra.unchecked_health import UncheckedHealth
from vgpu_dra.vanished_claims import VanishedClaims
from vgpu_dra.workers import TreeWorkers
from vgpu_state.claims import ClaimRef
from vgpu_state.errors import StorageFailed
from vgpu_state.reader import ClaimsReader

_log = structlog.get_logger()

DRAIN_S = 10.0
FIRST_INVENTORY_S = 5.0  # then it serves without: Unprepare and GetInfo need no GPU


class App:
    """One dra-plugin. Constructing it does no I/O but reading the boot id and which cgroups the node has."""

    def __init__(self, settings: config.Config) -> None:
        self._settings = settings
        self._phase = "starting"
        self._metrics = Metrics()
        self._workers = TreeWorkers()
        self._boot_id = startup.boot_id(settings.proc_root)
        self._nvml = NvmlLibrary(settings.paths.driver_root)
        self._health = self._health_check()
        self._gpus = Gpus(NvmlReader(self._nvml).look, on_change=self._inventory_changed, watcher=self._health)
        self._health.look_soon = self._gpus.look_soon
        self._state = state = NodeState(settings, boot_id=self._boot_id, inventory=self._gpus.inventory)
        self._claims, self._housekeeping = state.claims, state.housekeeping
        self._control_plane: ControlPlane | None = None
        self._recorder: Recorder = NoRecorder()
        source, pods = self._claim_sources()
        pod_resources = str(settings.kubelet_dir / pod_resources_client.SOCKET)
        self._pod_resources = PeerSocket(pod_resources, peer="kubelet", clock=boottime.boottime_s)
        told = PodResourcesClient(self._pod_resources, clock=boottime.boottime_s)
        self._partitions_service = PartitionsService(
            state.synchronization,
            Confirmation(told, state.ledger, self._metrics),
            self._workers,
            self._metrics,
            after_removal=self._housekeeping.empty_trash_soon,
        )
        self._partitions_service.recorder = self._recorder
        lease = self._partitions_service.lease
        self._mode = AssignmentMode(lease, is_nri_supported=settings.gates.is_on(Gate.NRI_SUPPORT), clock=time.monotonic)
        lookup = ClaimLookup(source, self._mode, ClaimConsumers(pods))
        self._dra = DraNode(self._claims, lookup, self._workers, self._metrics, clock=boottime.boottime_s)
        self._dra.after_removal = self._housekeeping.empty_trash_soon
        self._dra.recorder = self._recorder
        reports = HealthReports(self._health, self._gpus.inventory, pool=settings.node_name)
        self._kubelet = KubeletSockets(self._dra, reports, settings.kubelet, clock=boottime.boottime_s)
        self._session_watch = SessionWatch(lambda: lease.renewed_at_s, self._recorder, clock=time.monotonic)
        self._metrics.watch(self._state.ledger)
        self._metrics.show_gates(settings.gates.states())
        self._metrics.gauge(
            "vgpu_dra_health_quiet_seconds", "For how long errors of GPUs would go unnoticed", lambda: self._health.quiet_s
        )
        self._metrics.gauge(
            "vgpu_dra_unreadable_gpus", "GPUs and MIG devices that cannot be read", lambda: len(self._gpus.unreadable)
        )

    async def serve(self, stop: asyncio.Event) -> None:
        """Takes the writer lock, recovers, serves until `stop`, drains.

        Raises:
            StartFailed: a path, permission or socket that it needs is missing.
        """
        startup.warn_of_what_containers_see(is_client_mode=self._settings.gates.is_on(Gate.CLIENT_MODE))
        startup.compare_views(self._settings.agent, self._settings.rules.host, self._settings.host_root)
        startup.make_tree(self._state.tree)
        endpoint = Endpoint(live=lambda: None, ready=self._readiness, metrics=self._metrics.registry, debug=self._debug())
        async with endpoint.serve(tcp=self._settings.http_listen, unix=self._settings.debug_socket) as debug_socket:
            # Before the lock is ours: a predecessor serves until then, and NVML may take seconds for its first answer.
            await self._gpus.refresh(patience_s=FIRST_INVENTORY_S)
            await self._become_writer(stop)
            if stop.is_set():
                return
            debug_socket.take_name()
            await self._recover()
            memory.keep_what_lives()
            await self._serve_all(stop)

    def _health_check(self) -> HealthMonitor | UncheckedHealth:
        settings = self._settings
        if not settings.gates.is_on(Gate.HEALTH_CHECK):
            return UncheckedHealth()
        return HealthMonitor(
            HealthFile(settings.agent), settings.xid_rules, self._metrics, poll_s=settings.gpu_poll_s, clock=boottime.boottime_s
        )

    def _claim_sources(self) -> tuple[Source, PodSource]:
        """Where claims come from the API server, the scheduler learns there what we have; a directory needs no cluster."""
        claims_from = self._settings.claims_from
        if isinstance(claims_from, Path):
            manifests = DirectorySource(ManifestClaims(claims_from))
            return manifests, manifests
        self._control_plane = ControlPlane(
            node=claims_from,
            gpus=self._gpus,
            metrics=self._metrics,
            rules=self._settings.offer,
            taints=self._health.taints,
        )
        self._health.on_change = self._control_plane.offer_changed
        self._recorder = self._health.recorder = self._control_plane.recorder
        return self._control_plane.claims, self._control_plane.pods

    async def _become_writer(self, stop: asyncio.Event) -> None:
        self._phase = "waiting for the writer lock"
        async with asyncio.TaskGroup() as waiting:
            looking = waiting.create_task(self._gpus.serve(every_s=self._settings.gpu_poll_s), name="gpus")
            await locks.hold_unless_stopped(
                Path(self._settings.agent.writer_lock),
                stop,
                on_wait=lambda: _log.info("waiting for the writer lock", reason="another dra-plugin holds it"),
            )
            looking.cancel()

    async def _recover(self) -> None:
        self._phase = "recovering"
        try:
            await self._workers.run(
                lambda: startup.recover(
                    self._state.tree,
                    ClaimsReader(self._settings.agent),
                    self._state.ledger,
                    boot_id=self._boot_id,
                    clock=boottime.boottime_s,
                )
            )
        except StorageFailed as exc:
            raise StartFailed(f"cannot recover the claims tree: {exc}") from exc
        self._metrics.events.labels("claim_quarantined").inc(len(self._state.ledger.quarantined))
        startup.tell_quarantined(self._state.ledger, self._recorder)
        self._housekeeping.empty_trash_soon()
        await self._health.load(self._workers, boot_id=self._boot_id)
        self._housekeeping.restore_specs_soon()

    async def _serve_all(self, stop: asyncio.Event) -> None:
        nri = await private_sockets.serve(self._settings.partitions_socket, [self._partitions_service])
        registrations = RegistrationsService(self._state.partitions, self._state.eager_bindings, self._workers, self._metrics)
        registry = await private_sockets.serve(self._settings.registrations_socket, [registrations])
        self._phase = "serving"
        self._mode.begin()
        try:
            async with self._pod_resources, asyncio.TaskGroup() as running:
                background = [running.create_task(self._gpus.serve(every_s=self._settings.gpu_poll_s), name="gpus")]
                listen = self._health.serve(lambda ear: EventListener(self._nvml, ear), self._workers)
                background.append(running.create_task(listen, name="health"))
                background.append(running.create_task(self._housekeeping.serve(), name="housekeeping"))
                if self._settings.gates.is_on(Gate.NRI_SUPPORT):  # else nobody is missed
                    background.append(running.create_task(self._session_watch.serve(), name="session watch"))
                if self._control_plane is not None:
                    vanished = self._vanished_claims(self._control_plane)
                    background.append(running.create_task(vanished.serve(), name="vanished claims"))
                    background.append(running.create_task(self._control_plane.serve(), name="control plane"))
                await self._kubelet.serve(stop, drain_s=DRAIN_S)
                for task in background:
                    task.cancel()
        finally:
            self._phase = "draining"
            async with asyncio.TaskGroup() as draining:
                draining.create_task(registry.stop(private_sockets.DRAIN_S))
                draining.create_task(nri.stop(private_sockets.DRAIN_S))

    def _vanished_claims(self, control_plane: ControlPlane) -> VanishedClaims:
        vanished = VanishedClaims(
            control_plane.claims, self._claims, self._state.ledger, self._workers, clock=boottime.boottime_s
        )

        def on_removed(claim: ClaimRef) -> None:
            vanished_claims.tell_removed(claim, self._recorder, self._metrics)
            self._housekeeping.empty_trash_soon()

        vanished.on_removed = on_removed
        return vanished

    def _readiness(self) -> str | None:
        if self._phase == "waiting for the writer lock":
            return None  # ready, or a rolling update would wait for us while we wait for its predecessor
        if self._phase != "serving":
            return self._phase
        if self._gpus.fault is not None:
            return self._gpus.fault
        if self._control_plane is not None and self._control_plane.fault is not None:
            return self._control_plane.fault
        return self._kubelet.registration.refusal or None

    def _inventory_changed(self) -> None:
        self._housekeeping.restore_specs_soon()
        self._health.gpus_changed()
        if self._control_plane is not None:
            self._control_plane.offer_changed()

    def _debug(self) -> dict[str, Callable[[], Any]]:
        return {
            "state": lambda: {
                "phase": self._phase,
                "gpu_fault": self._gpus.fault,
                "unreadable_gpus": self._gpus.unreadable,
                "lost_gpus": self._gpus.lost,
                "boot_id": self._boot_id,
                "nri_session": self._state.partitions.synchronized_session,
                "is_nri_alive": self._partitions_service.lease.is_alive(),
            },
            "feature_gates": self._settings.gates.states,
            "claims": lambda: debug.claims(self._state.ledger),
            "partitions": lambda: debug.partitions(self._state.ledger),
            "health": self._health.show,
            "calls": lambda: self._partitions_service.recent,
        }


def main() -> None:
    """The console script."""
    os.umask(0o022)  # the modes of the tree are what the code says
    logs.configure(service="dra-plugin")

    async def serve(stop: asyncio.Event) -> None:
        await App(config.parse_config(sys.argv[1:], os.environ)).serve(stop)

    run.run(serve, prog=config.PROG)
