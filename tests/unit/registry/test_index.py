"""The index of bindings, over trees that change as dra-plugin changes them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from vgpu_registry.index import Index
from vgpu_registry.policy import Holding, PartitionRef
from vgpu_state.claims import HolderState
from vgpu_state.errors import NotReady
from vgpu_testkit.registry_node import RegistryNode, node_container

ONE = node_container(1)
TWO = node_container(2)
LONG_AGO_NS = 1_600_000_000_000_000_000


@pytest.fixture
def index(node: RegistryNode) -> Iterator[Index]:
    index = Index(node.layout)
    yield index
    index.close()


def _age(node: RegistryNode) -> None:
    """Every directory was changed long ago, so that its mtime alone says whether it changed since."""
    claims = Path(node.layout.claims)
    for folder in (claims, *claims.glob("*"), *claims.glob("*/*")):
        os.utime(folder, ns=(LONG_AGO_NS, LONG_AGO_NS))


def _take_away(node: RegistryNode) -> None:
    """The claim of ONE goes as Unprepare removes it. Its inode stays in use, as a container's mounts keep it."""
    (Path(node.layout.claims) / ".trash").mkdir(exist_ok=True)
    Path(node.layout.claim(ONE.claim_uid)).rename(Path(node.layout.trash) / "1")


async def test_find_has_no_answer_while_the_index_is_being_built(index: Index) -> None:
    with pytest.raises(NotReady, match="the index of containers is being built"):
        await index.find(ONE.runtime_id)


async def test_find_knows_nothing_while_there_is_no_tree(index: Index) -> None:
    await index.build()

    assert await index.find(ONE.runtime_id) is None


async def test_find_sees_a_partition_made_after_the_build(node: RegistryNode, index: Index) -> None:
    node.bind(ONE)
    _age(node)
    await index.build()

    node.bind(TWO)

    assert await index.find(TWO.runtime_id) == Holding(
        partition=PartitionRef(TWO.claim_uid, TWO.partition), binding=TWO.binding()
    )


async def test_find_sees_a_binding_that_comes_after_its_directory(node: RegistryNode, index: Index) -> None:
    (Path(node.layout.partition(ONE.claim_uid, ONE.partition)) / "config").mkdir(parents=True)
    _age(node)
    await index.build()
    assert await index.find(ONE.runtime_id) is None

    node.bind(ONE)

    holding = await index.find(ONE.runtime_id)
    assert holding is not None
    assert holding.binding == ONE.binding()


async def test_find_follows_a_partition_from_one_holder_to_the_next(node: RegistryNode, index: Index) -> None:
    node.bind(ONE)
    _age(node)
    await index.build()

    node.bind(ONE, runtime_id=TWO.runtime_id)  # as a partition made at Prepare goes on: only the file is another

    assert await index.find(ONE.runtime_id) is None
    holding = await index.find(TWO.runtime_id)
    assert holding is not None
    assert holding.partition == PartitionRef(ONE.claim_uid, ONE.partition)


async def test_find_sees_a_change_that_left_the_mtime_of_a_moment_ago(node: RegistryNode, index: Index) -> None:
    node.bind(ONE)
    folder = Path(node.layout.partition(ONE.claim_uid, ONE.partition))
    moment_ns = time.time_ns()
    os.utime(folder, ns=(moment_ns, moment_ns))
    await index.build()

    node.bind(ONE, runtime_id=TWO.runtime_id)
    os.utime(folder, ns=(moment_ns, moment_ns))  # the clock of the file system had stood still

    assert await index.find(TWO.runtime_id) is not None


async def test_find_sees_a_claim_that_was_prepared_anew_within_the_same_mtime(node: RegistryNode, index: Index) -> None:
    node.bind(ONE)
    _age(node)
    await index.build()

    _take_away(node)
    node.bind(ONE, runtime_id=TWO.runtime_id)
    _age(node)

    assert await index.find(ONE.runtime_id) is None
    assert await index.find(TWO.runtime_id) is not None


