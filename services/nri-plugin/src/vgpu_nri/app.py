"""The nri-plugin process: its parts, how they are joined, and the only list of what runs."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

import structlog

from vgpu_daemon import boottime, locks, logs, memory, run
from vgpu_daemon.endpoint import DebugSocket, Endpoint
from vgpu_daemon.grpc_client import REDIAL_PAUSE_S, PeerSocket
from vgpu_nri import partitions_client, policy, wire
from vgpu_nri.config import PROG, Config, parse_config
from vgpu_nri.health import Health
from vgpu_nri.lease import Lease, Pace
from vgpu_nri.ledger import Ledger
from vgpu_nri.link import LinkTiming, RuntimeLink
from vgpu_nri.partitions_client import PartitionsClient
from vgpu_nri.plugin_service import Surroundings
from vgpu_nri.telemetry import Telemetry

_log = structlog.get_logger()
_DRAIN_S = 2.0  # above the longest deadline of a hook


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Every period of the process; what the defaults mean stands where they are."""

    link: LinkTiming = field(default_factory=LinkTiming)
    pace: Pace = field(default_factory=Pace)
    redial_pause_s: float = REDIAL_PAUSE_S


def main() -> NoReturn:
    logs.configure(service="nri-plugin")

    async def until_stopped(stop: asyncio.Event) -> None:
        await serve(parse_config(sys.argv[1:], os.environ), stop, timing=Timing())

    run.run(until_stopped, prog=PROG)


async def serve(config: Config, stop: asyncio.Event, *, timing: Timing) -> None:
    """Runs the plugin until `stop` is set.

    Raises:
        StartFailed: the run directory, the lock or a socket cannot be had.
    """
    _make_private_dirs(config)
    telemetry, ledger = Telemetry(), Ledger()
    health = Health(clock=time.monotonic, episode=config.episode)
    async with PeerSocket(
        str(config.partitions_socket), peer="dra-plugin", clock=time.monotonic, redial_pause_s=timing.redial_pause_s
    ) as peer:
        client = PartitionsClient(peer)
        surroundings = Surroundings(
            partitions=client,
            ledger=ledger,
            telemetry=telemetry,
            clock=time.perf_counter,
            boottime_ns=boottime.boottime_ns,
        )
        lease = Lease(client, ledger=ledger, telemetry=telemetry, pace=timing.pace)
        link = RuntimeLink(config.nri_socket, surroundings=surroundings, lease=lease, health=health, timing=timing.link)
        debug = {
            "partitions": lambda: _show_partitions(ledger),
            "calls": telemetry.recent_calls,
            "session": link.describe_session,
        }
        endpoint = Endpoint(live=health.live, ready=health.ready, metrics=telemetry.registry, debug=debug)
        async with endpoint.serve(tcp=config.http_listen, unix=config.debug_socket) as shown, asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(_serve_alone(config, shown, link=link, health=health), name="runtime")
            await stop.wait()
            await link.drain(_DRAIN_S)
            serving.cancel()


async def _serve_alone(config: Config, shown: DebugSocket, *, link: RuntimeLink, health: Health) -> None:
    """Two instances never register: containers would then be refused for mounts that both set."""
    _warm_up()  # before the lock: while a predecessor holds it, nothing waits for this

    def on_wait() -> None:
        health.standby()
        _log.info("waiting for the plugin lock", path=str(config.lock))

    fd = await locks.hold_for_life(config.lock, on_wait=on_wait)
    try:
        shown.take_name()
        await link.serve()
    finally:
        os.close(fd)


def _warm_up() -> None:
    """The first hook must not pay for first uses, nor any for a collection that walks what start-up has left."""
    wire.warm_up()
    partitions_client.warm_up()
    memory.keep_what_lives()


def _make_private_dirs(config: Config) -> None:
    try:
        config.run_dir.mkdir(parents=True, exist_ok=True, mode=0o755)
        config.debug_socket.parent.mkdir(exist_ok=True, mode=0o700)
    except OSError as exc:
        raise run.StartFailed(f"cannot make {config.run_dir}: {exc.strerror}") from exc


def _show_partitions(ledger: Ledger) -> list[dict[str, Any]]:
    """The live vGPU containers, as JSON can hold them. No grant, no env."""
    return [
        {
            "container_id": runtime_id,
            "container": policy.full_name(held.container),
            "pod_uid": held.container.pod.uid,
            "claim_uid": policy.shown_claims(held.container),
            "partition": held.partition,
            "pid": held.container.pid,
            "session": held.session_id,
        }
        for runtime_id, held in ledger.live.items()
    ]
