"""The index of bindings, over trees that change as dra-plugin changes them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
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
    """Every claim directory was changed long ago, so that its mtime alone says whether it changed since."""
    for folder in Path(node.layout.claims).iterdir():
        os.utime(folder, ns=(LONG_AGO_NS, LONG_AGO_NS))


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
    _age(node)

    holding = await index.find(ONE.runtime_id)
    assert holding is not None
    assert holding.binding == ONE.binding()


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


async def test_a_miss_leaves_unchanged_claims_unread(node: RegistryNode, index: Index) -> None:
    node.bind(ONE)
    _age(node)
    await index.build()

    node.bind(ONE, runtime_id=TWO.runtime_id)  # dra-plugin never does this without a new directory
    _age(node)

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