async def test_find_forgets_a_claim_that_is_gone(node: RegistryNode, index: Index) -> None:
    node.bind(ONE)
    _age(node)
    await index.build()

    _take_away(node)

    assert await index.find(TWO.runtime_id) is None
    assert index.partition_by_id == {}


async def test_the_partition_of_a_container_of_two_claims_is_the_one_that_no_other_refers_to(
    node: RegistryNode, index: Index
) -> None:
    referring = replace(TWO, pod_uid=ONE.pod_uid, runtime_id=ONE.runtime_id)
    node.bind(ONE)
    node.bind(referring, home=ONE.claim_uid)
    await index.build()

    holding = await index.find(ONE.runtime_id)

    assert holding is not None
    assert holding.partition == PartitionRef(ONE.claim_uid, ONE.partition)
    assert [h.partition for h in await index.holdings()] == [holding.partition]


async def test_one_partition_is_looked_at_for_one_container_without_the_rest_of_the_tree(
    node: RegistryNode, index: Index
) -> None:
    await index.build()
    node.bind(ONE)
    partition = PartitionRef(ONE.claim_uid, ONE.partition)

    assert await index.find_in(partition, ONE.runtime_id) == Holding(partition=partition, binding=ONE.binding())
    assert await index.find_in(partition, TWO.runtime_id) is None
    assert index.partition_by_id == {}


async def test_a_reference_to_a_partition_that_is_gone_holds_nothing(node: RegistryNode, index: Index) -> None:
    node.bind(TWO, home=ONE.claim_uid)
    await index.build()

    assert await index.find(TWO.runtime_id) is None
    assert index.partition_by_id == {}


async def test_find_reads_the_binding_again_on_a_hit(node: RegistryNode, index: Index) -> None:
    node.bind(ONE)
    await index.build()

    node.bind(ONE, state=HolderState.STOPPED)
    _age(node)

    holding = await index.find(ONE.runtime_id)
    assert holding is not None
    assert holding.binding.state is HolderState.STOPPED


async def test_find_follows_a_restart_in_place_and_forgets_the_old_id(node: RegistryNode, index: Index) -> None:
    node.bind(ONE)
    await index.build()

    node.bind(ONE, runtime_id=TWO.runtime_id)

    assert await index.find(ONE.runtime_id) is None
    holding = await index.find(TWO.runtime_id)
    assert holding is not None
    assert holding.partition == PartitionRef(ONE.claim_uid, ONE.partition)


async def test_a_miss_leaves_what_is_unchanged_unread(node: RegistryNode, index: Index) -> None:
    node.bind(ONE)
    _age(node)
    await index.build()

    node.bind(ONE, runtime_id=TWO.runtime_id)
    _age(node)  # which no file system does by itself

    assert await index.find(TWO.runtime_id) is None


async def test_a_corrupt_binding_hides_no_other(node: RegistryNode, index: Index) -> None:
    node.bind(ONE)
    node.bind(TWO)
    node.write_binding(ONE, b"{")
    await index.build()

    assert await index.find(ONE.runtime_id) is None
    assert await index.find(TWO.runtime_id) is not None


async def test_holdings_are_read_anew(node: RegistryNode, index: Index) -> None:
    node.bind(ONE)
    node.bind(TWO)
    await index.build()
    node.bind(TWO, cgroup="")

    holdings = await index.holdings()

    assert sorted((h.binding.runtime_id, h.is_live) for h in holdings) == [(ONE.runtime_id, True), (TWO.runtime_id, False)]


async def test_misses_of_many_at_once_are_answered(node: RegistryNode, index: Index) -> None:
    containers = [node_container(n) for n in range(10, 30)]
    await index.build()
    for container in containers:
        node.bind(container)

    async with asyncio.TaskGroup() as tasks:
        finds = [tasks.create_task(index.find(c.runtime_id)) for c in containers]

    found = [holding.binding.runtime_id for f in finds if (holding := f.result()) is not None]
    assert found == [c.runtime_id for c in containers]
