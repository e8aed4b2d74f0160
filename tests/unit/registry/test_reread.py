"""Rounds of the re-read, over real trees and a real socket of the stand-in for dra-plugin."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from structlog.testing import capture_logs

from vgpu_daemon.grpc_client import PeerSocket
from vgpu_daemon.procfs import Procfs
from vgpu_registry.batches import Batches
from vgpu_registry.index import Index
from vgpu_registry.metrics import Metrics
from vgpu_registry.processes import Processes
from vgpu_registry.registrations_client import RegistrationsClient
from vgpu_registry.reread import Reread
from vgpu_state.claims import HolderState
from vgpu_state.ids import ContainerName, PartitionName
from vgpu_testkit import deep_cgroups
from vgpu_testkit.registry_dra import DraStandIn
from vgpu_testkit.registry_node import RegistryNode, node_container

ONE = node_container(1)
TWO = node_container(2)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def reread(node: RegistryNode, metrics: Metrics) -> AsyncIterator[Reread]:
    index = Index(node.layout)
    processes = Processes(Procfs(proc_root=node.proc, cgroup_root=node.cgroups))
    path = str(node.run_dir / "registrations" / "claims.sock")
    async with PeerSocket(path, peer="dra-plugin", clock=time.monotonic) as dra:
        client = RegistrationsClient(dra)
        turns = Batches(bindings=index, kernel=processes, recorder=client, binder=client)
        yield Reread(tree=index, kernel=processes, recorder=client, turns=turns, metrics=metrics)
    index.close()
    processes.close()


def _count(metrics: Metrics, outcome: str) -> float:
    return metrics.registry.get_sample_value("vgpu_pid_rereads_total", {"outcome": outcome}) or 0.0


async def test_a_changed_list_is_recorded_and_an_equal_one_is_not(
    node: RegistryNode, dra: DraStandIn, reread: Reread, metrics: Metrics
) -> None:
    node.bind(ONE)
    node.populate(ONE.cgroup, [30, 4])
    await reread.look_again()
    assert node.recorded(ONE) == (4, 30)
    await reread.look_again()
    assert len(dra.requests) == 1

    node.populate(ONE.cgroup, [4, 30, 31])
    await reread.look_again()

    assert node.recorded(ONE) == (4, 30, 31)
    assert (_count(metrics, "changed"), _count(metrics, "same")) == (2.0, 1.0)


async def test_a_container_bound_by_its_register_uuid_is_read_again_like_any(
    node: RegistryNode, dra: DraStandIn, reread: Reread
) -> None:
    container = replace(ONE, component=PartitionName("cg-0123456789ab"))
    dra.prepare(container, register_uuid="55555555-5555-4555-8555-555555555555", containers=["warm", "serve"])
    await reread.look_again()
    node.bind(container, container=ContainerName(""))
    node.populate(container.cgroup, [30, 4])

    await reread.look_again()

    assert node.recorded(container) == (4, 30)


async def test_an_empty_list_is_never_recorded(node: RegistryNode, dra: DraStandIn, reread: Reread) -> None:
    node.bind(ONE)
    node.populate(ONE.cgroup, [4])
    await reread.look_again()
    node.populate(ONE.cgroup, [])

    await reread.look_again()

    assert node.recorded(ONE) == (4,)
    assert len(dra.requests) == 1


async def test_stopped_and_not_started_containers_are_left_alone(node: RegistryNode, dra: DraStandIn, reread: Reread) -> None:
    for container in (ONE, TWO):
        node.populate(container.cgroup, [4])
    node.bind(ONE, state=HolderState.STOPPED)
    node.bind(TWO, cgroup="")

    await reread.look_again()

    assert dra.requests == []


@pytest.mark.usefixtures("dra")
async def test_of_more_than_a_thousand_those_with_a_gpu_open_are_recorded(
    node: RegistryNode, reread: Reread, metrics: Metrics
) -> None:
    node.bind(ONE)
    node.populate(ONE.cgroup, range(1, 1201))
    node.opens_gpu(7)
    node.opens_gpu(1200)

    await reread.look_again()

    assert node.recorded(ONE) == (7, 1200)
    assert metrics.registry.get_sample_value("vgpu_pid_lists_cut_total") == 1.0


async def test_of_too_many_without_a_gpu_none_is_recorded(node: RegistryNode, dra: DraStandIn, reread: Reread) -> None:
    node.bind(ONE)
    node.populate(ONE.cgroup, range(1, 1201))

    await reread.look_again()

    assert dra.requests == []


async def test_a_list_that_cannot_be_recorded_is_tried_again_and_stops_no_other(
    node: RegistryNode, dra: DraStandIn, reread: Reread, metrics: Metrics
) -> None:
    for container in (ONE, TWO):
        node.bind(container)
        node.populate(container.cgroup, [4])
    dra.refusal = GRPCError(Status.INTERNAL, "cannot write: ENOSPC")
    await reread.look_again()
    assert _count(metrics, "failed") == 2.0

    dra.refusal = None
    await reread.look_again()

    assert (node.recorded(ONE), node.recorded(TWO)) == ((4,), (4,))


async def test_a_round_ends_when_dra_plugin_is_away_for_three_containers_in_a_row(
    node: RegistryNode, reread: Reread, metrics: Metrics
) -> None:
    for container in map(node_container, range(1, 6)):
        node.bind(container)
        node.populate(container.cgroup, [4])

    await reread.look_again()

    assert _count(metrics, "unavailable") == 3.0


async def test_a_list_that_dra_plugin_cannot_take_now_stops_no_other(
    node: RegistryNode, dra: DraStandIn, reread: Reread, metrics: Metrics
) -> None:
    containers = [node_container(number) for number in range(1, 6)]
    for container in containers:
        node.bind(container)
        node.populate(container.cgroup, [4])
    dra.busy_with = {ONE.claim_uid, TWO.claim_uid}

    await reread.look_again()

    assert (_count(metrics, "unavailable"), _count(metrics, "changed")) == (2.0, 3.0)


@pytest.mark.usefixtures("dra")
async def test_a_fault_that_nobody_foresaw_stops_no_other_container(node: RegistryNode, reread: Reread, metrics: Metrics) -> None:
    for container in (ONE, TWO):
        node.bind(container)
        node.populate(container.cgroup, [4])
    (node.cgroups / ONE.cgroup.lstrip("/") / "cgroup.procs").write_text("not a number\n")

    with capture_logs() as logged:
        await reread.look_again()
        await reread.look_again()

    assert node.recorded(TWO) == (4,)
    assert (_count(metrics, "failed"), _count(metrics, "same")) == (2.0, 1.0)
    assert [line["event"] for line in logged if line["log_level"] == "warning"] == ["PID list not recorded"]


@pytest.mark.usefixtures("dra")
async def test_cgroups_nested_too_deep_for_a_path_are_read(node: RegistryNode, reread: Reread) -> None:
    node.bind(ONE)
    node.populate(ONE.cgroup, [4])
    with deep_cgroups.made() as deep:
        deep.below(node.cgroups / ONE.cgroup.lstrip("/"), 3000, pid=50)

        await reread.look_again()

    assert node.recorded(ONE) == (4, 50)


async def test_of_more_than_two_thousand_the_open_files_of_the_first_are_read(
    node: RegistryNode, dra: DraStandIn, reread: Reread
) -> None:
    node.bind(ONE)
    node.populate(ONE.cgroup, range(1, 2501))
    for pid in (7, 2000, 2001):
        node.opens_gpu(pid)

    await reread.look_again()

    assert node.recorded(ONE) == (7, 2000)
    assert len(dra.requests) == 1
